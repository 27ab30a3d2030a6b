"""What a reference says, and the trees that a text may mean.

1,234 is a number and a list, 3 m a length and a product: each reading is compared. An answer in parts, (a) 5 (b) 6,
is a list of labelled values.
"""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

from ...extract import extract
from ...extract.rejections import is_denied
from ..grammar.lex import to_latex, written_number
from ..grammar.meaning import in_part
from ..grammar.parse import parse
from ..grammar.vocabulary import numeral
from ..values.matrices import is_bold_product
from ..values.tree import Node, Num, Op, ParseError, Quantity, TooLarge, Words, has_kind, nodes, symbols
from .formulas import is_substance
from .normal import (
    MAX_SHORT_TEXT,
    MAX_TEXT,
    calendar_date,
    choice,
    clock_time,
    lone_choice,
    normal_text,
)
from .normal import choices as choices_of
from .sentences import PHRASES, clean, compares, in_base, is_statement, odds, respell, rewritten

MAX_PARTS = 8
_OPENING = r"(?:\\text(?:bf)?\s*\{\s*)?(?:[Pp]art\s*)?"
_CLOSING = r"\s*[.:=]?\s*\}?\s*[.:=]?(?:\\[ ,;:]|~|\s)*"
_FIRST = re.compile(rf"\s*\$?\s*{_OPENING}(?:\(\s*(?:a|i|1|A)\s*\)|a\)|a\.\s)")
_SERIES = ("abcdefgh", ("i", "ii", "iii", "iv", "v", "vi"), "123456", "ABCDEF")
_BETWEEN = re.compile(r"(?:\\q?quad(?![A-Za-z])|\\\\|\\[ ,;:]|[\s,;$~]|\band\b|\\text\s*\{\s*(?:and)?\s*\})+\Z")


def parts(text: str) -> list[tuple[str, str]]:
    """Return the labels and the texts of an answer in parts; none where it is another answer."""
    if (")" not in text and "a." not in text) or len(text) > MAX_SHORT_TEXT or not _FIRST.match(text):
        return []
    for series in _SERIES:
        found = _split(text, list(series))
        if len(found) > 1:
            return found
    return []


def _split(text: str, series: list[str]) -> list[tuple[str, str]]:
    """Cut a text at the labels of a series, which must begin it."""
    starts: list[tuple[int, int]] = []
    position = 0
    for label in series[:MAX_PARTS]:
        closed = rf"\(\s*{label}\s*\)|(?<![A-Za-z0-9(\\]){label}\)" if label != "1" else r"\(\s*1\s*\)"
        pattern = re.compile(rf"\$?\s*{_OPENING}(?:{closed}|(?<![A-Za-z0-9(\\]){label}\.(?=\s)){_CLOSING}")
        match = pattern.search(text, position)
        if match is None or (not starts and text[: match.start()].strip(" $")):
            break
        starts.append((match.start(), match.end()))
        position = match.end()
    if len(starts) < 2:
        return []
    ends = [start for start, _ in starts[1:]] + [len(text)]
    pieces = [_BETWEEN.sub("", text[inside:end]).strip() for (_, inside), end in zip(starts, ends, strict=True)]
    return list(zip(series, pieces, strict=False)) if all(pieces) else []


def in_parts(pieces: list[tuple[str, str]]) -> Node | None:
    """Return the tree of an answer in parts; words where one is text, None where it is too large."""
    values: list[Node] = []
    for _, piece in pieces:
        try:
            values.append(parse(piece))
        except ParseError:
            values.append(Words(normal_text(to_latex(piece)).casefold()))
        except TooLarge:
            return None
    return Op("list", tuple(in_part(label, value) for (label, _), value in zip(pieces, values, strict=True)))


MAX_REFERENCE = 20_000
MAX_LONE = 3  # characters of the letter of a choice without its text
_THOUSANDS_OR_LIST = re.compile(r"\d,\d{3}(?!\d)")
# One number beside no separator, or numbers between semicolons: 3,5 cm; (3,5; 2).
_DECIMAL_COMMA = re.compile(r"[^,;()\[\]]*\d(?:,|\{,\})\d[^,;()\[\]]*\Z|(?=.*;)(?:[^,]|(?<=\d),(?=\d)|\{,\})*\Z")
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
    """A reference as it was read.

    normal: the normalised text. choice: the letter of a single choice, choices: the letters of several; else "".
    trees: what the text may mean, none for plain text. problem: why it could not be read. decimal: whether a tree is a
    decimal. substance: whether it may be a chemical formula.
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
        """Read the text: letters of choices, dates, trees."""
        normal = normal_text(to_latex(self.text))
        trees, problem = readings(self.text, normal, gold=True)
        decimal = any(type(part) is Num and part.places for tree in trees for part in nodes(tree))
        small = normal.casefold()
        moment = clock_time(small), calendar_date(small)
        choices = "" if is_bold_product(self.text) else choices_of(normal)
        return Read(normal, lone_choice(normal), choices, *moment, trees, problem, decimal, is_substance(self.text))

    @property
    def readings(self) -> tuple[Node, ...]:
        """The trees that the text may mean, none for plain text."""
        return self.read.trees


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
    reference = Reference(clean(answer.strip()))
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
    if not trees and isinstance(problem, ParseError) and (stated := respell(text)):
        return readings(stated, normal_text(to_latex(stated)), gold=gold, decimal_comma=decimal_comma)
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
    if is_denied(normal) or compares(normal):
        return (), ParseError("the text denies its value")
    if is_statement(text) and (stated := rewritten(text, _is_readable)):
        return readings(stated, normal_text(to_latex(stated)), decimal_comma=decimal_comma)
    trees, problem = _read(text, normal, decimal_comma=decimal_comma)
    if not trees and isinstance(problem, ParseError) and (stated := rewritten(text, _is_readable)):
        return readings(stated, normal_text(to_latex(stated)), decimal_comma=decimal_comma)
    return trees, problem


def _is_readable(text: str) -> bool:
    return bool(readings(text, normal_text(to_latex(text)))[0])


_COUNTED = re.compile(r"\s*[-−]?\\?\$?\d[\d,.]*\s+[A-Za-z]{3}")  # 13 cats, which is no product


def readable(text: str) -> bool:
    """Whether a text is an answer as a whole: mathematics, a choice, a time or a date."""
    if len(text) > MAX_TEXT:
        return False
    normal = normal_text(to_latex(text))
    if choice(normal)[0] or clock_time(normal.casefold()) or calendar_date(normal.casefold()):
        return True
    trees = answer_readings(text, normal)[0]
    return bool(trees) and not any(map(symbols, trees)) if _COUNTED.match(text) else bool(trees)
