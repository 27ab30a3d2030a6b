"""The optional attributes of verifiers: declared once, read in one place, checked."""

from __future__ import annotations

import functools

import pytest

from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Problem, Verifier, correct
from rlvr.verifiers import Runner


def check_plain(problem: Problem, completion: str) -> bool:
    return completion == problem.reference


def test_a_plain_function_has_the_defaults():
    """Isolated, and nothing else."""
    assert VerifierTraits.of(check_plain) == VerifierTraits()
    assert VerifierTraits().isolate
    assert isinstance(check_plain, Verifier)


def test_some_attributes_are_enough():
    """A class declares what it has; None is the same as not having it."""

    class Mine:
        reads_prompt = True
        warm_up = None

        def __call__(self, problem: Problem, completion: str) -> bool:
            return True

        def check_reference(self, reference: object) -> None:
            raise ValueError("never")

    verifier = Mine()
    traits = VerifierTraits.of(verifier)
    assert traits == VerifierTraits(reads_prompt=True, check_reference=verifier.check_reference)


def test_bound_options_and_methods():
    """A partial is isolated as its function is, a method as its object; fast_path would not get the options."""

    def function(problem: Problem, completion: str, *, strict: bool = False) -> bool:
        return True

    function.isolate = False
    function.fast_path = lambda problem, completion: correct()

    class Holder:
        isolate = False

        def check(self, problem: Problem, completion: str) -> bool:
            return True

    bound = VerifierTraits.of(functools.partial(function, strict=True))
    assert (bound.isolate, bound.fast_path) == (False, None)
    assert VerifierTraits.of(function).fast_path is function.fast_path
    assert not VerifierTraits.of(Holder().check).isolate


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("isolate", "no", "isolate is 'no'; expected True or False"),
        ("whole_batch", 1, "whole_batch is 1; expected True or False"),
        ("verify_batch", True, "verify_batch is True; expected a method"),
        ("fast_path", "quick", "fast_path is 'quick'; expected a method"),
        ("components", ["math"], r"components is \['math'\]; expected a mapping of names to verifiers"),
        ("components", {"a": check_plain}, "has components; expected methods problem_for and merge too"),
    ],
)
def test_a_wrong_type_is_told_in_one_line(name, value, expected):
    """Before anything is verified."""
    wrong = type("Mine", (), {"__call__": check_plain, name: value})()
    with pytest.raises(ValueError, match=f"^verifier Mine:? {expected}$"):
        Runner(wrong)
