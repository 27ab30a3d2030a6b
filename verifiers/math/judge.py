"""What sympy adds to a verdict: it evaluates the gold (`both`: the answer too) and decides what values left open."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

from rlvr.core.types import Verdict, bad_reference, correct, incorrect, limit
from rlvr.verifiers.math.answer import MAX_SHOWN, Reference, readings
from rlvr.verifiers.math.binders import outermost, unevaluated
from rlvr.verifiers.math.compare import Rules
from rlvr.verifiers.math.identity import Undecided
from rlvr.verifiers.math.lex import plain
from rlvr.verifiers.math.quadrature import agrees, value_of
from rlvr.verifiers.math.repeats import Given, refusal
from rlvr.verifiers.math.rounding import literal, rounded
from rlvr.verifiers.math.symbolic import NotInTime, difference_vanishes, evaluated, is_antiderivative
from rlvr.verifiers.math.tree import Node, Num, Rel, TooLarge
from rlvr.verifiers.math.words import normal_text

Symbolic = Literal["off", "gold", "both"]
MAX_DIGITS = 11  # of a decimal that numeric values confirm
MAX_ANSWER = 600  # characters of an answer that sympy is asked about


def is_open(gold: Reference, answer: str, verdict: Verdict, symbolic: Symbolic) -> bool:
    """Whether sympy may change a verdict: an unequal gold (with "both" an answer) to be evaluated, or one left open."""
    if (
        symbolic == "off"
        or verdict.status not in ("incorrect", "limit")
        or len(answer) > MAX_ANSWER
        or not gold.readings
    ):
        return False
    if verdict.status == "limit" or any(map(_is_to_evaluate, gold.readings)):
        return True
    return symbolic == "both" and any(map(unevaluated, _trees(answer)))


def reconsidered(
    gold: Reference,
    answer: str,
    verdict: Verdict,
    rules: Rules,
    symbolic: Symbolic,
    seconds: float | None,
    given: Given = None,
) -> Verdict:
    """Return the verdict after sympy was asked; each call of it takes at most `seconds`."""
    shown = answer if len(answer) <= MAX_SHOWN else answer[:MAX_SHOWN] + "..."
    read = gold.readings
    trees = [tree for tree in _trees(answer) if not any(refusal(read, one, tree, shown, rules, given) for one in read)]
    if not trees:
        return verdict
    if verdict.status == "limit" and not any(map(_is_to_evaluate, (*gold.readings, *trees))):
        found = [difference_vanishes(reading, tree, seconds) for reading in gold.readings for tree in trees]
        if True in found:
            return correct(shown, "equal by sympy")
        return incorrect("not equal by sympy", shown) if found and None not in found else verdict
    problem: ValueError | None = None
    slow = False
    told = [_by_value(reading, tree, rules) for reading in gold.readings for tree in trees]
    if True in told:
        return correct(shown, "equal to 11 digits")
    if told and None not in told:
        return incorrect("not equal in value", shown)
    for reading in gold.readings:
        for tree in trees:
            try:
                if any(rules.same(*pair) for pair in _evaluations(reading, tree, symbolic, seconds)):
                    return correct(shown, "equal once it is evaluated")
                if _is_to_evaluate(reading) and is_antiderivative(reading, tree, seconds):
                    return correct(shown, "an antiderivative")
            except NotInTime as error:
                problem, slow = error, slow or error.part in outermost(reading)
            except (TooLarge, Undecided) as error:
                problem = error
            except (OverflowError, ZeroDivisionError):
                problem = TooLarge("numbers beyond what is evaluated")
    if slow:  # nothing can be said of any answer
        return bad_reference(f"the reference is {problem}")
    return verdict if problem is None else limit(str(problem), shown)


def _by_value(gold: Node, tree: Node, rules: Rules) -> bool | None:
    """Whether an answer has the numeric value of a gold with integrals or series; None where no number tells."""
    if isinstance(gold, Rel):
        gold = gold.sides[-1]
    if isinstance(tree, Rel) or not unevaluated(gold) or unevaluated(tree):
        return None
    found = agrees(gold, tree)
    if found is False and (rules.digits, rules.rel_tol) != (None, None):
        return rounded(Num(Fraction(str(value_of(gold)))), tree, rules)
    written = literal(tree)
    if found and written is not None and written.places:
        few = written.digits <= MAX_DIGITS - 3  # it agrees to more digits than it has: it is the value
        return True if few or MAX_DIGITS >= written.digits >= rules.exact_digits else None
    return found


def _evaluations(gold: Node, tree: Node, symbolic: Symbolic, seconds: float | None) -> Iterator[tuple[Node, Node]]:
    """Yield the pairs of evaluated trees that differ from the pair that was compared."""
    value = evaluated(gold, seconds) if _is_to_evaluate(gold) else gold
    if value != gold:
        yield value, tree
    if symbolic == "both" and unevaluated(tree):
        answer = evaluated(tree, seconds)
        if answer != tree:
            yield value, answer


def _is_to_evaluate(gold: Node) -> bool:
    """Whether a gold is not evaluated; one whose value stands behind the last equality sign is."""
    return unevaluated(gold.sides[-1] if isinstance(gold, Rel) else gold)


def _trees(answer: str) -> tuple[Node, ...]:
    return readings(answer, normal_text(plain(answer)))[0]
