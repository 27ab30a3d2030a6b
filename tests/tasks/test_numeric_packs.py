"""Packs whose references are all numbers: their verifier asks for answers that are evaluated, and a run says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.commands.cli import main
from rlvr.commands.task import build_task
from rlvr.config import Config, RunConfig
from rlvr.core.registry import make_task, make_verifier
from rlvr.core.types import PACK, Problem, Task
from rlvr.tasks.base import build_task as made
from rlvr.tasks.base import seal_task
from rlvr.tasks.mixture import mix
from tests.helpers.files import DataSets

SAID = "accepts only evaluated answers: 56, and not 57 - 1 (its option unevaluated=accept takes both)"


def pack(*references: object, **options: object) -> Task:
    """Return a pack with these references, judged by math with these options."""
    problems = [Problem(str(index), f"Question {index}", wanted) for index, wanted in enumerate(references)]
    return made("mine", train=problems[1:], test=problems[:1], verifier_options=options)


def accepts(task: Task, answer: str, reference: str = "56") -> bool:
    """Whether the pack's verifier takes an answer in a box."""
    return task.verifier(Problem("", "How many?", reference, {PACK: "sums"}), f"So \\boxed{{{answer}}}").correct


@pytest.mark.parametrize("references", [("56", "3"), (56, 3.5), ("-1/2", "0.5"), ("#### 1,000", "$5$"), ("12 km", "3")])
def test_answers_to_numbers_are_evaluated(references):
    """Where each reference is a number, arithmetic that is left undone does not count."""
    task = pack(*references)
    assert accepts(task, "56")
    assert not accepts(task, "57-1")
    assert len(task.notes) == 1
    assert SAID in task.notes[0]


@pytest.mark.parametrize(
    "references", [("56", "x^2"), ("56", "(1, 2)"), ("B", "C"), ("56", "10!"), ("56", "\\sqrt{2}")]
)
def test_other_packs_accept_arithmetic(references):
    """One reference that is no number is enough."""
    task = pack(*references)
    assert accepts(task, "57-1")
    assert task.notes == ()


def test_an_option_of_the_verifier_decides():
    """What is said is done, and a run has nothing to say about it."""
    assert accepts(pack("56", "3", unevaluated="accept"), "57-1")
    assert not accepts(pack("x", "y", unevaluated="reject"), "57-1")
    assert pack("56", unevaluated="accept").notes == pack("56", unevaluated="reject").notes == ()


def test_packs_made_in_every_way_are_evaluated_alike(tmp_path: Path, rlvr_data: DataSets):
    """Files, data sets, generated packs, a user's own, a mixture, a part of a verifier, a verifier that a run names."""
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Question {i}", "reference": str(i)}) + "\n" for i in range(9)))
    packs = [
        make_task("jsonl", data=path),
        make_task("gsm8k", data=rlvr_data("gsm8k/test.jsonl").parent),
        make_task("svamp", data=rlvr_data("svamp/test.jsonl")),
        make_task("aime24", data=rlvr_data("aime/aime24.jsonl")),
        make_task("arithmetic"),
        seal_task(Task("own", [Problem("p", "What?", "4")], [], make_verifier("math"))),
        make_task("mixture", packs="sums=arithmetic"),
        pack_judged_by(make_verifier("combine", parts="math,length:0.1")),
        build_task(Config(run=RunConfig(task="arithmetic", verifier="math", verifier_option=("extract=strict",)))),
    ]
    for task in packs:
        assert not accepts(task, "57-1"), task.name
        assert [SAID in note for note in task.notes] == [True], task.name
    assert accepts(make_task("math500", data=rlvr_data("math500/test.jsonl")), "57-1")


def pack_judged_by(verifier: object) -> Task:
    """Return a pack of a user's."""
    return seal_task(Task("own", [Problem("p", "What?", "4")], [], verifier))


def test_a_mixture_keeps_what_each_pack_asks():
    """The pack with formulas takes arithmetic, the one of numbers does not."""
    formulas = [Problem(f"f{index}", f"Formula {index}", wanted) for index, wanted in enumerate(("x^2", "56"))]
    mixed = mix({"sums": (pack("56", "3"), 1), "formulas": (made("formulas", train=formulas, test=[]), 1)})
    judged = {name: Problem("", "How many?", "56", {PACK: name}) for name in ("sums", "formulas")}
    found = {name: mixed.verifier(problem, "\\boxed{57-1}").correct for name, problem in judged.items()}
    assert found == {"sums": False, "formulas": True}
    assert len(mixed.notes) == 1


def test_evaluating_answers_keeps_the_fingerprint():
    """What is chosen for the references adds nothing to it: a run of before goes on."""
    assert make_task("arithmetic", num_train=10).fingerprint == "058edfe1d90f473e"


def test_audit_says_that_answers_are_evaluated(capsys: pytest.CaptureFixture[str]):
    """As do train and eval, at their start."""
    assert main(["audit", "arithmetic", "--max-problems", "5"]) == 0
    assert capsys.readouterr().out.count(SAID) == 1
