"""Small theorems for the verifier `proof`, in Coq, each with a short proof that is known.

Chains of implications, conjunctions and disjunctions of some letters, and numbers that exist. In
`rules` a hypothesis is named after the letter that follows from it and the one that it needs; the goal is one or two:

    forall A B C : Prop, A -> (A -> B) -> (B -> C) -> C         intros A B C h0 h1 h2. apply h2. apply h1. exact h0.
    exists n : nat, n + 3 = 8                                   exists 5. reflexivity.
    forall (A .. H : Prop) (cg : G -> C) (g : G), C /\\ G       intros. split. apply cg. apply g. apply g.

Of the demonstrations a share, `sloppy`, is the proof of another theorem of the same kind, which seldom fits;
`slip` is the probability that a step of a proof of `rules` takes another hypothesis of the theorem.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task

from ..base import Demonstration, check_probabilities, generate_task

Theorem = tuple[str, str, str]  # kind, statement, proof
_LETTERS = "ABCDEFGHPQRSTUVWXYZ"
_FEW = "ABCDEFGH"


def _chain(stream: random.Random) -> tuple[str, str]:
    names = stream.sample(_LETTERS, stream.randint(2, 5))
    steps = list(range(1, len(names)))
    stream.shuffle(steps)  # the hypothesis h<i> leads to the letter at the place order[i]
    rules = " -> ".join(f"({names[step - 1]} -> {names[step]})" for step in steps)
    letters = " ".join(names)
    hypotheses = " ".join(f"h{index}" for index in range(len(names)))
    back = " ".join(f"apply h{steps.index(step) + 1}." for step in range(len(names) - 1, 0, -1))
    statement = f"forall {letters} : Prop, {names[0]} -> {rules} -> {names[-1]}"
    return statement, f"intros {letters} {hypotheses}. {back} exact h0."


def _both(stream: random.Random) -> tuple[str, str]:
    first, second, third = stream.sample(_LETTERS, 3)
    wanted = [first, second, third]
    stream.shuffle(wanted)
    names = {first: "h0", second: "h1", third: "h2"}
    given = " /\\ ".join((first, second, third))
    statement = f"forall {first} {second} {third} : Prop, {given} -> " + " /\\ ".join(wanted)
    a, b, c = (names[letter] for letter in wanted)
    proof = f"intros {first} {second} {third} [h0 [h1 h2]]. split. exact {a}. split. exact {b}. exact {c}."
    return statement, proof


def _either(stream: random.Random) -> tuple[str, str]:
    names = stream.sample(_LETTERS, 3)
    given = stream.choice(names)
    where = names.index(given)
    way = ("left.", "right. left.", "right. right.")[where]
    letters = " ".join(names)
    statement = f"forall {letters} : Prop, {given} -> " + " \\/ ".join(names)
    return statement, f"intros {letters} h0. {way} exact h0."


def _exists(stream: random.Random) -> tuple[str, str]:
    n, a = stream.randint(0, 60), stream.randint(1, 60)
    return f"exists n : nat, n + {a} = {n + a}", f"exists {n}. reflexivity."


def _rules(stream: random.Random) -> tuple[str, str]:
    letters = stream.sample(_FEW, stream.randint(4, 7))
    # A letter is a fact, or follows from a letter that comes before it.
    premises = {
        letter: stream.choice(letters[:place]) if place and stream.random() < 0.8 else ""
        for place, letter in enumerate(letters)
    }
    given = [
        f"({(letter + premise).lower()} : {premise and premise + ' -> '}{letter})"
        for letter, premise in premises.items()
    ]
    stream.shuffle(given)
    goals = stream.sample(letters[1:], 2) if stream.random() < 0.4 else letters[-1:]
    statement = f"forall ({' '.join(_FEW)} : Prop) {' '.join(given)}, " + " /\\ ".join(goals)
    return statement, _apply_back(statement, stream, 0.0)


def _apply_back(statement: str, stream: random.Random, slip: float) -> str:
    """Return a proof of a theorem of `rules`, from each goal back to a fact.

    With probability `slip` a step takes another hypothesis, and the next ones go on from its premise.
    """
    given = re.findall(r"\((\w+) : (?:(\w) -> )?(\w)\)", statement)
    names = {letter: (name, premise) for name, premise, letter in given}
    goals = statement.rpartition(", ")[2].split(" /\\ ")
    steps = ["split."] if len(goals) > 1 else []
    for goal in goals:
        for _ in names:  # no more, as a slip may lead in a circle
            if stream.random() < slip:
                goal = stream.choice([letter for letter in names if letter != goal])
            name, goal = names[goal]
            steps.append(f"apply {name}.")
            if not goal:
                break
    return " ".join(["intros.", *steps])


KINDS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "chain": _chain,
    "both": _both,
    "either": _either,
    "exists": _exists,
    "rules": _rules,
}


def _problem(name: str, theorem: Theorem, stream: random.Random) -> Problem:
    kind, statement, _ = theorem
    return Problem(name, f"Theorem goal : {statement}.\nProof.\n", {"statement": statement}, info={"kind": kind})


@register_task("propositions")
def propositions(
    *,
    seed: int = 0,
    num_train: int = 1024,
    num_test: int = 128,
    num_demonstrations: int = 4096,
    kinds: tuple[str, ...] = ("chain", "both", "either", "exists"),
    sloppy: float = 0.0,
    slip: float = 0.0,
) -> Task:
    """Small theorems in Coq (kinds: chain, both, either, exists, rules), with proofs as demonstrations."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ValueError(f"task 'propositions', kinds {','.join(kinds)!r}: expected some of {', '.join(KINDS)}")
    check_probabilities("propositions", sloppy=sloppy, slip=slip)

    def propose(stream: random.Random) -> tuple[str, Theorem]:
        kind = stream.choice(kinds)
        statement, proof = KINDS[kind](stream)
        return statement, (kind, statement, proof)

    def demonstrate(name: str, theorem: Theorem, stream: random.Random) -> Demonstration:
        kind, statement, own = theorem
        proof = own if stream.random() >= sloppy else KINDS[kind](stream)[1]
        return _problem(name, theorem, stream), _apply_back(
            statement, stream, slip
        ) if slip and kind == "rules" else proof

    sizes = num_train, num_test, num_demonstrations
    return generate_task("propositions", propose, _problem, demonstrate, seed=seed, sizes=sizes, verifier="proof")
