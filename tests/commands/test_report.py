"""The report: what is in it, what is escaped, and what it does without."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.report.curves import draw_curves, running_mean
from rlvr.commands.report.page import main, write_report
from rlvr.runs.records import pass_names

PNG = b"\x89PNG\r\n\x1a\n"


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rollout(step: int, problem: str, sample: int, status: str, completion: str = "x = 1") -> dict[str, Any]:
    return {
        "step": step,
        "problem": problem,
        "sample": sample,
        "prompt": "What is <b>1 & 2</b>?",
        "completion": completion,
        "status": status,
        "reward": float(status == "correct"),
        "advantage": 0.5,
        "reason": "",
    }


@pytest.fixture
def drawn_small() -> None:
    """Here the curves are drawn."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    metrics = [
        {"step": i, "reward": i / 10, "correct": i / 10, "no_signal": 0.5, "truncated": 0.1, "entropy": 1 - i / 20}
        | {"grad_norm": float("nan") if i == 3 else 1.0, "seconds/sample": 0.2, "status/correct": 0.4}
        for i in range(1, 11)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics) + '{"step": 11, "rew')
    write(
        tmp_path / "eval.jsonl",
        [
            {"step": 0, "pass@1": 0.51, "pass@1_ci": [0.45, 0.57], "pass@8": 0.9, "num_problems": 128},
            {"step": 10, "pass@1": 0.913, "pass@1_ci": [0.88, 0.946], "pass@8": 0.98, "num_problems": 128}
            | {"lenient_pass@1": 0.92, "lenient_pass@1_ci": [0.9, 0.94]},
        ],
    )
    write(tmp_path / "rollouts.jsonl", [rollout(10, "last", i, "correct" if i else "no_answer") for i in range(3)])
    with gzip.open(tmp_path / "rollouts-0000.jsonl.gz", "wt") as file:
        file.write(json.dumps(rollout(1, "first", 0, "incorrect", "<script>alert(1)</script>")) + "\n")
    (tmp_path / "config.json").write_text('{"run": {"task": "<arithmetic>"}}')
    return tmp_path


def test_report_holds_the_table_and_the_curves(folder: Path) -> None:
    """pass@k before and after with intervals and the change; the picture inside is the PNG beside it."""
    text = write_report(folder).read_text()
    assert "0.510 [0.450, 0.570]" in text
    assert "0.913 [0.880, 0.946]" in text
    assert "+0.403" in text
    assert "lenient pass@1" in text
    picture = re.search(r'src="data:image/png;base64,([^"]+)"', text)
    assert picture is not None
    assert base64.b64decode(picture[1]) == (folder / "curves.png").read_bytes()
    assert (folder / "curves.png").read_bytes().startswith(PNG)


def test_report_is_one_file(folder: Path) -> None:
    """It loads nothing from anywhere, and holds one script of its own, besides packed data."""
    text = write_report(folder).read_text()
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "default-src 'none'" in text
    assert re.findall(r"<script[^>]*>", text) == [
        '<script type="application/gzip" class="index">',
        '<script type="application/gzip" class="chunk">',
        "<script>",
    ]


def test_text_of_models_and_settings_is_escaped(folder: Path) -> None:
    """Prompts, completions and settings are shown as they are, never as markup."""
    text = write_report(folder).read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "What is &lt;b&gt;1 &amp; 2&lt;/b&gt;?" in text
    assert "&lt;arithmetic&gt;" in text


def test_rollouts_of_first_and_last_step(folder: Path) -> None:
    """The first step comes from the compressed part, the last from the present file; right and wrong ones in turn."""
    text = write_report(folder).read_text()
    assert text.index("<h3>step 1</h3>") < text.index("first, sample 0") < text.index("<h3>step 10</h3>")
    assert text.index("last, sample 1") < text.index("last, sample 0")
    assert "last, sample 2" not in text


def test_last_tenth_in_the_table_of_metrics(folder: Path) -> None:
    """Each metric with its mean over the first and the last tenth; the half-written eleventh line is left out."""
    text = write_report(folder).read_text()
    assert "<tr><td>reward</td><td>0.1</td><td>1</td></tr>" in text
    assert "10 steps, 2 evaluations" in text


def test_missing_parts_are_left_out(tmp_path: Path) -> None:
    """Metrics alone, evaluations alone, and an empty folder all give a report."""
    write(tmp_path / "metrics.jsonl", [{"step": 1, "loss": 0.5}])
    assert "data:image/png" in write_report(tmp_path).read_text()
    (tmp_path / "metrics.jsonl").unlink()
    write(tmp_path / "eval.jsonl", [{"step": 0, "pass@1": 0.5}])
    text = write_report(tmp_path).read_text()
    assert "0.500" in text
    assert "change" not in text
    (tmp_path / "eval.jsonl").unlink()
    assert "0 steps" in write_report(tmp_path).read_text()


def test_nothing_to_draw() -> None:
    """Without any known number there is no picture."""
    assert draw_curves([{"step": 1, "unknown": 3}], []) is None


def test_malformed_line_is_named(folder: Path) -> None:
    """A broken line before the last is an error with its number."""
    (folder / "eval.jsonl").write_text('{"step": 0, "pass@1": 0.5}\n{"step"\n')
    with pytest.raises(ValueError, match=r"eval\.jsonl, line 2"):
        write_report(folder)


def test_command(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It prints where the report is; a folder that is no run's is refused."""
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        main([str(tmp_path / "nowhere")])
    (tmp_path / "other").mkdir()
    with pytest.raises(FileNotFoundError, match="expected the folder of a run"):
        main([str(tmp_path / "other")])


def test_a_graded_score_is_shown(folder: Path) -> None:
    """Where the score is not pass@1 it has a column with its interval, its change and a panel; else it has none."""
    before = write_report(folder).read_text()
    assert "<th>score</th>" not in before
    rows = [
        {"step": 0, "pass@1": 0.0, "pass@1_ci": [0, 0.04], "score": -0.31, "score_ci": [-0.5, -0.12]},
        {"step": 10, "pass@1": 0.0, "pass@1_ci": [0, 0.04], "score": 1.5, "score_ci": None, "threshold": 2.0},
    ]
    write(folder / "eval.jsonl", rows)
    text = write_report(folder).read_text()
    assert "<th>score</th>" in text
    assert "-0.310 [-0.500, -0.120]" in text
    assert "<td>1.500</td>" in text
    assert "+1.810" in text
    assert "a score of at least 2." in text
    assert len(draw_curves([], rows) or b"") > len(draw_curves([], [{**row, "score": 0.0} for row in rows]) or b"")


def test_shuffled_rollouts_say_so(folder: Path) -> None:
    """The verdict is the completion's own; the reward is said to be another's. Right and wrong differ in class."""
    row = rollout(10, "last", 0, "incorrect") | {"reward": 1.0, "shuffled_status": "correct"}
    write(folder / "rollouts.jsonl", [row])
    text = write_report(folder).read_text()
    assert "shuffled: rewarded +1.000 as another completion that is correct" in text
    assert '<span class="status incorrect">incorrect</span>' in text


def test_turns_are_shown_with_their_roles(folder: Path) -> None:
    """In order and escaped; replies are greyed like the prompt, void turns are marked."""
    turns = [
        {"role": "assistant", "text": "<call>", "tokens": 3, "void": True},
        {"role": "tool", "text": "4 & 5", "tokens": 7},
        {"role": "assistant", "text": "nine", "tokens": 2, "reward": 0.5, "calls": 2, "failed": 1},
    ]
    write(folder / "rollouts.jsonl", [rollout(10, "last", 0, "correct", "nine") | {"turns": turns}])
    text = write_report(folder).read_text()
    shown = [
        '>assistant, 3 tokens, void</div><pre class="own void">&lt;call&gt;<',
        '>tool, 7 tokens</div><pre class="masked">4 &amp; 5<',
        '>assistant, 2 tokens, reward +0.5, 2 calls, 1 failed</div><pre class="own">nine<',
    ]
    assert [text.count(part) for part in shown] == [1, 1, 1]
    assert sorted(shown, key=text.index) == shown
    write(folder / "rollouts.jsonl", [rollout(10, "last", 0, "correct", "nine") | {"turns": ["damaged"]}])
    assert '<pre class="own">nine</pre>' in write_report(folder).read_text()


def test_running_mean_by_hand() -> None:
    """Width 2 over 1, 3, 5: 1, then 2, then 4."""
    assert running_mean([1, 3, 5], 2) == [1, 2, 4]


def test_pass_names_by_rising_k() -> None:
    """8 comes before 16, and intervals and lenient forms are no names of their own."""
    row = {"pass@16": 1, "pass@8": 1, "pass@1": 1, "pass@1_ci": [0, 1], "lenient_pass@1": 1, "pass^8": 1}
    assert pass_names([row]) == ["pass@1", "pass@8", "pass@16"]
