"""One answer against one reference: text, choices, dates and times, then the trees of both in every reading."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from rlvr.types import Verdict, correct, incorrect, limit, no_answer, unparseable
from rlvr.verifiers.extract import extract, is_placeholder
from rlvr.verifiers.extract.rejected import denied
from rlvr.verifiers.math.compare import Rules
from rlvr.verifiers.math.identity import Undecided
from rlvr.verifiers.math.lex import plain
from rlvr.verifiers.math.parse import parse
from rlvr.verifiers.math.rounding import literal
from rlvr.verifiers.math.statements import cleaned, is_statement, rewritten
from rlvr.verifiers.math.tree import Node, Op, ParseError, Quantity, Rel, Sym, TooLarge, Words, number, symbols, walk
from rlvr.verifiers.math.words import NUMBER_WORDS, calendar_date, clock_time, normal_text, same_time

T = TypeVar("T")

MAX_REFERENCE = 20_000
MAX_TEXT = 4_000  # longer answers are not compared as text
MAX_SHOWN = 500

_INTEGER = re.compile(r"[+-]?\d{1,18}\Z")
_THOUSANDS_OR_LIST = re.compile(r"\d,\d{3}(?!\d)")
_DECIMAL_COMMA = re.compile(r"-?\d+(?:,|\{,\})\d+\Z")
_BASED = re.compile(r"\(?([0-9A-F]+)\)?(?:_|\(?(?:in)?base)(\d{1,2}|[a-z]{3,9})\)?\Z", re.IGNORECASE)
# A limit, sum or integral, which are not evaluated: its stated value counts.
_UNEVALUATED = re.compile(r"[^=]{0,40}\\(?:lim|sum|prod|int|iint|oint|sup|inf)(?![A-Za-z])")
_TOP_LEVEL = re.compile(r"\\(?:q?quad|text|mbox|mathrm|begin)(?![A-Za-z])|\\.|[{}()\[\]=,;]", re.DOTALL)
# A probability or expectation, which only names the answer: P(X = 2) = 5.
_LABELLED = re.compile(
    r"(?:\$|\s|\\[(\[]|\\displaystyle)*"
    r"(?:(?:\\Pr|\\math(?:bb|rm|bf)\{(?:P|E|Pr|Var)\}|Pr|Var|E(?=\s*\[))\s*(?:\\left\s*)?[(\[][^()\[\]]{1,60}"
    r"|P\s*(?:\\left\s*)?\([^()\[\]]{1,30}(?:[=<>|]|\\[a-z]+)[^()\[\]]{1,30})"
    r"(?:\\right\s*)?[)\]](?:\s|\\[!,;: ])*=(?=[^=])(.+)\Z",
    re.DOTALL,
)
_LETTER_UNIT = re.compile(r"\d[~\s]+[A-Za-z]")
_NAME_AND_FACTOR = re.compile(r"[A-Za-z]_|[^_]*_(?:\{[^{}]*\}|\w)[^\s)}]")  # A_{16}, c_1 3
_BASE_MARKS = str.maketrans("", "", " ,-{}")

_NONE, _REALS = Op("set", ()), Op("domain", (Words("reals"),))
PHRASES: dict[str, Node] = {
    **dict.fromkeys(("no solution", "no solutions", "no real solution", "no real solutions", "empty set"), _NONE),
    **dict.fromkeys(("there is no solution", "there are no solutions"), _NONE),
    **dict.fromkeys(("all real numbers", "all reals", "any real number", "every real number", "all real x"), _REALS),
}


class Reference(NamedTuple):
    """A reference, read once.

    `normal`: the normalised text. `choice`: the letter of a single choice, `choices`: the letters of several; else "".
    `readings`: the trees that the text may mean, none for plain text.
    """

    text: str
    normal: str
    choice: str
    choices: str
    readings: tuple[Node, ...]

    @property
    def is_text(self) -> bool:
        """Whether it is compared as text only."""
        return not self.readings


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
    answer = cleaned(answer.strip())
    normal = normal_text(plain(answer))
    trees, error = readings(answer, normal, gold=True)
    if not normal and not trees:
        raise ValueError(f"the reference {text[:80]!r} holds no answer")
    if isinstance(error, TooLarge) and not trees:
        raise ValueError(f"the reference is too large: {error}")
    return Reference(answer, normal, _lone_choice(normal), _choices(normal), trees)


def readings(
    text: str, normal: str, *, gold: bool = False, decimal_comma: bool = False
) -> tuple[tuple[Node, ...], ValueError | None]:
    """Return the trees of an answer in its readings (1,234 as a number and as a list), and the first error.

    In a gold's brackets commas separate; `decimal_comma`: 3,14 is also 3.14.
    """
    fixed = PHRASES.get(normal.casefold()) or _in_base(normal)
    if fixed is not None:
        return (fixed,), None
    if "=" in text and (labelled := _LABELLED.match(text)):
        text = labelled[1].strip()
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
            problem = problem or error
            # 8 m in \\frac{1}{8 m^4}: the letter is no unit there.
            bare = _without_units(text, style) if isinstance(error, ParseError) else None
            if bare is None:
                continue
            tree = bare
        if tree not in trees:
            trees.append(tree)
        # Letters after a number are a unit, or variables: 3 m.
        if "\\text" not in text and "\\m" not in text and any(isinstance(node, Quantity) for node in walk(tree)):
            with contextlib.suppress(ParseError, TooLarge):
                trees.append(parse(text, style, units=False))
    if not trees and isinstance(problem, ParseError) and (value := _value_of_unevaluated(text)):
        return readings(value, normal_text(plain(value)), gold=gold, decimal_comma=decimal_comma)
    return tuple(trees), problem


def _without_units(text: str, style: str) -> Node | None:
    """The tree with letters after a number as variables; None where no letter may be a unit, or it cannot be read."""
    if not _LETTER_UNIT.search(text):
        return None
    with contextlib.suppress(ParseError, TooLarge):
        return parse(text, style, units=False)
    return None


def _value_of_unevaluated(text: str) -> str:
    """Return 5 of `\\lim a_n = 5`; "" for `\\sum a_n x^n, R = 1`, where the sum has a neighbour."""
    if len(text) > MAX_TEXT or not _UNEVALUATED.match(text):
        return ""
    depth, value = 0, -1
    for match in _TOP_LEVEL.finditer(text):
        sign = match.group()
        if sign in "{([":
            depth += 1
        elif sign in "})]":
            depth -= 1
        elif depth == 0 and sign == "=":
            value = match.end()
        elif (depth == 0 and sign in ",;") or (len(sign) > 2 and value < 0):
            return ""
    return text[value:] if value >= 0 else ""


def answer_readings(
    text: str, normal: str, *, decimal_comma: bool = False
) -> tuple[tuple[Node, ...], ValueError | None]:
    """Return `readings` of a model's answer, which may be a sentence, or repeat its value in brackets."""
    if denied(normal):
        return (), ParseError("the text denies its value")
    if is_statement(text) and (stated := rewritten(text, _is_readable)):
        return readings(stated, normal_text(plain(stated)), decimal_comma=decimal_comma)
    trees, problem = readings(text, normal, decimal_comma=decimal_comma)
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
    if _choice(normal)[0] or clock_time(normal.casefold()) or calendar_date(normal.casefold()):
        return True
    trees = answer_readings(text, normal)[0]
    return bool(trees) and not any(map(symbols, trees)) if _COUNTED.match(text) else bool(trees)


def _in_base(normal: str) -> Node | None:
    """A number in a base whose digits may be letters: 1A_{16}, 52 (base 8)."""
    if "_" not in normal and "base" not in normal:
        return None
    if "_" in normal and "-" in normal:
        return None  # c_1 - 3
    match = _BASED.match(normal.translate(_BASE_MARKS))
    if match is None or ("_" in normal and _NAME_AND_FACTOR.match(normal)):
        return None
    digits, base = match[1].upper().lstrip("0") or "0", match[2].lower()
    radix = int(base) if base.isdigit() else NUMBER_WORDS.get(base, 0)
    if not 2 <= radix <= 36 or any(int(digit, 36) >= radix for digit in digits):
        return None
    return Op("based", (Words(digits), number(radix)))


# --- choices ----------------------------------------------------------------------------------------------------------

# (A) | A. A: A) | a. a) | A  -- and what follows the letter.
_CHOICE = re.compile(
    r"(?:option|choice|answer)?\s*(?:\{?\(\s*([A-Ja-j])\s*\)\}?|\{?([A-Ja-j])[.:)](?:\}|(?=\s|\Z))|([A-J])\Z)\s*[.:]?\s*(.*)\Z",
    re.DOTALL,
)
_OTHER_CHOICE = re.compile(
    r"\A(?:[+*/^_=!,;&|]|\bthrough\b)|\([A-Ja-j]\)|\b[B-J]\b[.)]|\b(?:or|and|not)\b"
    r"|(?<![A-Za-z])[A-J]\s*(?:[,;/&|]|\bto\b)\s*[A-J](?![A-Za-z])"
    r"|\A(?:all|any|both|each|either|every|none|neither)\b(?=[^.]*\b(?:of\b|[A-J]\b|above\b|options\b|them\b))"
)


def _choice(normal: str) -> tuple[str, str]:
    """Return the letter of a choice and the text after it; ("", "") where the text is not a choice."""
    match = _CHOICE.match(normal) if len(normal) < 400 else None
    if match is None or _OTHER_CHOICE.search(match[4]):
        return "", ""
    return (match[1] or match[2] or match[3]).upper(), match[4]


def _lone_choice(normal: str) -> str:
    letter, rest = _choice(normal)
    return "" if rest else letter


_CHOICES = re.compile(r"\(?[A-H]\)?(?:\s*(?:,|;|&|and)*\s*\(?[A-H]\)?){1,7}\Z")


def _choices(normal: str) -> str:
    """Return the letters of several choices in order: ABD for "A, B and D"; "" where the text is none."""
    if len(normal) > 60 or not _CHOICES.match(normal):
        return ""
    letters = "".join(c for c in normal if c in "ABCDEFGH")
    return "".join(sorted(letters)) if len(set(letters)) == len(letters) else ""


# --- text -------------------------------------------------------------------------------------------------------------

_SPACING = re.compile(
    r"(?:\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])|(?<!\\)\\[,;:! ]|[~$\s])+(?P<digit>(?=\d))?"
)
_SPELLINGS = (
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\[lc]?dots[bc]?(?![A-Za-z])|\.\.\."), r"\\dots"),
    (re.compile(r"\^(?:\\prime(?![A-Za-z])|\{\s*\\prime\s*\})"), "'"),
    (re.compile(r"(?<=[\^_])\{\s*(\w|\\[A-Za-z]+)\s*\}"), r"\1"),
)


def spelled(text: str) -> str:
    """Return a formula without what never changes its meaning: spaces, `\\left`, braces of one character."""
    if len(text) > MAX_TEXT:
        return text
    text = plain(text)
    for pattern, form in _SPELLINGS:
        text = pattern.sub(form, text)
    return _SPACING.sub(_space, text).rstrip(".")


def _space(match: re.Match[str]) -> str:
    """What stays of spacing: a space between digits."""
    before = match.string[match.start() - 1 : match.start()]
    return " " if match["digit"] is not None and before.isdigit() else ""


_NAMES_OF_IT = frozenset("the it this series integral sequence sum limit therefore so thus hence".split())


def _said(gold: str, normal: str) -> bool:
    """Whether a sentence says the gold, one word, of what the question asks about: "The series diverges"."""
    words = normal.casefold().split()
    return gold.isalpha() and gold.casefold() in words and set(words) - {gold.casefold()} <= _NAMES_OF_IT


# --- the verdict ------------------------------------------------------------------------------------------------------


def judge_answer(gold: Reference, answer: str, rules: Rules) -> Verdict:
    """Return the verdict on an extracted answer."""
    if answer == gold.text:
        return correct(answer, "the same text")
    if _INTEGER.match(answer) and _INTEGER.match(gold.text):
        if int(answer) == int(gold.text):
            return correct(answer, "the same number")
        return incorrect(f"{answer}, not {gold.text}", answer)
    shown = answer if len(answer) <= MAX_SHOWN else answer[:MAX_SHOWN] + "..."
    answer = cleaned(answer) if len(answer) <= MAX_TEXT else answer
    normal = normal_text(plain(answer)) if len(answer) <= MAX_TEXT else ""
    if gold.is_text and normal and normal.casefold() == gold.normal.casefold():
        return correct(shown, "the same text")
    if len(answer) <= MAX_TEXT and is_placeholder(normal.casefold()):
        return no_answer(f"{shown!r} is a placeholder, not an answer")
    letter, rest = _choice(normal)
    verdict = _same_choice(gold, letter, normal, shown) or _same_moment(gold, normal, shown)
    if verdict is not None:
        return verdict
    if gold.is_text:
        if spelled(answer) == spelled(gold.text) or _said(gold.normal, normal):
            return correct(shown, "the same text")
        return incorrect("a different text", shown)
    decimal = any((literal(tree) or number(0)).places for tree in gold.readings)
    trees, problem = answer_readings(answer, normal, decimal_comma=decimal)
    if letter and rest and not any(isinstance(node, Sym) for tree in gold.readings for node in walk(tree)):
        trees += readings(rest, rest)[0]
    if not trees:
        if normal and spelled(answer) == spelled(gold.text):
            return correct(shown, "the same formula")
        return limit(str(problem), shown) if isinstance(problem, TooLarge) else unparseable(str(problem), shown)
    return _by_trees(gold.readings, trees, shown, rules)


def _same_choice(gold: Reference, letter: str, normal: str, shown: str) -> Verdict | None:
    if gold.choices and _choices(normal) == gold.choices:
        return correct(shown, "the same choices")
    if gold.choice and len(normal) == 1 and "a" <= normal <= "j" and (normal not in "ei" or "(" in gold.normal):
        letter = normal.upper()
    if not gold.choice or not letter:
        return None
    return correct(shown, "the same choice") if letter == gold.choice else incorrect("another choice", shown)


def _same_moment(gold: Reference, normal: str, shown: str) -> Verdict | None:
    """Clock times and dates."""
    same = _compare(clock_time, same_time, gold.normal, normal)
    if same is None:
        same = _compare(calendar_date, _same_date, gold.normal, normal)
    if same is None:
        return None
    return correct(shown, "the same date or time") if same else incorrect("another date or time", shown)


def _compare(read: Callable[[str], T | None], equal: Callable[[T, T], bool], gold: str, answer: str) -> bool | None:
    """Whether both texts, read by `read`, are equal; None where one cannot be read."""
    left = read(gold.casefold())
    right = read(answer.casefold()) if left is not None else None
    return None if left is None or right is None else equal(left, right)


def _same_date(left: tuple[int | None, int, int], right: tuple[int | None, int, int]) -> bool:
    return left[1:] == right[1:] and left[0] in (None, right[0])


def _by_trees(golds: tuple[Node, ...], trees: tuple[Node, ...], shown: str, rules: Rules) -> Verdict:
    problem: ValueError | None = None
    for gold in golds:
        for tree in trees:
            try:
                if rules.same(gold, tree):
                    return correct(shown, "equal")
            except (TooLarge, Undecided) as error:
                problem = error
            except (OverflowError, ZeroDivisionError):
                problem = TooLarge("numbers beyond what is evaluated")
    if problem is not None:
        return limit(str(problem), shown)
    expected, found = kind(golds[0]), kind(trees[0])
    return incorrect("not equal" if expected == found else f"{found}, not {expected}", shown)


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
    if isinstance(node, Op) and node.head in ("list", "either"):
        return f"{len(node.args)} {'values' if node.head == 'list' else 'alternatives'}"
    if isinstance(node, Op) and node.head in _KINDS:
        return _KINDS[node.head]
    return "an expression" if symbols(node) else "a number"
