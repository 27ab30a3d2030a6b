"""The report: what is in it, what is escaped, and what it does without."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.report import page as report_page
from rlvr.commands.report.curves import draw_curves, running_mean
from rlvr.commands.report.page import choose, cut, is_notable, main, sample, write_report
from rlvr.runs.records import pass_names
from tests.helpers import chromium

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


def test_report_holds_the_table_and_the_curves(folder):
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


def test_report_is_one_file(folder):
    """It loads nothing from anywhere, and holds one script of its own, besides packed data."""
    text = write_report(folder).read_text()
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "default-src 'none'" in text
    assert re.findall(r"<script[^>]*>", text) == [
        '<script type="application/gzip" id="rollouts">',
        "<script>",
    ]


def test_text_of_models_and_settings_is_escaped(folder):
    """Prompts, completions and settings are shown as they are, never as markup."""
    text = sample(rollout(1, "first", 0, "incorrect", "<script>alert(1)</script>"))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "What is &lt;b&gt;1 &amp; 2&lt;/b&gt;?" in text
    assert "&lt;arithmetic&gt;" in write_report(folder).read_text()


def test_last_tenth_in_the_table_of_metrics(folder):
    """Each metric with its mean over the first and the last tenth; the half-written eleventh line is left out."""
    text = write_report(folder).read_text()
    assert "<tr><td>reward</td><td>0.1</td><td>1</td></tr>" in text
    assert "10 steps, 2 evaluations" in text


def test_missing_parts_are_left_out(tmp_path):
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


def test_nothing_to_draw():
    """Without any known number there is no picture."""
    assert draw_curves([{"step": 1, "unknown": 3}], []) is None


def test_malformed_line_is_named(folder):
    """A broken line before the last is an error with its number."""
    (folder / "eval.jsonl").write_text('{"step": 0, "pass@1": 0.5}\n{"step"\n')
    with pytest.raises(ValueError, match=r"eval\.jsonl, line 2"):
        write_report(folder)


def test_command(folder, capsys, tmp_path):
    """It prints where the report is; a folder that is no run's is refused."""
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        main([str(tmp_path / "nowhere")])
    (tmp_path / "other").mkdir()
    with pytest.raises(FileNotFoundError, match="expected the folder of a run"):
        main([str(tmp_path / "other")])


def test_a_graded_score_is_shown(folder):
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


def test_shuffled_rollouts_say_so():
    """The verdict is the completion's own; the reward is said to be another's. Right and wrong differ in class."""
    row = rollout(10, "last", 0, "incorrect") | {"reward": 1.0, "shuffled_status": "correct"}
    text = sample(row)
    assert "shuffled: rewarded +1.000 as another completion that is correct" in text
    assert '<span class="status incorrect">incorrect</span>' in text


def test_turns_are_shown_with_their_roles():
    """In order and escaped; replies are greyed like the prompt, void turns are marked."""
    turns = [
        {"role": "assistant", "text": "<call>", "tokens": 3, "void": True},
        {"role": "tool", "text": "4 & 5", "tokens": 7},
        {"role": "assistant", "text": "nine", "tokens": 2, "reward": 0.5, "calls": 2, "failed": 1},
    ]
    text = sample(rollout(10, "last", 0, "correct", "nine") | {"turns": turns})
    shown = [
        '>assistant, 3 tokens, void</div><pre class="own void">&lt;call&gt;<',
        '>tool, 7 tokens</div><pre class="masked">4 &amp; 5<',
        '>assistant, 2 tokens, reward +0.5, 2 calls, 1 failed</div><pre class="own">nine<',
    ]
    assert [text.count(part) for part in shown] == [1, 1, 1]
    assert sorted(shown, key=text.index) == shown
    damaged = rollout(10, "last", 0, "correct", "nine") | {"turns": ["damaged"]}
    assert '<pre class="own">nine</pre>' in sample(damaged)


def test_running_mean_by_hand():
    """Width 2 over 1, 3, 5: 1, then 2, then 4."""
    assert running_mean([1, 3, 5], 2) == [1, 2, 4]


def test_pass_names_by_rising_k():
    """8 comes before 16, and intervals and lenient forms are no names of their own."""
    row = {"pass@16": 1, "pass@8": 1, "pass@1": 1, "pass@1_ci": [0, 1], "lenient_pass@1": 1, "pass^8": 1}
    assert pass_names([row]) == ["pass@1", "pass@8", "pass@16"]


# Rollouts in a report: which are in the page, how they are packed, and browsing them in Chromium.

HOSTILE = "</script><script>document.title = 'forged'</script><img src=x onerror=alert(1)>\x1b[2J\u202eevil\u2066 \x00"
TURNS = [
    {"role": "assistant", "text": "call it", "tokens": 1, "void": True},
    {"role": "tool", "text": f"reply {HOSTILE}", "tokens": 7},
    {"role": "assistant", "text": "nine", "tokens": 2},
]


def log_sample(step: int, sample: int, status: str = "correct", **more: Any) -> dict[str, Any]:
    row = {"step": step, "problem": f"p{sample // 4}", "sample": sample, "prompt": "1 + 1 =", "completion": "2"}
    return row | {"status": status, "reward": 1.0, "advantage": 0.5, "reason": "", "finish_reason": "stop"} | more


def write_run(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_page(path: Path) -> list[list[Any]]:
    """Return the rollouts of a report: step, problem, sample, status, reward, advantage, words, parts."""
    found = re.search(r'<script type="application/gzip" id="rollouts">([^<]*)</script>', path.read_text())
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def test_every_rollout_is_packed(tmp_path):
    """Those of compressed parts too, each with its own text."""
    rows = [log_sample(1 + i // 100, i, "correct" if i % 3 else "incorrect", completion=f"say {i}") for i in range(700)]
    write_run(tmp_path, rows[300:])
    with gzip.open(tmp_path / "rollouts-0000.jsonl.gz", "wt") as part:
        part.write("".join(json.dumps(row) + "\n" for row in rows[:300]))
    path = write_report(tmp_path)
    found = read_page(path)
    assert "All 700 rollouts" in path.read_text()
    assert [row[:4] for row in found] == [[row[n] for n in ("step", "problem", "sample", "status")] for row in rows]
    assert [row[7][-1][1] for row in found] == [f"say {i}" for i in range(700)]


def test_parts_and_masks(tmp_path):
    """Kinds of parts: greyed ones, void ones, both where void turns are not trained on."""
    rows = [log_sample(1, 0, turns=TURNS)]
    write_run(tmp_path, rows)
    for void, kinds in ((False, [1, 2, 1, 0]), (True, [1, 3, 1, 0])):
        (tmp_path / "config.json").write_text(json.dumps({"rollout": {"mask_void": void}}))
        assert [kind for _, _, kind in read_page(write_report(tmp_path))[0][7]] == kinds


def test_what_calls_for_attention():
    """Errors and limits, disagreement with the monitor, void turns."""
    assert not is_notable(log_sample(1, 0))
    assert not is_notable(log_sample(1, 0, "incorrect", monitor_status="no_answer"))
    for row in (
        log_sample(1, 0, "error"),
        log_sample(1, 0, "timeout"),
        log_sample(1, 0, "bad_reference"),
        log_sample(1, 0, monitor_status="incorrect"),
        log_sample(1, 0, turns=TURNS),
    ):
        assert is_notable(row)


def test_a_sample_is_even_over_strata():
    """All where they fit; else a rare stratum in full and frequent ones equally often, the same every time."""
    assert choose("aabbb", [10] * 5, 50) == [0, 1, 2, 3, 4]
    strata = "a" * 1000 + "b" * 10 + "c" * 500
    chosen = choose(strata, [1] * 1510, 70)
    assert Counter(strata[i] for i in chosen) == {"a": 30, "b": 10, "c": 30}
    assert chosen == sorted(chosen) == choose(strata, [1] * 1510, 70)


def test_a_page_holds_what_fits_and_says_so(tmp_path, monkeypatch):
    """Of every step and verdict, and those that call for attention; the same bytes every time."""
    rows = [log_sample(1 + i // 50, i, turns=TURNS if i == 77 else None) for i in range(100)]
    write_run(tmp_path, rows)
    monkeypatch.setattr(report_page.choose, "__defaults__", (2500,))
    path = write_report(tmp_path)
    first, found = path.read_bytes(), read_page(path)
    assert {row[0] for row in found} == {1, 2}
    assert 77 in [row[2] for row in found]
    assert f"{len(found)} of 100 rollouts are in this page" in path.read_text()
    assert write_report(tmp_path).read_bytes() == first


@pytest.mark.parametrize("length, left_out", [(12_000, None), (12_001, "1"), (50_000, "38,000")])
def test_long_texts_are_cut(length, left_out):
    """In the middle; how much is left out is told."""
    text = cut("a" * (length - 1) + "b")
    assert text.endswith("b")
    assert ("left out" in text) == (left_out is not None)
    assert left_out is None or f"[... {left_out} characters left out ...]" in text


def test_a_damaged_part_is_named(tmp_path):
    """As everywhere in a report."""
    write_run(tmp_path, [log_sample(1, 0)])
    (tmp_path / "rollouts-0000.jsonl.gz").write_bytes(gzip.compress(b'{"step": 1}\n' * 1000)[:-20])
    with pytest.raises(ValueError, match=r"rollouts-0000.jsonl.gz is damaged"):
        write_report(tmp_path)


def big_run(folder: Path, count: int = 100_000) -> None:
    """Rollouts of some 700 characters that compress as prose does: words drawn by rank."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlucmf", k=draw.randint(2, 9))) for _ in range(5000)]
    weights = [1 / rank for rank in range(1, 5001)]
    said = " ".join(draw.choices(words, weights, k=1_000_000)).split(" ")
    lines = []
    for i in range(count):
        status = "error" if i % 1000 == 0 else ("correct", "incorrect", "no_answer")[draw.randrange(3)]
        text = " ".join(said[(at := draw.randrange(len(said) - 150)) : at + 120])
        lines.append(json.dumps(log_sample(1 + i // 256, i % 256, status, completion=text, advantage=draw.gauss(0, 1))))
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "reward": 0.5}) + "\n" for step in range(1, 2 + count // 256))
    )
    (folder / "rollouts.jsonl").write_text("\n".join(lines) + "\n")


needs_chromium = pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def page() -> Iterator[chromium.Page]:
    """One tab for all tests of this file."""
    with chromium.open_page() as opened:
        yield opened


def visible_text(page: chromium.Page) -> list[str]:
    return page.evaluate("[...document.querySelectorAll('#browser h4')].map((e) => e.textContent)")


def choose_in(page: chromium.Page, **values: str) -> list[str]:
    """Fill in controls, wait until the list has been made again, and return its headings."""
    page.evaluate(
        "document.querySelector('.rollouts').dataset.old = 1; document.querySelector('.rollouts').append('x')"
    )
    for name, value in values.items():
        page.evaluate(f"document.querySelector('#browser form').elements[{name!r}].value = {value!r}")
    page.evaluate("document.querySelector('#browser form').dispatchEvent(new Event('input'))")
    page.until("!document.querySelector('.rollouts').textContent.endsWith('x')")
    return visible_text(page)


@needs_chromium
@pytest.mark.slow
def test_a_hundred_thousand_rollouts(tmp_path, page):
    """The page stays below 12 MB, opens within 3 s, holds every error, and asks for nothing beside itself."""
    big_run(tmp_path)
    path = write_report(tmp_path)
    assert path.stat().st_size < 12_000_000
    page.resize(1200, 900)
    page.load(path)
    milliseconds = float(page.until("document.body?.dataset.ready"))
    assert milliseconds < 3000
    assert {url.partition(":")[0] for url in page.requested} == {"file", "data"}
    assert len(choose_in(page, status="error")) == 20
    assert "1 to 20 of 100 rollouts" in page.evaluate("document.querySelector('output').textContent")
    assert len({row[0] for row in read_page(path)}) == 391


@needs_chromium
def test_browsing(tmp_path, page):
    """Filters by step, problem, verdict, advantage and text; order; pages."""
    rows = [
        log_sample(1 + i // 10, i, ("correct", "incorrect")[i % 2], advantage=(i - 20) / 10, completion=f"said{i}.")
        for i in range(50)
    ]
    rows[7]["advantage"] = None
    write_run(tmp_path, rows)
    page.resize(1200, 900)
    page.load(write_report(tmp_path))
    page.until("document.body?.dataset.ready")
    assert len(visible_text(page)) == 20
    page.evaluate("document.querySelector('[name=next]').click()")
    page.until("document.querySelector('output').textContent === '21 to 40 of 50 rollouts'")
    assert visible_text(page)[0].startswith("step 3, p5, sample 20: correct")
    assert len(choose_in(page, step="2")) == 10
    assert len(choose_in(page, step="4-5")) == 20
    assert choose_in(page, step="x") == []
    assert len(choose_in(page, step="", problem="P11")) == 4
    assert len(choose_in(page, problem="", advantage="none")) == 1
    assert choose_in(page, advantage="0") == ["step 3, p5, sample 20: correct, reward +1.000, advantage +0.000"]
    assert choose_in(page, advantage="", order="high")[0].startswith("step 5, p12, sample 49")
    assert choose_in(page, order="last")[0].startswith("step 5, p10, sample 40")
    assert choose_in(page, order="", text="SAID31.") == [
        "step 4, p7, sample 31: incorrect, reward +1.000, advantage +1.100"
    ]
    assert choose_in(page, text="nobody said this") == []


@pytest.mark.parametrize("value", [1e-5, -3e-7, 2.5e-12])
def test_small_advantages_keep_their_sign(tmp_path, value):
    """The page is filtered by it; only 0 is shown as 0, and what is no number as none."""
    held = [value, 0.0, None, float("nan"), [value, value], 1234.5678]
    write_run(tmp_path, [log_sample(1, i, advantage=advantage) for i, advantage in enumerate(held)])
    found = [row[5] for row in read_page(write_report(tmp_path))]
    assert found == [pytest.approx(value, rel=1e-3), 0, None, None, pytest.approx(value, rel=1e-3), 1235]


@needs_chromium
@pytest.mark.parametrize("rollouts", [0, 1])
def test_no_error_in_the_console(tmp_path, page, rollouts):
    """With and without rollouts in the run."""
    write_run(tmp_path, [log_sample(1, i) for i in range(rollouts)])
    path = write_report(tmp_path)
    errors = "<script>window.errors = []; window.onerror = (e) => { errors.push(String(e)); }</script>"
    path.write_text(path.read_text().replace("<style>", errors + "<style>", 1))
    page.load(path)
    assert page.evaluate("window.errors") == []


@needs_chromium
def test_hostile_text_stays_text(tmp_path, page):
    """In every field, packed or not: no element, no script, no turned direction, no control character."""
    rows = [log_sample(1, i, completion=HOSTILE, prompt=HOSTILE, problem=HOSTILE, reason=HOSTILE) for i in range(3)]
    write_run(tmp_path, [*rows, log_sample(1, 3, turns=TURNS), log_sample(1, 4, HOSTILE)])
    path = write_report(tmp_path)
    page.resize(1200, 900)
    page.load(path)
    page.until("document.body?.dataset.ready")
    assert page.evaluate("document.title").startswith("rlvr: ")
    assert page.evaluate("document.querySelectorAll('img[src=x], #browser img').length") == 0
    assert page.evaluate("document.querySelectorAll('script:not([type])').length") == 1
    text = page.evaluate("document.querySelector('#browser').textContent")
    assert "onerror=alert(1)" in text
    assert not set(text) & set("\x1b\x00\u202e\u2066")
    assert {url.partition(":")[0] for url in page.requested} == {"file", "data"}


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_its_width(tmp_path, page, scheme):
    """Nothing stands out of 400 pixels, whatever was said; the colours follow the system's."""
    write_run(tmp_path, [log_sample(1, 0, completion="x" * 500, problem="y" * 200), log_sample(1, 1, turns=TURNS)])
    page.resize(400, 800, scheme=scheme)
    page.load(write_report(tmp_path))
    page.until("document.body?.dataset.ready")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
