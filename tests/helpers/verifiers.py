"""Problems and small verifiers. Imports no torch: worker processes that run these verifiers start fast."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rlvr.core.registry import register
from rlvr.core.types import Problem, Task, Verdict, correct, error, incorrect
from rlvr.verifiers.math import verify_math

PROBLEMS = [Problem(str(i), f"{i}+{i}=", str(2 * i)) for i in range(40)]


def sums(verifier=None) -> Task:
    """Return a task of 20 sums of two equal numbers, and eight held out."""
    return Task("sums", PROBLEMS[:20], PROBLEMS[20:28], verifier or has_seven)


def has_seven(problem: Problem, completion: str) -> bool:
    """Check that a 7 occurs."""
    return "7" in completion


def share_of_sevens(problem: Problem, completion: str) -> float:
    """Return a partial score below 0.9."""
    return 0.9 * completion.count("7") / max(len(completion), 1)


def seven_with_parts(problem: Problem, completion: str) -> Verdict:
    """Return a verdict with one named part."""
    right = "7" in completion
    verdict = Verdict("correct" if right else "incorrect", float(right))
    return dataclasses.replace(verdict, parts={"seven": float(right)})


def odd_digits(problem: Problem, text: str) -> bool:
    """Check that the number of digits is odd: about half of random text."""
    return sum(c.isdigit() for c in text) % 2 == 1


odd_digits.isolate = False


def odd_digits_or_easy(problem: Problem, text: str) -> bool:
    """Accept every fourth problem, reject every other fourth, and judge the rest by `odd_digits`."""
    kind = int(problem.id) % 4
    return kind == 0 or (kind != 1 and odd_digits(problem, text))


def odd_length(problem: Problem, completion: str) -> bool:
    """Check that the number of characters is odd: about half of random text."""
    return len(completion) % 2 == 1


class OddDigits:
    """Batch verifier: right where the completion has an odd number of digits, about half of random text."""

    def verify(self, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        return [self.judge(problem, text) for problem, text in pairs]

    def judge(self, problem: Problem, text: str) -> Verdict:
        return correct() if odd_digits(problem, text) else incorrect()


class HasSeven(OddDigits):
    """Right where a 7 occurs."""

    def judge(self, problem: Problem, text: str) -> Verdict:
        return correct() if "7" in text else incorrect()


class FailsOnThree(OddDigits):
    """Error verdict on every completion with a 3."""

    def judge(self, problem: Problem, text: str) -> Verdict:
        return error("broken") if "3" in text else super().judge(problem, text)


class NeverRight(OddDigits):
    """No task reward at all."""

    def judge(self, problem: Problem, text: str) -> Verdict:
        return incorrect()


def holds(gold: str, answer: str) -> bool:
    """Whether `math` accepts the boxed answer."""
    return verify_math(gold, f"So \\boxed{{{answer}}}").correct


# Verifiers with a name in the registry. Imports no torch: worker processes that run them start fast.


@register("seven_is_in_it")
def seven_is_in_it(problem, completion):
    """Check that a 7 occurs."""
    return "7" in completion


@register("share_of_sevens")
def registered_share_of_sevens(problem, completion):
    """Return a graded proxy of `seven_is_in_it`."""
    return completion.count("7") / max(len(completion), 1)


@register("share_of_ones")
def share_of_ones(problem, completion):
    """Return a proxy that has nothing to do with `seven_is_in_it`."""
    return completion.count("1") / max(len(completion), 1)
