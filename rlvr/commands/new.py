"""`rlvr new KIND NAME`: a verifier, task pack, environment or recipe of your own that runs at once, with its test."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .arguments import Positional, parse

# Of each kind: the file, its test, and what to run next. NAME stands for the name.
VERIFIER = '''"""The verifier NAME: whether a completion is the reference, whatever the case of its letters."""

from rlvr import Problem, Verdict, register
from rlvr.core.types import correct, incorrect, no_answer


@register("NAME")
def NAME(problem: Problem, completion: str) -> Verdict:
    answer = completion.strip()
    if not answer:
        return no_answer("the completion is empty")
    if answer.casefold() == str(problem.reference).casefold():
        return correct(answer)
    return incorrect(f"{answer!r}, not {problem.reference!r}", answer)
'''
VERIFIER_TEST = """from NAME import NAME

from rlvr import Problem

PROBLEM = Problem("1", "What is the capital of France?", "Paris")


def test_an_answer_is_right_whatever_its_case():
    assert NAME(PROBLEM, " paris ").correct


def test_other_answers_are_wrong_and_no_answer_is_told():
    assert NAME(PROBLEM, "London").status == "incorrect"
    assert NAME(PROBLEM, "").status == "no_answer"
"""
PACK = '''"""The task pack NAME: squares of whole numbers, judged by the verifier math."""

from rlvr import Problem, Task, register_task
from rlvr.tasks.base import BOXED, Generated, build_task


@register_task("NAME")
def NAME(*, first: int = 2, num_train: int = 200, num_test: int = 50) -> Task:
    """Squares of whole numbers, from `first` on."""

    def problem(index: int) -> Problem:
        n = first + index
        return Problem(f"NAME/{n}", f"What is {n} squared? {BOXED}", str(n * n))

    return build_task(
        "NAME",
        train=Generated(num_train, problem),
        test=Generated(range(num_train, num_train + num_test), problem),
        verifier="math",
    )
'''
PACK_TEST = """from NAME import NAME


def test_references_are_right_answers_and_parts_are_apart():
    task = NAME(num_train=20, num_test=5)
    assert (len(task.train), len(task.test)) == (20, 5)
    for problem in task.train:
        assert task.verifier(problem, f"\\\\boxed{{{problem.reference}}}").correct
        assert not task.verifier(problem, "\\\\boxed{0}").correct
    assert not {p.prompt for p in task.train} & {p.prompt for p in task.test}
"""
ENVIRONMENT = '''"""The environment NAME: the model finds a number, and hears "higher" or "lower"."""

from rlvr import Reply, register_environment
from rlvr.core.types import correct, incorrect


@register_environment("NAME")
def NAME(problem, rng, *, tries: int = 7):
    """Find a number from hints. The reference of a problem is the number."""
    said = yield
    for _ in range(tries):
        guess = int(said) if said.strip().isdecimal() else None
        if guess == int(problem.reference):
            return correct(said)
        hint = "?" if guess is None else "higher" if guess < int(problem.reference) else "lower"
        said = yield Reply(hint, role="user", void=guess is None)
    return incorrect(f"not found in {tries} tries")
'''
ENVIRONMENT_TEST = """from random import Random

from NAME import NAME

from rlvr import Problem


def play(*turns):
    world, replies = NAME(Problem("1", "Guess.", "5"), Random(0)), []
    next(world)
    try:
        for said in turns:
            replies.append(world.send(said).text)
    except StopIteration as end:
        return replies, end.value
    return replies, None


def test_hints_lead_to_the_number():
    replies, verdict = play("3", "9", "5")
    assert replies == ["higher", "lower"]
    assert verdict.correct


def test_the_tries_end():
    _, verdict = play(*["1"] * 8)
    assert verdict.status == "incorrect"
"""
RECIPE = '''"""The recipe NAME: the tiny model learns sums. `rlvr train NAME.py --help` lists its settings."""

from dataclasses import replace
from pathlib import Path

from rlvr.recipes.tiny_math import CONFIG as TINY

CONFIG = replace(
    TINY,
    run=replace(TINY.run, steps=10, out_dir=Path("runs/NAME")),
    sft=replace(TINY.sft, steps=500),
)
'''
RECIPE_TEST = """from NAME import CONFIG


def test_the_settings_are_accepted():
    CONFIG.check()
    assert CONFIG.run.out_dir.name == "NAME"
"""
KINDS = {
    "verifier": (VERIFIER, VERIFIER_TEST, "rlvr grade FILE.jsonl --verifier NAME:NAME"),
    "pack": (PACK, PACK_TEST, "rlvr audit NAME:NAME"),
    "environment": (
        ENVIRONMENT,
        ENVIRONMENT_TEST,
        "rlvr train RECIPE --run.environment NAME:NAME --run.task jsonl --run.data FILE.jsonl",
    ),
    "recipe": (RECIPE, RECIPE_TEST, "rlvr train NAME.py"),
}


@dataclass(frozen=True)
class NewArgs:
    """Write NAME.py and test_NAME.py into the current folder: an example that runs, to be changed into your own."""

    kind: Positional[Literal["verifier", "pack", "environment", "recipe"]]
    """What to make."""
    name: Positional[str]
    """Its name, a Python name in lower case."""


def main(argv: Sequence[str]) -> int:
    """Run `rlvr new KIND NAME` and return its exit code."""
    args = parse(NewArgs, argv, prog="rlvr new")
    if not args.name.isidentifier() or keyword.iskeyword(args.name) or args.name != args.name.lower():
        raise ValueError(f"rlvr new: the name {args.name!r}: expected a Python name in lower case, such as my_check")
    file, test, command = (text.replace("NAME", args.name) for text in KINDS[args.kind])
    written = {Path(f"{args.name}.py"): file, Path(f"test_{args.name}.py"): test}
    present = [str(path) for path in written if path.exists()]
    if present:
        raise ValueError(f"rlvr new: {' and '.join(present)} exists; take another name, or delete it")
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    print(f"{' and '.join(map(str, written))} written; next:\n  pytest test_{args.name}.py\n  {command}")
    return 0
