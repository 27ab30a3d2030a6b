r"""The verifier `countdown`: an expression that reaches a target with given numbers.

Python's parser reads the expression; its tree is then worked out here, in exact fractions. No text is evaluated.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from rlvr.core.registry import register
from rlvr.core.types import Verdict, correct, incorrect, limit, unparseable

from .extract.answer import excerpt, read_answer, without_answer
from .runner.base import ReferenceVerifier

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
# \\frac{a}{b} becomes ((a)/(b)).
_FRACTION = {r"\\frac\s*\{": "((", r"\}\s*\{": ")/(", r"\}": "))"}
_FOREIGN = re.compile(r"[^\d.+*/() =-]|\* ?\*|/ ?/|(?<!\d)\.|\.(?!\d)", re.ASCII)
_LEADING_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")
_MANY_SIGNS = re.compile(rf"(?:- ?){{{MAX_DEPTH + 1}}}")
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class _ParseError(Exception):
    """The text is not an expression."""


class _ExpressionTooLarge(Exception):
    """The expression exceeds a bound."""


_Puzzle = tuple[Counter[Fraction], Fraction]  # numbers and target


@register("countdown")
@dataclass(frozen=True, kw_only=True)
class CountdownVerifier(ReferenceVerifier[_Puzzle]):
    r"""Whether an expression with the given numbers equals the target.

    The reference is {"numbers": [...], "target": n}. The expression is read from a box, an answer tag, after "the
    answer is", or else from the last line; "= target" may follow it. Exact arithmetic with + - * / and
    brackets. use: each number is used exactly once, or at most once.
    """

    use: Literal["once", "at_most_once"] = "once"

    def judge(self, wanted: _Puzzle, completion: str) -> Verdict:
        numbers, target = wanted
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
            return incorrect(f"uses {_list_numbers(extra)}, which is not given", text)
        if missing and self.use == "once":
            return incorrect(f"does not use {_list_numbers(missing)}", text)
        if value != target:
            return incorrect(f"equals {value}, not {target}", text)
        return correct(text)

    def read_reference(self, reference: Any) -> _Puzzle:
        """Return numbers and target. Raise ValueError unless the reference holds both."""
        if not isinstance(reference, Mapping) or not {"numbers", "target"} <= set(reference):
            raise ValueError('the reference is not {"numbers": [...], "target": n}')
        numbers = reference["numbers"]
        if not isinstance(numbers, (list, tuple)) or not numbers:
            raise ValueError(f"the reference's numbers are {numbers!r}; expected a list of numbers")
        return Counter(_read_number(number) for number in numbers), _read_number(reference["target"])


def evaluate(text: str, target: Fraction) -> tuple[Fraction, Counter[Fraction]]:
    """Return the value of an expression and the numbers that it uses; "= target" may follow it."""
    if len(text) > MAX_CHARS:
        raise _ExpressionTooLarge(f"an expression of {len(text)} characters; at most {MAX_CHARS} are read")
    text, equals, claimed = _in_python(text).partition("=")
    used: Counter[Fraction] = Counter()
    value = _work_out(text, used)
    # The other side is the claimed result, not part of the expression.
    if equals and _work_out(claimed, Counter()) != target:
        raise _ParseError("what follows the equals sign is not the target")
    return value, used


def _in_python(text: str) -> str:
    """Return an expression as Python writes it. Raises _ParseError for other signs, _ExpressionTooLarge."""
    text = _SPELLING.sub(lambda m: _SPELLINGS[m.group()], text)
    if len(re.findall(r"\\frac\s*\{", text)) != len(re.findall(r"\}\s*\{", text)):
        raise _ParseError("a fraction without two parts")
    for pattern, brackets in _FRACTION.items():
        text = re.sub(pattern, brackets, text)
    text = _LEADING_ZEROS.sub("", " ".join(text.split()).rstrip(". "))
    if foreign := _FOREIGN.search(text):
        raise _ParseError(f"{foreign.group()!r} has no place in an expression")
    depth = max(itertools.accumulate((sign == "(") - (sign == ")") for sign in text), default=0)
    if depth > MAX_DEPTH or _MANY_SIGNS.search(text):
        raise _ExpressionTooLarge(f"nested deeper than {MAX_DEPTH}")
    if re.search(rf"[\d.]{{{MAX_DIGITS + 1}}}", text):
        raise _ExpressionTooLarge(f"a number of more than {MAX_DIGITS} digits")
    return text


def _work_out(text: str, used: Counter[Fraction]) -> Fraction:
    """Return the value of an expression in Python's form, and count the numbers in it."""
    text = text.strip()
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise _ParseError(f"not an expression: {error.msg}") from None

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if not isinstance(node, ast.Constant):
            raise _ParseError(f"{ast.unparse(node)!r} where a number should be")
        number = Fraction(text[node.col_offset : node.end_col_offset])
        used[number] += 1
        return number

    return value(tree)


def _list_numbers(numbers: Counter[Fraction]) -> str:
    return ", ".join(str(number) for number in numbers.elements())


def _read_number(value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a number")
    try:
        # A float is read by its digits: 0.1 means one tenth.
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{value!r} is not a number") from None
