"""Verdicts of proofs that were judged before, and the bounded memory that holds them."""

from __future__ import annotations

import pickle

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Verdict, correct, error, incorrect, limit, timeout
from rlvr.verifiers.proof.coq import Cache


class Prover:
    """Stands for a prover that gives one verdict, and counts the scripts."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.asked: list[str] = []

    def missing(self) -> str:
        """Nothing is missing."""
        return ""

    def judge(self, statement: object, script: str) -> Verdict:
        """Return the verdict."""
        self.asked.append(script)
        return self.verdict


@pytest.mark.parametrize(
    ("verdict", "times"),
    [(correct(), 1), (incorrect(), 1), (timeout("slow"), 3), (limit("long"), 3), (error("no sandbox"), 3)],
)
def test_only_what_the_prover_has_decided_is_kept(verdict: Verdict, times: int) -> None:
    """A limit or an error may be another one the next time; a statement or a script that differs is another proof."""
    proof = make_verifier("proof")
    proof._prover = prover = Prover(verdict)
    problem = Problem("p", "", {"statement": "True"})
    for _ in range(3):
        assert proof.verify_batch([(problem, "exact I.")] * 2) == [verdict] * 2
    assert len(prover.asked) == times
    proof.verify_batch([(Problem("q", "", {"statement": "True /\\ True"}), "exact I."), (problem, "trivial.")])
    assert len(prover.asked) == times + 2


def test_the_values_asked_for_last_are_kept() -> None:
    """Asking is what counts; a value put again is new."""
    kept: Cache[str, int] = Cache(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert [kept.get(name) for name in "abc"] == [1, None, 3]
    kept.put("a", 4)
    kept.put("d", 5)
    assert [kept.get(name) for name in "acd"] == [4, None, 5]


def test_a_copy_begins_empty() -> None:
    """What crosses to another process is the room."""
    kept: Cache[str, int] = Cache(1)
    kept.put("a", 1)
    copy = pickle.loads(pickle.dumps(kept))
    assert copy.get("a") is None
    copy.put("b", 2)
    copy.put("c", 3)
    assert copy.get("b") is None
    assert kept.get("a") == 1
