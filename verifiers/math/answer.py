"""One answer against one reference: the verdict and its reason.

`judge_answer` tries, in this order: equal texts; numbers; substances, propositions, choices, dates; then the trees of
both texts in every reading. Where rules and numbers leave the answer open (`is_open`), `reconsider` asks sympy.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Literal

from rlvr.core.types import Verdict, bad_reference, correct, incorrect, limit, no_answer, unparseable

from ..extract import is_placeholder
from .compare.comparison import Comparator, agrees_in_digits, is_measured
from .compare.parameters import begins_somewhere, declares_integers, other_bounds
from .grammar.lex import to_latex, written_number
from .symbolic import (
    NotInTime,
    difference_vanishes,
    evaluate_parts,
    is_antiderivative,
)
from .text.formulas import is_formula, other_elements, same_formulas, same_substances
from .text.normal import (
    MAX_TEXT,
    are_opposed,
    calendar_date,
    choice,
    clock_time,
    means_same,
    normal_text,
    same_time,
    unify_spelling,
)
from .text.normal import choices as choices_of
from .text.readings import MAX_LONE, Read, Reference, answer_readings, readings
from .text.repetition import REPEATED, Given, refusal
from .text.sentences import clean
from .values.identity import Undecided
from .values.numeric import literal
from .values.quadrature import agrees, value_of
from .values.tree import (
    Node,
    Num,
    Quantity,
    Rel,
    Sym,
    TooLarge,
    has_kind,
    is_op,
    is_unevaluated,
    outermost,
    symbols,
    walk,
)

Symbolic = Literal["off", "gold", "both"]
MAX_SHOWN = 500  # characters of an answer in a verdict
MAX_CONFIRMED_DIGITS = 11  # of a decimal that numeric values confirm
MAX_ANSWER = 600  # characters of an answer that sympy is asked about


def judge_answer(gold: Reference, answer: str, rules: Comparator, given: Given = None) -> Verdict:
    """Return the verdict on an extracted answer, which must not only repeat an expression of the prompt."""
    if answer == gold.text:
        return correct(answer, "the same text")
    if (value := written_number(answer)) is not None and (wanted := written_number(gold.text)) is not None:
        verdict = _compare((wanted,), (value,), answer, rules, given)
        return incorrect(f"{answer}, not {gold.text}", answer) if verdict.reason == "not equal" else verdict
    shown = _shorten(answer)
    short = len(answer) <= MAX_TEXT
    answer, normal, letter, rest = _normalize(answer) if short else (answer, "", "", "")
    read = gold.read
    if other_elements(read.normal, normal):
        return incorrect("another substance", shown)
    if not read.trees and normal and normal.casefold() == read.normal.casefold():
        return correct(shown, "the same text")
    if short and is_placeholder(normal.casefold()):
        return no_answer(f"{shown!r} is a placeholder, not an answer")
    if read.substance and same_substances(gold.text, answer):
        return correct(shown, "the same substance")
    if is_formula(gold.text) and same_formulas(gold.text, answer):
        return correct(shown, "the same formula")
    if found := _same_choice(read, letter, rest, normal, shown) or _same_moment(read, normal, shown):
        return found
    if not read.trees:
        if unify_spelling(answer) == unify_spelling(gold.text) or means_same(read.normal, normal):
            return correct(shown, "the same text")
        return incorrect("a different text", shown)
    return _judge_trees(gold, answer, normal, rest if letter else "", shown, rules, given)


def _judge_trees(
    gold: Reference, answer: str, normal: str, rest: str, shown: str, rules: Comparator, given: Given
) -> Verdict:
    """Compare all readings of both texts. `rest`: what follows the letter of a choice."""
    read = gold.read
    trees, problem = answer_readings(answer, normal, decimal_comma=read.decimal)
    if rest and not any(has_kind(tree, Sym) for tree in read.trees):
        trees += readings(rest, rest)[0]
    if read.choice and any(isinstance(tree, Quantity) and tree.unit.words for tree in trees):
        return incorrect("more than a choice", shown)  # C then D, Option C is eliminated
    if not trees:
        same = unify_spelling(answer) == unify_spelling(gold.text) or (normal == read.normal and normal.isalpha())
        if normal and same:
            return correct(shown, "the same formula")
        return limit(str(problem), shown) if isinstance(problem, TooLarge) else unparseable(str(problem), shown)
    if begins_somewhere(gold.text) or begins_somewhere(answer):
        rules = dataclasses.replace(rules, shifted=False)
    elif declares_integers(gold.text) or declares_integers(answer):
        rules = dataclasses.replace(rules, declared=True)
    verdict = _compare(read.trees, trees, shown, rules, given)
    if verdict.correct and (other_bounds(gold.text, answer, read.trees[0]) or are_opposed(read.normal, normal)):
        return incorrect("under another condition", shown)
    return verdict


def _compare(golds: tuple[Node, ...], trees: tuple[Node, ...], shown: str, rules: Comparator, given: Given) -> Verdict:
    problem: ValueError | None = None
    if is_measured(golds[0]) and is_measured(trees[0]):
        # 5 N m is not 5 mN, though both may be products of letters.
        trees = (trees[0], *(tree for tree in trees[1:] if any(_letters(tree) == _letters(gold) for gold in golds)))
    for gold in golds:
        for tree in trees:
            try:
                if not rules.matches(gold, tree):
                    continue
                why = refusal(golds, gold, tree, shown, rules, given)
                if why == REPEATED:
                    return no_answer(f"{shown!r} {why}")
                return incorrect(why, shown) if why else correct(shown, "equal")
            except (TooLarge, Undecided) as error:
                problem = error
            except (OverflowError, ZeroDivisionError):
                problem = TooLarge("numbers beyond what is evaluated")
    if problem is not None:
        return limit(str(problem), shown)
    expected, found = kind(golds[0]), kind(trees[0])
    return incorrect("not equal" if expected == found else f"{found}, not {expected}", shown)


def _letters(tree: Node) -> list[str]:
    return [node.name for node in walk(tree) if isinstance(node, Sym)]


def _shorten(answer: str) -> str:
    return answer if len(answer) <= MAX_SHOWN else answer[:MAX_SHOWN] + "..."


@functools.lru_cache(maxsize=4096)
def _normalize(answer: str) -> tuple[str, str, str, str]:
    """Return an answer cleaned and normalised, and the letter of a choice with the text after it."""
    answer = clean(answer)
    normal = normal_text(to_latex(answer))
    return answer, normal, *choice(normal)


def _same_choice(gold: Read, letter: str, rest: str, normal: str, shown: str) -> Verdict | None:
    if gold.choices and (letters := choices_of(normal)):
        # Letters that are not in alphabetical order, or three without anything between them, are an order.
        together = len(letters) > 2 and normal == letters
        if letters == gold.choices or (not together and "".join(sorted(letters)) == gold.choices):
            return correct(shown, "the same choices")
        if sorted(letters) == sorted(gold.choices):
            return incorrect("another order", shown)
    if gold.choice and len(normal) == 1 and "a" <= normal <= "j" and (normal not in "ei" or "(" in gold.normal):
        letter = normal.upper()
    if letter and not gold.choice and gold.normal.startswith("("):
        wanted, text = choice(gold.normal)  # (C) 5
        alone = len(normal) <= MAX_LONE or rest.casefold() == text.casefold()
        return correct(shown, "the same choice") if wanted == letter and text and alone else None
    if not gold.choice or not letter:
        return None
    return correct(shown, "the same choice") if letter == gold.choice else incorrect("another choice", shown)


def _same_moment(gold: Read, normal: str, shown: str) -> Verdict | None:
    """Compare clock times and dates; None where the gold is neither, or the answer has its spelling."""
    small = normal.casefold()
    if gold.time is not None and (time := clock_time(small)) is not None:
        same = same_time(gold.time, time)
    elif gold.date is not None and (date := calendar_date(small)) is not None:
        same = gold.date[1:] == date[1:] and gold.date[0] in (None, date[0])  # a gold may lack the year
    elif (gold.date or _is_clock_time(gold)) and unify_spelling(normal) != unify_spelling(gold.normal):
        return incorrect("no date or time", shown)
    else:
        return None
    return correct(shown, "the same date or time") if same else incorrect("another date or time", shown)


def _is_clock_time(gold: Read) -> bool:
    """Whether 3:30 is a time: it has a half of the day, or is no ratio in lowest terms."""
    if gold.time is None:
        return False
    hour, minute, second, half = gold.time
    return bool(half or second) or math.gcd(hour, minute) > 1 or ":0" in gold.normal


_KINDS = {
    "set": "a set", "such": "a set", "()": "a tuple", "[]": "an interval", "[)": "an interval", "(]": "an interval",
    "union": "an interval",
    "inter": "an interval", "minus": "an interval", "domain": "a set", "both": "an inequality", "matrix": "a matrix",
    "based": "a number in a base", "ratio": "a ratio", "pm": "two values",
}  # fmt: skip


def kind(node: Node) -> str:
    """Return the kind of an answer in words."""
    if isinstance(node, Rel):
        return "an equation" if set(node.ops) <= {"=", "~"} else "an inequality"
    if isinstance(node, Quantity):
        return f"{kind(node.value)} with a unit"
    if is_op(node, "list", "either"):
        return f"{len(node.args)} {'values' if node.head == 'list' else 'alternatives'}"
    if is_op(node, *_KINDS):
        return _KINDS[node.head]
    return "an expression" if symbols(node) else "a number"


# --- what sympy adds --------------------------------------------------------------------------------------------------


def is_open(gold: Reference, answer: str, verdict: Verdict, symbolic: Symbolic) -> bool:
    """Whether sympy may change a verdict: an unequal gold (with "both" an answer) to be evaluated, or one left open."""
    if symbolic == "off" or verdict.status not in ("incorrect", "limit") or len(answer) > MAX_ANSWER:
        return False
    if not gold.readings:
        return False
    if verdict.status == "limit" or any(map(_is_to_evaluate, gold.readings)):
        return True
    return symbolic == "both" and any(map(is_unevaluated, _trees(answer)))


def reconsider(
    gold: Reference,
    answer: str,
    verdict: Verdict,
    rules: Comparator,
    symbolic: Symbolic,
    seconds: float | None,
    given: Given = None,
) -> Verdict:
    """Return the verdict after sympy was asked; each call of it takes at most `seconds`."""
    shown = _shorten(answer)
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
                if any(rules.matches(*pair) for pair in _evaluations(reading, tree, symbolic, seconds)):
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


def _by_value(gold: Node, tree: Node, rules: Comparator) -> bool | None:
    """Whether an answer has the numeric value of a gold with integrals or series; None where no number tells."""
    if isinstance(gold, Rel):
        gold = gold.sides[-1]
    if isinstance(tree, Rel) or not is_unevaluated(gold) or is_unevaluated(tree):
        return None
    found = agrees(gold, tree)
    if found is False and (rules.digits, rules.rel_tol) != (None, None):
        return agrees_in_digits(Num(Fraction(str(value_of(gold)))), tree, rules)
    written = literal(tree)
    if found and written is not None and written.places:
        few = written.digits <= MAX_CONFIRMED_DIGITS - 3  # it agrees to more digits than it has: it is the value
        return True if few or MAX_CONFIRMED_DIGITS >= written.digits >= rules.exact_digits else None
    return found


def _evaluations(gold: Node, tree: Node, symbolic: Symbolic, seconds: float | None) -> Iterator[tuple[Node, Node]]:
    """Yield the pairs of evaluated trees that differ from the pair that was compared."""
    value = evaluate_parts(gold, seconds) if _is_to_evaluate(gold) else gold
    if value != gold:
        yield value, tree
    if symbolic == "both" and is_unevaluated(tree):
        answer = evaluate_parts(tree, seconds)
        if answer != tree:
            yield value, answer


def _is_to_evaluate(gold: Node) -> bool:
    """Whether a gold is not evaluated; one whose value stands behind the last equality sign is."""
    return is_unevaluated(gold.sides[-1] if isinstance(gold, Rel) else gold)


def _trees(answer: str) -> tuple[Node, ...]:
    return readings(answer, normal_text(to_latex(answer)))[0]
