"""`rlvr report`: what the page of a run holds, what is chosen and cut, and that its text cannot leave its place."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from rlvr.commands.report import page as report_page
from rlvr.commands.report.content import PANELS, Logs, changed_settings, describe_run, pass_table
from rlvr.commands.report.page import Link, main, page, table, write_report
from rlvr.commands.report.rollouts import FLAGS, LONGEST_PART, choose, cut, flags_of_group, pack_values
from rlvr.config import Config, to_json
from rlvr.runs.records import pass_names
from tests.helpers.pages import (
    TURNS,
    log_sample,
    read_blocks,
    read_columns,
    read_data,
    read_texts,
    write_answers,
    write_lines,
    write_run,
)


def evaluation_row(step: int, rate: float, **more: object) -> dict[str, object]:
    return {"step": step, "pass@1": rate, "pass@1_ci": [rate - 0.05, rate + 0.05], "num_problems": 128, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    metrics = [
        {"step": i, "reward": i / 10, "grad_norm": float("nan") if i == 3 else 1.0, "status/correct": 0.4}
        for i in range(1, 11)
    ]
    write_run(tmp_path, [log_sample(10, i) for i in range(3)], metrics=metrics)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "rew')
    write_lines(
        tmp_path / "eval.jsonl", [evaluation_row(0, 0.51), evaluation_row(10, 0.913, **{"lenient_pass@1": 0.92})]
    )
    write_lines(tmp_path / "rollouts-0000.jsonl.gz", [log_sample(1, 0, "incorrect", completion="</script><b>")])
    return tmp_path


def test_a_page_holds_the_logs(folder):
    """Metrics by column without the half-written line and NaN, pass@k with intervals and the change, a result."""
    (run,) = read_data(write_report(folder))["runs"]
    assert run["metrics"]["reward"] == [i / 10 for i in range(1, 11)]
    assert run["metrics"]["grad_norm"][2] is None
    assert run["passes"]["names"] == ["pass@1", "lenient pass@1"]
    assert run["passes"]["rows"][0][1] == "0.510 [0.460, 0.560]"
    assert run["passes"]["rows"][-1][:2] == ["change", "+0.403"]
    assert "pass@1 went from 0.510 [0.460, 0.560] to 0.913" in run["head"]["result"]
    assert run["rollouts"] == 4


def test_a_page_loads_nothing(folder):
    """No address in it, a policy that allows its own two scripts by their hashes, and no other script that runs."""
    text = write_report(folder).read_text()
    assert not re.search(r'\s(src|href)="', text.split("<script>")[0])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "connect-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert policy[1].count("sha256-") == 4  # two scripts, two styles
    assert len(re.findall(r"<script>", text)) == 2


def test_missing_parts_are_left_out(tmp_path):
    """Metrics alone, evaluations alone, and an empty folder all give a page."""
    write_run(tmp_path)
    assert read_data(write_report(tmp_path))["runs"][0]["evaluations"] == []
    (tmp_path / "metrics.jsonl").unlink()
    write_lines(tmp_path / "eval.jsonl", [evaluation_row(0, 0.5)])
    (run,) = read_data(write_report(tmp_path))["runs"]
    assert run["passes"]["rows"] == [[0, "0.500 [0.450, 0.550]"]]
    (tmp_path / "eval.jsonl").unlink()
    (run,) = read_data(write_report(tmp_path))["runs"]
    assert run["head"]["result"] == "No evaluation yet."


def test_malformed_lines_and_parts_are_named(folder):
    """A broken line before the last, and a compressed part that was cut off."""
    (folder / "eval.jsonl").write_text('{"step": 0, "pass@1": 0.5}\n{"step"\n')
    with pytest.raises(ValueError, match=r"eval\.jsonl, line 2"):
        write_report(folder)
    (folder / "eval.jsonl").unlink()
    (folder / "rollouts-0000.jsonl.gz").write_bytes(gzip.compress(b'{"step": 1}\n' * 1000)[:-20])
    with pytest.raises(ValueError, match=r"rollouts-0000.jsonl.gz is damaged"):
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


def test_a_graded_score_is_shown():
    """Where the score is not pass@1 it has a column with its interval and its change; the threshold is told."""
    rows = [
        {"step": 0, "pass@1": 0.0, "pass@1_ci": [0, 0.04], "score": -0.31, "score_ci": [-0.5, -0.12]},
        {"step": 10, "pass@1": 0.0, "pass@1_ci": [0, 0.04], "score": 1.5, "score_ci": None, "threshold": 2.0},
    ]
    found = pass_table(rows)
    assert found["names"] == ["pass@1", "score"]
    assert [row[-1] for row in found["rows"]] == ["-0.310 [-0.500, -0.120]", "1.500", "+1.810"]
    assert "a score of at least 2." in found["note"]
    assert pass_table([{**row, "score": 0.0} for row in rows])["names"] == ["pass@1"]


def test_pass_at_k_by_pack():
    """A row for each pack and evaluation, packs in their order."""
    rows = [
        evaluation_row(step, 0.5, packs={"b": evaluation_row(step, 0.4), "a": evaluation_row(step, 0.6)})
        for step in (0, 5)
    ]
    assert [row[:2] for row in pass_table(rows)["packs"]] == [["b", 0], ["b", 5], ["a", 0], ["a", 5]]


def test_pass_names_by_rising_k():
    """8 comes before 16, and intervals and lenient forms are no names of their own."""
    row = {"pass@16": 1, "pass@8": 1, "pass@1": 1, "pass@1_ci": [0, 1], "lenient_pass@1": 1, "pass^8": 1}
    assert pass_names([row]) == ["pass@1", "pass@8", "pass@16"]


def test_the_head_says_what_changed_from_the_defaults(tmp_path):
    """The defaults of the run's own algorithm; what is not a run's config changes nothing."""
    config = json.loads(to_json(Config()))
    config["optim"]["lr"] = 0.25
    config["run"]["out_dir"] = "elsewhere"
    assert [[name, value] for name, _, value in changed_settings(config)] == [["optim.lr", "0.25"]]
    assert changed_settings({"pairs": 3}) == []
    (tmp_path / "config.json").write_text(json.dumps(config))
    head = describe_run(tmp_path, Logs(metrics=[{"step": 3}]))
    assert head["state"] == f"not running, step 3 of {config['run']['steps']}"
    assert ["algorithm", config["algo"]["name"]] in head["facts"]


def test_every_rollout_is_there(tmp_path):
    """Those of compressed parts too, each with its own text, in the log's order."""
    rows = [log_sample(1 + i // 100, i, "correct" if i % 3 else "incorrect", completion=f"say {i}") for i in range(700)]
    write_run(tmp_path, rows[300:])
    write_lines(tmp_path / "rollouts-0000.jsonl.gz", rows[:300])
    path = write_report(tmp_path)
    columns = read_columns(path)
    assert "All 700 rollouts" in read_data(path)["runs"][0]["note"]
    for name in ("step", "problem", "sample", "status"):
        assert columns[name] == [row[name] for row in rows]
    assert [parts[-1][2] for _, _, parts in read_texts(path)] == [f"say {i}" for i in range(700)]


def test_parts_masks_and_advantages(tmp_path):
    """Kinds of parts: greyed ones, void ones, both where void turns are not trained on; each turn's own advantage."""
    write_run(tmp_path, [log_sample(1, 0, turns=TURNS, advantage=[0.5, -0.5])])
    for void, kinds in ((False, [1, 2, 1, 0]), (True, [1, 3, 1, 0])):
        (tmp_path / "config.json").write_text(json.dumps({"rollout": {"mask_void": void}}))
        ((_, _, parts),) = read_texts(write_report(tmp_path))
        assert [kind for _, _, _, kind, _ in parts] == kinds
        assert [advantage for *_, advantage in parts] == [None, 0.5, None, -0.5]
        assert parts[2][:2] == ["tool", "7 tokens, 2 calls, 1 failed"]


def test_values_of_tokens_go_with_their_turns(tmp_path):
    """Each turn of the model has those of its own tokens; what is no list is left out."""
    values = {"lengths": [7, 2, 11], "entropy": [1, 2, 3], "difference": 5}
    write_run(tmp_path, [log_sample(1, 0, turns=TURNS, token_values=values), log_sample(1, 1, token_values=[])])
    (_, _, parts), (_, _, others) = read_texts(write_report(tmp_path))
    assert [part[5] for part in parts if len(part) > 5] == [
        {"lengths": [7], "entropy": [1]},
        {"lengths": [2, 11], "entropy": [2, 3]},
    ]
    assert all(len(part) == 5 for part in others)


def test_values_of_a_long_text_leave_out_its_middle():
    """The tokens of what is shown stay at their characters; one without values stands for the middle."""
    text = "".join(chr(97 + i % 26) for i in range(3 * LONGEST_PART))
    lengths = [7] * (len(text) // 7 + 1)
    found = pack_values({"lengths": lengths, "entropy": list(range(len(lengths)))}, text)
    there, place, middle = cut(text), 0, 0
    for length, number in zip(found["lengths"], found["entropy"], strict=True):
        if number is None:
            middle += 1
        else:
            assert there[place : place + length] == text[7 * number : 7 * number + 7]
        place += length
    assert middle == 1
    assert place - len(there) < 7
    assert pack_values({"lengths": [1, 2], "entropy": [3, 4]}, "abc") == {"lengths": [1, 2], "entropy": [3, 4]}


def test_shuffled_rollouts_say_so(tmp_path):
    """The verdict is the completion's own; the reward is said to be another's."""
    write_run(tmp_path, [log_sample(1, 0, "incorrect", reward=1.0, shuffled_status="correct")])
    ((words, _, _),) = read_texts(write_report(tmp_path))
    assert words.startswith("incorrect")
    assert "shuffled: rewarded +1.000 as another completion that is correct" in words


@pytest.mark.parametrize(
    ("more", "flag"),
    [
        ({"finish_reason": "length"}, "cut"),
        ({"turns": TURNS}, "void"),
        ({"monitor_status": "incorrect"}, "flagged"),
        ({"status": "timeout"}, "unjudged"),
        ({"status": "partial"}, "near"),
        ({"status": "no_answer", "completion": "it is 42, I think"}, "near"),
        ({"kept": False}, "dropped"),
        ({"token_values": {"lengths": []}}, "values"),
        ({"completion": "one two three four five " * 30}, "repetitive"),
    ],
)
def test_what_calls_for_attention(more, flag):
    """Each flag alone, in a group whose correct answer is 42."""
    rows = [log_sample(1, 0, extracted="42", completion="42 it is"), log_sample(1, 1, completion="other") | more]
    assert flags_of_group(rows) == [0, FLAGS[flag]]


def test_near_misses_hold_the_answer_as_a_word_and_equal_texts_are_told():
    """142 does not hold 42; the second of two equal texts says so."""
    right = log_sample(1, 0, extracted="42", completion="42")
    wrong = [log_sample(1, i, "incorrect", completion="142 or 42.5") for i in (1, 2)]
    assert flags_of_group([right, *wrong]) == [0, 0, FLAGS["same"]]


def test_a_sample_is_even_over_strata():
    """All where they fit; else a rare stratum in full and frequent ones equally often, the same every time."""
    assert choose([(2, "a"), (3, "b")], [10, 40], 50) == {0, 1}
    strata = [(1000, "a")] * 1000 + [(10, "b")] * 10 + [(500, "c")] * 500
    chosen = choose(strata, [1] * 1510, 70)
    assert Counter(strata[i][1] for i in chosen) == {"a": 30, "b": 10, "c": 30}
    assert chosen == choose(strata, [1] * 1510, 70)
    assert {strata[i][1] for i in choose(strata, [1] * 1510, 2)} == {"b", "c"}


def test_a_page_holds_what_fits_and_says_so(tmp_path, monkeypatch):
    """Whole groups, those with a rare verdict first; the numbers of all; the same bytes every time."""
    rows = [log_sample(1 + i // 52, i, "error" if i == 77 else "correct") for i in range(104)]
    write_run(tmp_path, rows)
    monkeypatch.setattr(report_page, "BUDGET", 2500)
    path = write_report(tmp_path)
    first, columns = path.read_bytes(), read_columns(path)
    there = [i for i, chunk in enumerate(columns["chunk"]) if chunk >= 0]
    assert 77 in there
    assert 0 < len(there) < 104
    assert {len([i for i in there if i // 4 == group]) for group in range(26)} == {0, 4}
    assert {rows[i]["step"] for i in there} == {1, 2}
    assert len(read_texts(path)) == len(there)
    assert f"{len(there)} of 104 rollouts" in read_data(path)["runs"][0]["note"]
    assert write_report(tmp_path).read_bytes() == first


@pytest.mark.parametrize(("length", "left_out"), [(LONGEST_PART, None), (LONGEST_PART + 1, "1"), (50_000, "38,000")])
def test_long_texts_are_cut(length, left_out):
    """In the middle; how much is left out is told."""
    text = cut("a" * (length - 1) + "b")
    assert text.endswith("b")
    assert ("left out" in text) == (left_out is not None)
    assert left_out is None or f"[... {left_out} characters left out ...]" in text


@pytest.mark.parametrize("value", [1e-5, -3e-7, 2.5e-12])
def test_small_advantages_keep_their_sign(tmp_path, value):
    """The page is filtered by it; only 0 is shown as 0, and what is no number as none."""
    held = [value, 0.0, None, float("nan"), [value, value], 1234.5678]
    write_run(tmp_path, [log_sample(1, i, advantage=advantage) for i, advantage in enumerate(held)])
    found = read_columns(write_report(tmp_path))["advantage"]
    assert found == [pytest.approx(value, rel=1e-3), 0, None, None, pytest.approx(value, rel=1e-3), 1235]


def test_held_out_answers_are_there(tmp_path):
    """Of every evaluation that kept some, with the prompt in parts."""
    write_run(tmp_path)
    for step in (0, 20):
        write_answers(tmp_path, step, {"a": "10", "b": "11"})
    path = write_report(tmp_path)
    assert read_data(path)["runs"][0]["answers"] == [0, 20]
    (first, _) = read_blocks(path, "answers")
    assert [row["problem"] for row in first] == ["a", "b"]
    assert first[0]["prompt"] == [["prompt", "", "What is a?", 1]]
    assert [answer["correct"] for answer in first[0]["answers"]] == [True, False]
    assert first[0]["answers"][1]["parts"][0][2] == "a after 0, number 1"


def test_tables_of_a_page_without_scripts_are_escaped():
    """As in a pipeline's page, where no script may run."""
    text = page("<x>", table(["<h>"], [["</td><script>"], [Link("<b>", Path('a"/<b>.html'))]]))
    assert '<a href="a%22/%3Cb%3E.html">&lt;b&gt;</a>' in text
    assert "&lt;h&gt;" in text
    assert "&lt;/td&gt;&lt;script&gt;" in text
    assert "<title>rlvr: &lt;x&gt;</title>" in text
    assert "script-src 'none'" in text


def test_panels_have_known_forms():
    """Every group has panels; a title stands once."""
    titles = [title for panels in PANELS.values() for title, _ in panels]
    assert list(PANELS) == ["Learning", "Policy", "Lengths", "Rewards", "Speed"]
    assert len(set(titles)) == len(titles)
