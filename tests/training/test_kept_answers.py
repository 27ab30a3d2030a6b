"""The held-out answers that a run keeps: which, how many, how long, and what a resume does to them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.launch import launch
from rlvr.runs.log import RunLog
from rlvr.runs.reading import answer_files
from rlvr.training.evaluation.kept import LONGEST, SAMPLES, KeptAnswers
from tests.helpers.files import lines
from tests.helpers.pages import write_answers
from tests.helpers.runs import tiny
from tests.helpers.verifiers import PROBLEMS, sums


def read(folder: Path, step: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(answer_files(folder)[step].read_bytes()).splitlines()]


def settings(steps: int, **more: Any) -> dict[str, Any]:
    return {
        "run": {"steps": steps, "sample_every": 0, "save_every": 1},
        "eval": {"every": 1, "num_problems": 3, "samples": 6, "k": (1,), **more},
    }


def test_the_first_problems_and_samples_of_every_evaluation_are_kept(tmp_path):
    """With prompt and verdicts, as the evaluation counted them."""
    launch(tiny(tmp_path, **settings(2, keep_answers=2)), task=sums())
    assert list(answer_files(tmp_path)) == [row["step"] for row in lines(tmp_path / "eval.jsonl")] == [0, 1, 2]
    rows = read(tmp_path, 2)
    assert [row["problem"] for row in rows] == [problem.id for problem in sums().test[:2]]
    assert rows[0]["prompt"] == sums().test[0].prompt
    for row in rows:
        assert [answer["sample"] for answer in row["answers"]] == list(range(SAMPLES))
        assert all(answer["correct"] == (answer["status"] == "correct") for answer in row["answers"])


@pytest.mark.parametrize("kept, files", [(0, []), (256, [0, 1])])
def test_keeping_changes_no_number(tmp_path, kept, files):
    """Evaluations and rollouts are those of a run that keeps none, byte for byte."""
    launch(tiny(tmp_path / "run", **settings(1, keep_answers=kept)), task=sums())
    launch(tiny(tmp_path / "other", **settings(1)), task=sums())
    assert list(answer_files(tmp_path / "run")) == files
    for name in ("eval.jsonl", "rollouts.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_a_resumed_run_holds_the_bytes_of_an_unbroken_one(tmp_path):
    """Answers of evaluations after its checkpoint were deleted, and are given again."""
    launch(tiny(tmp_path / "whole", **settings(3)), task=sums())
    launch(tiny(tmp_path / "broken", **settings(2)), task=sums())
    write_answers(tmp_path / "broken", 7, {"a": "1"})
    launch(tiny(tmp_path / "broken", **settings(3)), task=sums())
    whole, broken = (answer_files(tmp_path / name) for name in ("whole", "broken"))
    assert list(whole) == list(broken) == [0, 1, 2, 3]
    assert [path.read_bytes() for path in whole.values()] == [path.read_bytes() for path in broken.values()]


def test_a_log_that_goes_back_deletes_later_answers(tmp_path):
    """Those of the step it goes back to stay; what an interrupted write left goes."""
    log = RunLog(tmp_path)
    for step in (0, 20, 40):
        log.write_answers(step, [{"step": step}])
    (tmp_path / "answers-000060.jsonl.gz.partial").write_bytes(b"x")
    log.truncate_to({"parts": 0}, step=20)
    assert list(answer_files(tmp_path)) == [0, 20]


def test_long_texts_are_cut_in_the_middle():
    """Of a completion and of each turn; the row that the numbers are made of stays as it is."""
    row = {"id": "a", "sample": 0, "completion": "x" * 50_000, "turns": [{"role": "tool", "text": "y" * 50_000}]}
    kept = KeptAnswers([])
    kept.problems = {"a": PROBLEMS[0]}
    kept.add([row, {**row, "sample": SAMPLES}, {**row, "id": "b"}])
    (found,) = kept._rows
    for text in (found["completion"], found["turns"][0]["text"]):
        assert LONGEST < len(text) < LONGEST + 60
        assert "[... 30,000 characters left out ...]" in text
    assert len(row["completion"]) == 50_000
