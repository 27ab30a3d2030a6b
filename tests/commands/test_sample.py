"""`rlvr sample`: which completions become demonstrations, what is measured of them, and fine-tuning on them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rlvr.commands.cli import main
from rlvr.commands.sample import SampleArgs, choose_best, demonstration, sample
from rlvr.core.types import Problem, RunError
from rlvr.training.sft.demonstrations import read_demonstrations

ARGS = SampleArgs(
    model="tiny",
    task="arithmetic",
    task_option=("num_train=6", "num_test=2"),
    verifier="regex",
    verifier_option=("pattern=7", "match=search"),
    max_new_tokens=12,
    samples=6,
    device="cpu",
    workers=1,
)


def row(number: int, text: str, score: float | None, *, selector: float | None = None, finish: str = "stop") -> dict:
    own = {"id": "p", "sample": number, "completion": text, "score": score, "correct": score == 1}
    return own | {"finish_reason": finish, "selector_score": selector}


ROWS = [
    row(0, "a", 1.0, selector=0.2),
    row(1, "b", 0.0, selector=0.9),
    row(2, "a", 1.0, selector=0.2),
    row(3, "c", 1.0, selector=0.5),
    row(4, "d", 1.0, selector=2.0, finish="length"),
    row(5, "e", None, selector=None),
    row(6, "f", 0.5, selector=-1.0),
    row(7, "", 1.0, selector=3.0),
]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"keep": "correct", "per_problem": 9}, {"a", "c"}),
        ({"keep": "best", "per_problem": 9}, {"a", "c", "f", "b"}),
        ({"keep": "best", "per_problem": 3}, {"a", "c", "f"}),
        ({"keep": "best", "per_problem": 9, "min_score": 0.5}, {"a", "c", "f"}),
        ({"keep": "best", "selector": "reward_model"}, {"b"}),
        ({"keep": "correct", "selector": "reward_model"}, {"c"}),
        ({"keep": "best", "selector": "reward_model", "per_problem": 9, "min_score": 0.3}, {"b", "c"}),
        ({"keep": "correct", "threshold": 0.5, "per_problem": 9}, {"a", "c", "f"}),
        ({"keep": "best", "min_score": 1.5}, set()),
    ],
)
def test_which_are_kept(changes, expected):
    """Different ones, of the highest scores; none that was cut off or has no score."""
    found = choose_best(ROWS, dataclasses.replace(ARGS, **changes))
    assert {one["completion"] for one in found} == expected
    assert len(found) == len(expected)
    scores = [one["score" if "selector" not in changes else "selector_score"] for one in found]
    assert scores == sorted(scores, reverse=True)


def test_ties_are_drawn_by_the_seed():
    """Of equal scores not always the first sample, and with one seed always the same."""
    rows = [row(i, f"text {i}", 1.0) for i in range(8)]
    found = [choose_best(rows, dataclasses.replace(ARGS, seed=seed))[0]["sample"] for seed in range(20)]
    assert len({*found}) > 3
    assert found == [choose_best(rows[::-1], dataclasses.replace(ARGS, seed=seed))[0]["sample"] for seed in range(20)]


def test_turns_become_the_models_messages():
    """Replies of an environment are not among them."""
    turns = [
        {"role": "assistant", "text": "ask"},
        {"role": "user", "text": "told"},
        {"role": "assistant", "text": "so"},
    ]
    line = demonstration(Problem("p", "Find it."), {"completion": "so", "turns": turns}, 1.0)
    assert [message["content"] for message in line["completion"]] == ["ask", "so"]
    assert demonstration(Problem("p", "x"), {"completion": "so"}, 0.5)["completion"] == "so"


def test_a_data_set_for_fine_tuning(tmp_path, capsys):
    """The file is named, read by --sft.data, and the same after a run that was interrupted."""
    options = ["--task-option", "num_train=6", "num_test=2", "--verifier", "regex", "--verifier-option", "pattern=7"]
    argv = ["sample", "--model", "tiny", "--task", "arithmetic", *options, "match=search", "--max-new-tokens", "12"]
    argv += [
        "--samples",
        "6",
        "--per-problem",
        "2",
        "--device",
        "cpu",
        "--out-dir",
        str(tmp_path / "s"),
        "--keep",
        "best",
    ]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    path = tmp_path / "s" / "data.jsonl"
    assert str(path) in printed.replace("\n", "")
    before = path.read_bytes()
    rows = [json.loads(line) for line in before.decode().splitlines()]
    assert {one["id"] for one in rows} <= {f"arithmetic/train/{i}" for i in range(6)}
    held = read_demonstrations(path)
    assert [(problem.prompt, text) for problem, text in held] == [(one["prompt"], one["completion"]) for one in rows]
    answers = [json.loads(line) for line in (tmp_path / "s" / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 36
    for one in rows:
        of_it = [a for a in answers if a["id"] == one["id"] and a["finish_reason"] == "stop"]
        scores = [a["score"] for a in of_it if a["completion"]]
        assert one["score"] in sorted(scores)[-2:]
    # Interrupted in the middle: the answers that were lost are sampled again, the same.
    lines = (tmp_path / "s" / "answers.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "s" / "answers.jsonl").write_text("".join(lines[:20]))
    path.unlink()
    assert main(argv) == 0
    assert path.read_bytes() == before


def test_a_selector_chooses(tmp_path):
    """The selector's score decides which are kept; the verifier measures them."""
    chosen = ("pattern=4", "match=search")
    placed = dataclasses.replace(ARGS, out_dir=tmp_path / "s", keep="best", selector="regex", selector_option=chosen)
    measured = sample(placed)
    rows = [json.loads(line) for line in (tmp_path / "s" / "data.jsonl").read_text().splitlines()]
    assert [one["score"] for one in rows] == [float("4" in one["completion"]) for one in rows]
    assert any(one["score"] for one in rows)
    assert measured["right of the kept"] == pytest.approx(sum("7" in one["completion"] for one in rows) / len(rows))


def test_what_is_measured(tmp_path):
    """The share that the verifier accepts, of all and of the kept ones; keeping the right ones makes it 1."""
    measured = sample(dataclasses.replace(ARGS, out_dir=tmp_path / "s"))
    assert measured["right of the kept"] == 1
    assert 0 < measured["right"] < 1
    low, high = measured["right_ci"]
    assert low <= measured["right"] <= high
    assert measured["kept"] == measured["problems with one"] <= measured["problems"] == 6


def test_nothing_to_keep(tmp_path):
    """One line; the answers stay."""
    none = dataclasses.replace(ARGS, out_dir=tmp_path / "s", verifier_option=("pattern=never", "match=search"))
    with pytest.raises(RunError, match="none of the others is right; sample more, or another model"):
        sample(none)
    assert (tmp_path / "s" / "answers.jsonl").exists()
    assert not (tmp_path / "s" / "data.jsonl").exists()
