"""One answer against one reference: text, choices, dates and times, then the trees of both in every reading."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from rlvr.core.types import Verdict, correct, incorrect, limit, no_answer, unparseable
from rlvr.verifiers.extract import extract, is_placeholder
from rlvr.verifiers.extract.rejections import denied
from rlvr.verifiers.math.bounds import other_bounds
from rlvr.verifiers.math.choices import choice, lone_choice
from rlvr.verifiers.math.choices import choices as choices_of
from rlvr.verifiers.math.comparatives import compares
from rlvr.verifiers.math.compare import Rules
from rlvr.verifiers.math.families import begins_somewhere, declares_integers
from rlvr.verifiers.math.identity import Undecided
from rlvr.verifiers.math.kinds import kind
from rlvr.verifiers.math.lex import plain
from rlvr.verifiers.math.literals import written_number
from rlvr.verifiers.math.numerals import numeral
from rlvr.verifiers.math.ordered import is_bold_product
from rlvr.verifiers.math.paraphrases import respelled
from rlvr.verifiers.math.parse import parse
from rlvr.verifiers.math.parts import in_parts, parts
from rlvr.verifiers.math.phrases import PHRASES, in_base, odds
from rlvr.verifiers.math.quantities import is_measured
from rlvr.verifiers.math.remarks import opposed
from rlvr.verifiers.math.repeats import REPEATED, Given, refusal
from rlvr.verifiers.math.rounding import literal
from rlvr.verifiers.math.statements import cleaned, is_statement, rewritten
from rlvr.verifiers.math.substances import is_substance, other_elements, same_substances
from rlvr.verifiers.math.texts import MAX_TEXT, said, spelled
from rlvr.verifiers.math.tree import (
    Node,
    ParseError,
    Quantity,
    Sym,
    TooLarge,
    has_kind,
    number,
    symbols,
    walk,
)
from rlvr.verifiers.math.truth import is_formula, same_formulas
from rlvr.verifiers.math.words import calendar_date, clock_time, normal_text, same_time

MAX_REFERENCE = 20_000
MAX_SHOWN = 500
MAX_LONE = 3  # characters of the letter of a choice without its text

_INTEGER = re.compile(r"[+-]?\d{1,18}\Z")
_THOUSANDS_OR_LIST = re.compile(r"\d,\d{3}(?!\d)")
_DECIMAL_COMMA = re.compile(r"-?\d+(?:,|\{,\})\d+\Z")
# A probability or expectation, which only names the answer: P(X = 2) = 5.
_LABELLED = re.compile(
    r"(?:\$|\s|\\[(\[]|\\displaystyle)*"
    r"(?:(?:\\Pr|\\math(?:bb|rm|bf)\{(?:P|E|Pr|Var)\}|Pr|Var|E(?=\s*\[))\s*(?:\\left\s*)?[(\[][^()\[\]]{1,60}"
    r"|P\s*(?:\\left\s*)?\([^()\[\]]{1,30}(?:[=<>|]|\\[a-z]+)[^()\[\]]{1,30})"
    r"(?:\\right\s*)?[)\]](?:\s|\\[!,;: ])*=(?=[^=])(.+)\Z",
    re.DOTALL,
)
_LETTER_UNIT = re.compile(r"\d[~\s]+[A-Za-z]|\d[a-z]{2}(?![A-Za-z])")
# A short text with a digit holds an answer within the bounds, unless it may be a large number or deeply nested.
_SHORT = 40
MAX_DIGITS = 18  # of an integer that is compared as it is written
_HAS_DIGIT = re.compile(r"[0-9]")
_MAY_BE_LARGE = re.compile(r"[\^!]|[0-9.][eE]|binom|choose|[CPA]|(?:[-+(\[{|][^-+(\[{|]*){9}|[^\x00-\x7f]")


class Read(NamedTuple):
    """What a reference says.

    `normal`: the normalised text. `choice`: the letter of a single choice, `choices`: the letters of several; else "".
    `trees`: what the text may mean, none for plain text, and the `problem` with it. `decimal`: one is a decimal.
    `substance`: it may be a chemical formula.
    """

    normal: str
    choice: str
    choices: str
    time: tuple[int, int, int, str] | None
    date: tuple[int | None, int, int] | None
    trees: tuple[Node, ...]
    problem: ValueError | None
    decimal: bool
    substance: bool


@dataclass(frozen=True)
class Reference:
    """A reference, which is read once, when an answer is not its text."""

    text: str

    @functools.cached_property
    def read(self) -> Read:
        """What the text says."""
        normal = normal_text(plain(self.text))
        trees, problem = readings(self.text, normal, gold=True)
        decimal = any((literal(tree) or number(0)).places for tree in trees)
        small = normal.casefold()
        moment = clock_time(small), calendar_date(small)
        choices = "" if is_bold_product(self.text) else choices_of(normal)
        return Read(normal, lone_choice(normal), choices, *moment, trees, problem, decimal, is_substance(self.text))

    @property
    def readings(self) -> tuple[Node, ...]:
        """The trees that the text may mean, none for plain text."""
        return self.read.trees

    @property
    def is_text(self) -> bool:
        """Whether it is compared as text only."""
        return not self.read.trees

    @property
    def choice(self) -> str:
        """The letter of a single choice, else ""."""
        return self.read.choice


@functools.lru_cache(maxsize=8192)
def read_reference(text: str) -> Reference:
    """Read a reference: a bare answer, a text with a box, or a GSM8K solution that ends with `#### 18`.

    Raise ValueError where it holds no answer.
    """
    if len(text) > MAX_REFERENCE:
        raise ValueError(f"a reference of {len(text)} characters; at most {MAX_REFERENCE} are read")
    answer = text
    if "####" in text:
        answer = text.rsplit("####", 1)[1]
    elif "\\boxed" in text or "\\fbox" in text:
        found = extract(text, "strict")
        if found.text is None:
            raise ValueError(f"the reference holds no answer: {found.how}")
        answer = found.text
    reference = Reference(cleaned(answer.strip()))
    if len(reference.text) <= MAX_DIGITS and reference.text.isdigit() and reference.text.isascii():
        return reference
    if len(reference.text) > _SHORT or not _HAS_DIGIT.search(reference.text) or _MAY_BE_LARGE.search(reference.text):
        _check(reference, text)
    return reference


def _check(reference: Reference, text: str) -> None:
    """Raise ValueError where a reference, read from `text`, holds no answer."""
    read = reference.read
    if not read.normal and not read.trees:
        raise ValueError(f"the reference {text[:80]!r} holds no answer")
    if isinstance(read.problem, TooLarge) and not read.trees:
        raise ValueError(f"the reference is too large: {read.problem}")


def readings(
    text: str, normal: str, *, gold: bool = False, decimal_comma: bool = False
) -> tuple[tuple[Node, ...], ValueError | None]:
    """Return the trees of an answer in its readings (1,234 as a number and as a list), and the first error.

    In a gold's brackets commas separate; `decimal_comma`: 3,14 is also 3.14.
    """
    if (value := written_number(text)) is not None:
        return (value,), None
    return _read(text, normal, gold, decimal_comma)


def _read(
    text: str, normal: str, gold: bool = False, decimal_comma: bool = False
) -> tuple[tuple[Node, ...], ValueError | None]:
    """Return what `readings` does, for a text that is not a number alone."""
    fixed = PHRASES.get(normal.casefold()) or in_base(normal) or odds(normal)
    if fixed is None and not normal.isascii():
        fixed = numeral(normal)
    if fixed is not None:
        return (fixed,), None
    if "=" in text and (labelled := _LABELLED.match(text)):
        text = labelled[1].strip()
    if (pieces := parts(text)) and (tree := in_parts(pieces)) is not None:
        return (tree,), None
    styles = ["thousands"]
    if "," in text:
        if _THOUSANDS_OR_LIST.search(text):
            styles = (
                ["list"]
                if gold and text.lstrip("$ ").startswith(("(", "[", "\\{", "\\left"))
                else ["thousands", "list"]
            )
        if decimal_comma and _DECIMAL_COMMA.match(text.strip("$ .")):
            styles.append("decimal")
    trees: list[Node] = []
    problem: ValueError | None = None
    for style in styles:
        try:
            tree = parse(text, style)
        except (ParseError, TooLarge) as error:
            problem = problem or error.with_traceback(None)  # which would keep the parser alive
            # 8 m in \\frac{1}{8 m^4}: the letter is no unit there.
            bare = _without_units(text, style) if isinstance(error, ParseError) else None
            if bare is None:
                continue
            tree = bare
        if tree not in trees:
            trees.append(tree)
        # Letters after a number are a unit, or variables: 3 m.
        if "\\text" not in text and "\\m" not in text and has_kind(tree, Quantity):
            with contextlib.suppress(ParseError, TooLarge):
                trees.append(parse(text, style, units=False))
    if not trees and isinstance(problem, ParseError) and (stated := respelled(text)):
        return readings(stated, normal_text(plain(stated)), gold=gold, decimal_comma=decimal_comma)
    return tuple(trees), problem


def _without_units(text: str, style: str) -> Node | None:
    """The tree with letters after a number as variables; None where no letter may be a unit, or it cannot be read."""
    if not _LETTER_UNIT.search(text):
        return None
    with contextlib.suppress(ParseError, TooLarge):
        return parse(text, style, units=False)
    return None


@functools.lru_cache(maxsize=4096)
def answer_readings(
    text: str, normal: str, *, decimal_comma: bool = False
) -> tuple[tuple[Node, ...], ValueError | None]:
    """Return `readings` of a model's answer, which may be a sentence, or repeat its value in brackets."""
    if (value := written_number(text)) is not None:
        return (value,), None
    if denied(normal) or compares(normal):
        return (), ParseError("the text denies its value")
    if is_statement(text) and (stated := rewritten(text, _is_readable)):
        return readings(stated, normal_text(plain(stated)), decimal_comma=decimal_comma)
    trees, problem = _read(text, normal, decimal_comma=decimal_comma)
    if not trees and isinstance(problem, ParseError) and (stated := rewritten(text, _is_readable)):
        return readings(stated, normal_text(plain(stated)), decimal_comma=decimal_comma)
    return trees, problem


def _is_readable(text: str) -> bool:
    return bool(readings(text, normal_text(plain(text)))[0])


_COUNTED = re.compile(r"\s*[-−]?\\?\$?\d[\d,.]*\s+[A-Za-z]{3}")  # 13 cats, which is no product


def readable(text: str) -> bool:
    """Whether a text is an answer as a whole: mathematics, a choice, a time or a date."""
    if len(text) > MAX_TEXT:
        return False
    normal = normal_text(plain(text))
    if choice(normal)[0] or clock_time(normal.casefold()) or calendar_date(normal.casefold()):
        return True
    trees = answer_readings(text, normal)[0]
    return bool(trees) and not any(map(symbols, trees)) if _COUNTED.match(text) else bool(trees)


# --- the verdict ------------------------------------------------------------------------------------------------------


def judge_answer(gold: Reference, answer: str, rules: Rules, given: Given = None) -> Verdict:
    """Return the verdict on an extracted answer, which must not only repeat an expression of the prompt."""
    if answer == gold.text:
        return correct(answer, "the same text")
    if answer[-1:].isdecimal() and _INTEGER.match(answer) and _INTEGER.match(gold.text):
        if int(answer) == int(gold.text):
            return correct(answer, "the same number")
        return incorrect(f"{answer}, not {gold.text}", answer)
    shown = answer if len(answer) <= MAX_SHOWN else answer[:MAX_SHOWN] + "..."
    short = len(answer) <= MAX_TEXT
    answer, normal, letter, rest = _written(answer) if short else (answer, "", "", "")
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
    verdict = _same_choice(read, letter, rest, normal, shown) or _same_moment(read, normal, shown)
    if verdict is not None:
        return verdict
    if not read.trees:
        if spelled(answer) == spelled(gold.text) or said(read.normal, normal):
            return correct(shown, "the same text")
        return incorrect("a different text", shown)
    trees, problem = answer_readings(answer, normal, decimal_comma=read.decimal)
    if letter and rest and not any(has_kind(tree, Sym) for tree in read.trees):
        trees += readings(rest, rest)[0]
    if read.choice and any(isinstance(tree, Quantity) and tree.unit.words for tree in trees):
        return incorrect("more than a choice", shown)  # C then D, Option C is eliminated
    if not trees:
        if normal and (spelled(answer) == spelled(gold.text) or (normal == read.normal and normal.isalpha())):
            return correct(shown, "the same formula")
        return limit(str(problem), shown) if isinstance(problem, TooLarge) else unparseable(str(problem), shown)
    if begins_somewhere(gold.text) or begins_somewhere(answer):
        rules = dataclasses.replace(rules, shifted=False)
    elif declares_integers(gold.text) or declares_integers(answer):
        rules = dataclasses.replace(rules, declared=True)
    verdict = _by_trees(read.trees, trees, shown, rules, given)
    if verdict.correct:
        other = other_bounds(gold.text, answer, read.trees[0]) or opposed(read.normal, normal)
        return incorrect("under another condition", shown) if other else verdict
    return verdict


@functools.lru_cache(maxsize=4096)
def _written(answer: str) -> tuple[str, str, str, str]:
    """Return an answer cleaned and normalised, and the letter of a choice with the text after it."""
    answer = cleaned(answer)
    normal = normal_text(plain(answer))
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
    """Clock times and dates."""
    same: bool | None = None
    if gold.time is not None and (time := clock_time(normal.casefold())) is not None:
        same = same_time(gold.time, time)
    elif gold.date is not None and (date := calendar_date(normal.casefold())) is not None:
        same = _same_date(gold.date, date)
    if same is None:
        moment = (gold.time and _is_of_clock(gold)) or gold.date
        return incorrect("no date or time", shown) if moment and spelled(normal) != spelled(gold.normal) else None
    return correct(shown, "the same date or time") if same else incorrect("another date or time", shown)


def _is_of_clock(gold: Read) -> bool:
    """Whether 3:30 is a time: it has a half of the day, or is no ratio in lowest terms."""
    assert gold.time is not None
    hour, minute, second, half = gold.time
    return bool(half or second) or math.gcd(hour, minute) > 1 or ":0" in gold.normal


def _same_date(left: tuple[int | None, int, int], right: tuple[int | None, int, int]) -> bool:
    return left[1:] == right[1:] and left[0] in (None, right[0])


def _by_trees(golds: tuple[Node, ...], trees: tuple[Node, ...], shown: str, rules: Rules, given: Given) -> Verdict:
    problem: ValueError | None = None
    if is_measured(golds[0]) and is_measured(trees[0]):
        # 5 N m is not 5 mN, though both may be products of letters.
        trees = (trees[0], *(tree for tree in trees[1:] if any(_letters(tree) == _letters(gold) for gold in golds)))
    for gold in golds:
        for tree in trees:
            try:
                if not rules.same(gold, tree):
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
