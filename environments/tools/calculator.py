"""The tool `calculator`: exact arithmetic, read by the grammar of the verifier `math`."""

from __future__ import annotations

from fractions import Fraction

from rlvr.environments.tools.tool import ToolError, tool
from rlvr.verifiers.math.exact import Inexact, Undefined, exact
from rlvr.verifiers.math.parse import parse
from rlvr.verifiers.math.tree import ParseError, TooLarge

DIGITS = 12  # of the decimal that is shown beside a fraction
MAX_DIGITS = 2_000  # of a result


def value(expression: str) -> Fraction:
    """Return the value of an expression. Raise ToolError, in one line, where it has none that is rational."""
    try:
        return exact(parse(expression))
    except Undefined as error:
        raise ToolError(f"error: {error}") from error
    except TooLarge as error:
        raise ToolError(f"error: too large: {error}") from error
    except Inexact as error:
        raise ToolError("error: the value is no rational number") from error
    except ParseError as error:
        raise ToolError(f"error: {error}"[:200]) from error


def text_of(number: Fraction) -> str:
    """Return a number as a model reads it: an integer, a finite decimal, or a fraction with its decimal."""
    if number.numerator.bit_length() + number.denominator.bit_length() > MAX_DIGITS * 3:
        raise ToolError(f"error: too large: a number of more than {MAX_DIGITS} digits")
    if number.denominator == 1:
        return str(number.numerator)
    scaled = number * 10**DIGITS
    digits = f"{abs(round(scaled)):0{DIGITS + 1}d}"
    decimal = f"{'-' if number < 0 else ''}{digits[:-DIGITS]}.{digits[-DIGITS:]}".rstrip("0").rstrip(".")
    return decimal if scaled.denominator == 1 else f"{number} = {decimal}..."


@tool
def calculator(expression: str) -> str:
    """Compute an expression of numbers exactly: + - * / ^ ! brackets, sqrt, gcd, binomials."""
    return text_of(value(expression.strip()))
