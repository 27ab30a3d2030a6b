r"""The verifier `countdown`: an expression that reaches a target with given numbers.

Grammar (by precedence; nothing is evaluated as text):
    sum = product (("+" | "-") product)*        product = factor (("*" | "/") factor)*
    factor = "-" factor | number | "(" sum ")" | \frac{sum}{sum}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

from rlvr.core.registry import register
from rlvr.core.types import Problem, Verdict, bad_reference, correct, incorrect, limit, unparseable
from rlvr.verifiers.extract.answer import excerpt, read_answer, without_answer
from rlvr.verifiers.runner.base import check_choices

MAX_CHARS = 1000
MAX_DEPTH = 64
MAX_DIGITS = 30

_SPELLINGS = {
    **dict.fromkeys(("\\times", "\\cdot", "\\ast", "×", "·", "∗", "⋅"), "*"),
    **dict.fromkeys(("\\div", "÷", "∕"), "/"),
    **dict.fromkeys(("−", "–"), "-"),
    **dict.fromkeys(("\\dfrac", "\\tfrac"), "\\frac"),
    **dict.fromkeys(("\\left", "\\right", "\\,", "\\;", "\\ ", "\\!", "\\(", "\\)", "\\[", "\\]", "$", "`"), " "),
}  # fmt: skip
_SPELLING = re.compile(
    "|".join(
        sorted((re.escape(s) + r"(?![A-Za-z])" if s[-1].isalpha() else re.escape(s) for s in _SPELLINGS), reverse=True)
    )
)
_TOKEN = re.compile(r"\s*(\\frac|\d+(?:\.\d+)?|[-+*/(){}=])", re.ASCII)


class _ParseError(Exception):
    """The text is not an expression."""


class _ExpressionTooLarge(Exception):
    """The expression exceeds a bound."""


@register("countdown")
@dataclass(frozen=True, kw_only=True)
class CountdownVerifier:
    r"""Whether an expression with the given numbers equals the target.

    The reference is {"numbers": [...], "target": n}. The expression is read from a box, an answer tag, after "the
    answer is", or else from the last line; "= target" may follow it. Exact arithmetic with + - * / and
    brackets. use: each number is used exactly once, or at most once.
    """

    use: Literal["once", "at_most_once"] = "once"

    isolate: ClassVar[bool] = False  # bounded work

    def __post_init__(self) -> None:
        check_choices(self)

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        try:
            numbers, target = _puzzle(problem.reference)
        except ValueError as error:
            return bad_reference(str(error))
        answer = read_answer(completion, "marked")
        if answer.text is None and answer.how == "no boxed or marked answer":
            answer = read_answer(completion, "last_line")
        if answer.text is None:
            return without_answer(completion, answer)
        text = answer.text.strip()
        try:
            value, used = evaluate(text, target)
        except _ExpressionTooLarge as error:
            return limit(str(error), excerpt(text))
        except _ParseError as error:
            return unparseable(str(error), excerpt(text))
        except ZeroDivisionError:
            return incorrect("division by zero", text)
        extra, missing = used - numbers, numbers - used
        if extra:
            return incorrect(f"uses {_listed(extra)}, which is not given", text)
        if missing and self.use == "once":
            return incorrect(f"does not use {_listed(missing)}", text)
        if value != target:
            return incorrect(f"equals {value}, not {target}", text)
        return correct(text)

    def check_reference(self, reference: Any) -> None:
        """Raise ValueError unless the reference holds numbers and a target."""
        _puzzle(reference)


def evaluate(text: str, target: Fraction) -> tuple[Fraction, Counter[Fraction]]:
    """Return the value of an expression and the numbers that it uses; "= target" may follow it."""
    if len(text) > MAX_CHARS:
        raise _ExpressionTooLarge(f"an expression of {len(text)} characters; at most {MAX_CHARS} are read")
    parser = _Parser(_tokens(_SPELLING.sub(lambda m: _SPELLINGS[m.group()], text)))
    value = parser.sum(0)
    if parser.next == "=":
        parser.take("=")
        # The other side is the claimed result, not part of the expression.
        if _Parser(parser.rest()).whole() != target:
            raise _ParseError("what follows the equals sign is not the target")
    elif parser.next is not None:
        raise _ParseError(f"{parser.next!r} is out of place")
    return value, parser.used


def _tokens(text: str) -> list[str]:
    tokens, position, text = [], 0, text.strip().rstrip(".").rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _ParseError(f"{text[position:].strip()[:1]!r} has no place in an expression")
        tokens.append(match[1])
        position = match.end()
    if not tokens:
        raise _ParseError("no expression")
    return tokens


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._place = 0
        self.used: Counter[Fraction] = Counter()

    @property
    def next(self) -> str | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def take(self, wanted: str | None = None) -> str:
        token = self.next
        if token is None or (wanted is not None and token != wanted):
            raise _ParseError(f"expected {wanted or 'a number'!r}, found {'the end' if token is None else repr(token)}")
        self._place += 1
        return token

    def rest(self) -> list[str]:
        return self._tokens[self._place :]

    def whole(self) -> Fraction:
        """Parse all tokens as one expression."""
        value = self.sum(0)
        if self.next is not None:
            raise _ParseError(f"{self.next!r} is out of place")
        return value

    def sum(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise _ExpressionTooLarge(f"nested deeper than {MAX_DEPTH}")
        value = self._product(depth)
        while self.next in ("+", "-"):
            value = value + self._product(depth) if self.take() == "+" else value - self._product(depth)
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._factor(depth)
        while self.next in ("*", "/"):
            value = value * self._factor(depth) if self.take() == "*" else value / self._factor(depth)
        return value

    def _factor(self, depth: int) -> Fraction:
        if depth > MAX_DEPTH:
            raise _ExpressionTooLarge(f"nested deeper than {MAX_DEPTH}")
        token = self.take()
        if token == "-":
            return -self._factor(depth + 1)
        if token == "(":
            return self._closed(")", depth)
        if token == "\\frac":
            self.take("{")
            above = self._closed("}", depth)
            self.take("{")
            return above / self._closed("}", depth)
        if not token[0].isdigit():
            raise _ParseError(f"{token!r} where a number should be")
        if len(token) > MAX_DIGITS:
            raise _ExpressionTooLarge(f"a number of {len(token)} digits")
        number = Fraction(token)
        self.used[number] += 1
        return number

    def _closed(self, bracket: str, depth: int) -> Fraction:
        value = self.sum(depth + 1)
        self.take(bracket)
        return value


def _listed(numbers: Counter[Fraction]) -> str:
    return ", ".join(str(number) for number in numbers.elements())


def _puzzle(reference: Any) -> tuple[Counter[Fraction], Fraction]:
    """The numbers and the target of a reference."""
    if not isinstance(reference, Mapping) or not {"numbers", "target"} <= set(reference):
        raise ValueError('the reference is not {"numbers": [...], "target": n}')
    numbers = reference["numbers"]
    if not isinstance(numbers, (list, tuple)) or not numbers:
        raise ValueError(f"the reference's numbers are {numbers!r}; expected a list of numbers")
    return Counter(_number(number) for number in numbers), _number(reference["target"])


def _number(value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a number")
    try:
        # A float is read by its digits: 0.1 means one tenth.
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{value!r} is not a number") from None
