"""The checks of IFBench: for each a response that follows the instruction, and one that nearly does."""

from __future__ import annotations

import pytest

from rlvr.registry import make_verifier
from rlvr.types import Problem, Status
from rlvr.verifiers.ifbench_checks import CHECKS

FIVE = {f"keyword{i + 1}": word for i, word in enumerate(("meridian", "gossamer", "eclipse", "threshold", "cascade"))}
TIMES = "meridian " + "gossamer " * 2 + "eclipse " * 3 + "Threshold " * 5 + "cascade " * 7
PALINDROMES = "level radar civic rotor kayak madam refer tenet stats, Solos"
CASES = [
    ("count:word_count_range", {"min_words": 3, "max_words": 4}, "one two-three", "one two"),
    ("count:unique_word_count", {"N": 3}, "Here, there, everywhere; here.", "Here, there; here there"),
    ("count:numbers", {"N": 2}, "From 1,000 to 2.5 at last", "From 1 to 2 to 3"),
    ("count:keywords_multiple", FIVE, TIMES, f"{TIMES} cascade"),
    ("words:palindrome", {}, PALINDROMES, PALINDROMES.replace("Solos", "noon")),
    ("words:prime_lengths", {}, "We go, yes: hello", "We go four"),
    ("words:no_consecutive", {}, "All bees can dance", "All bees buzz"),
    ("format:newline", {}, "one\ntwo\n\nthree.", "one\ntwo three"),
    ("format:no_whitespace", {}, "NeonNow,Glow", "Neon Now"),
]


@pytest.mark.parametrize(("name", "parameters", "good", "bad"), CASES)
def test_checks(name: str, parameters: dict[str, object], good: str, bad: str) -> None:
    """The instruction is followed, or it is not."""
    problem = Problem("p", "", {"instruction_id_list": [name], "kwargs": [parameters]})
    verify = make_verifier("instructions")
    assert [verify(problem, text).status for text in (good, bad)] == [Status.CORRECT, Status.INCORRECT]


def test_every_check_has_a_case() -> None:
    """None is without one."""
    assert {name for name, *_ in CASES} == set(CHECKS)
