"""Trees as sympy objects and back, and what sympy decides: integrals, sums, products, limits and derivatives of a gold,
and equality where the comparison of values could not tell.

Trees are converted node by node, never as text. Sizes are bounded before sympy is called, and a call may be limited in
time. sympy is imported by the functions that need it.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlvr.verifiers.math import attempts
from rlvr.verifiers.math.binders import opened, outermost, replaced, unevaluated
from rlvr.verifiers.math.exact import Inexact, Undefined
from rlvr.verifiers.math.identity import Undecided, same_value
from rlvr.verifiers.math.numeric import evaluate
from rlvr.verifiers.math.parse import parse
from rlvr.verifiers.math.prepared import prepared
from rlvr.verifiers.math.sets import MINUS_OO
from rlvr.verifiers.math.systems import Numbers
from rlvr.verifiers.math.to_sympy import Converter, NoSymbolicForm, from_sympy
from rlvr.verifiers.math.tree import OO, Node, Op, Sym, TooLarge, number

if TYPE_CHECKING:
    import sympy

_ONE = number(1)
CHECKED_DIGITS = 1e-4  # to which an integral must agree with its numeric value


def to_sympy(node: Node) -> sympy.Basic:
    """Return a tree of rlvr.verifiers.math.parse as a sympy object.

    Sums, integrals, limits and derivatives are not evaluated: `.doit()` does so. Lists and tuples become Tuple, sets
    FiniteSet, intervals Interval (so does (1, 2) within a union), matrices ImmutableMatrix, relations Eq, Lt and so on,
    cases Piecewise; `\\log` is natural, decimals are exact; f, g and h before a bracket are functions, other letters
    are factors. Raise NoSymbolicForm for text, units, plus-minus, what has no value (0/0, 0^0) and the transpose of a
    letter (A^T); TooLarge beyond the bounds. Both are ValueErrors, as is whatever else sympy cannot build.
    """
    import sympy

    try:
        converter = Converter(node, real=False)
        found: sympy.Basic = sympy.sympify(converter.convert(prepared(node)))
    except (ValueError, MemoryError):
        raise
    # As in _by_sympy.
    except Exception as error:
        raise NoSymbolicForm(f"no form in sympy: {error}") from error
    if found.has(sympy.nan, sympy.zoo):
        raise NoSymbolicForm("no value")
    return found


def parse_answer(text: str) -> sympy.Basic:
    """Return the sympy object that an answer in LaTeX or plain text means.

    Raise ParseError where the text cannot be read; besides as `to_sympy`. All of these are ValueErrors.
    """
    return to_sympy(parse(text))


# --- evaluation -------------------------------------------------------------------------------------------------------


class NotInTime(TooLarge):
    """sympy has no time to evaluate a part."""

    def __init__(self, part: Op, seconds: float | None) -> None:
        super().__init__(f"not evaluated within {seconds} s")
        self.part = part


class OutOfTime(BaseException):
    """The time for one call of sympy is over. Not an Exception, so that sympy does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise OutOfTime after some seconds of processor time, so that a busy machine changes no verdict.

    It needs the signal SIGVTALRM: it has no effect in other threads than the main one, and where a program uses it.
    """
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or signal.getsignal(signal.SIGVTALRM) != signal.SIG_DFL:
        yield
        return

    def stop(*_: object) -> None:
        raise OutOfTime

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)


def warm_up() -> None:
    """Import sympy with the modules that it imports when they are first used."""
    for text in (r"\int_0^\infty e^{-x^2} dx", r"\sum_{k=0}^\infty \frac{x^k}{k!}", r"\lim_{x\to0} \frac{\sin x}{x}"):
        evaluated(parse(text), None)


def evaluated(node: Node, seconds: float | None) -> Node:
    """Return the tree with the values of its sums, integrals, ... where sympy finds them. Values are kept.

    Raise NotInTime where one takes longer than `seconds`, or took too long before.
    """
    parts = dict.fromkeys(outermost(node))
    found = {part: _value(part, seconds) for part in parts}
    return replaced(node, {part: value for part, value in found.items() if value is not None})


def _value(part: Op, seconds: float | None) -> Node | None:
    with attempts.attempt(part, seconds) as may_try:
        value, in_time = _evaluated_once(part, seconds) if may_try or seconds is None else (None, False)
        if not in_time:
            attempts.give_up(part, seconds)
    if not in_time:
        raise NotInTime(part, seconds)
    return value


@functools.lru_cache(maxsize=1024)
def _evaluated_once(part: Op, seconds: float | None) -> tuple[Node | None, bool]:
    """Return the value of one part, None where sympy has none, and whether there was time for it."""
    import sympy  # noqa: F401 - its import is not part of the time

    try:
        with time_limit(seconds):
            value = _by_sympy(part)
            return (value if value is None or _is_confirmed(part, value) else None), True
    except OutOfTime:
        return None, False
    except (NoSymbolicForm, TooLarge):
        return None, True


def _by_sympy(part: Op) -> Node | None:
    converter = Converter(part, real=True)
    try:
        return from_sympy(converter.evaluate(converter.convert(part)), converter.names)
    except (NoSymbolicForm, TooLarge, MemoryError):
        raise
    # sympy raises nearly anything where it cannot evaluate: NotImplementedError, ValueError, TypeError, PoleError, ...
    except Exception:
        return None


def _is_confirmed(part: Op, value: Node) -> bool:
    """Whether a number for an integral agrees with its numeric value, where one is found."""
    import mpmath

    if part.head != "int" or len(part.args) != 4 or unevaluated(part.args[0]):
        return True
    name = "bound"
    body = opened(part, name)

    def height(x: Any) -> Any:
        return evaluate(body, {name: float(x)}, Numbers(True))[0]

    try:
        low, high = (_limit(limit) for limit in part.args[2:])
        wanted = complex(evaluate(value, {}, Numbers(False))[0])
        total, error = mpmath.quad(height, [low, high], error=True, maxdegree=5)
    except (ValueError, OverflowError, ZeroDivisionError):
        return True
    return error > CHECKED_DIGITS / 100 or abs(complex(total) - wanted) <= CHECKED_DIGITS * max(1.0, abs(wanted))


def _limit(node: Node) -> float:
    if node in (OO, MINUS_OO):
        return float("inf") if node == OO else float("-inf")
    return float(evaluate(node, {}, Numbers(True))[0])


def is_antiderivative(gold: Node, answer: Node, seconds: float | None) -> bool:
    """Whether the derivative of an answer without integrals is the integrand of an indefinite integral."""
    if not isinstance(gold, Op) or gold.head != "int" or len(gold.args) != 2 or unevaluated(answer):
        return False
    variable = gold.args[1]
    derivative = _value(Op("diff", (answer, variable, _ONE)), seconds) if isinstance(variable, Sym) else None
    try:
        return derivative is not None and not unevaluated(gold.args[0]) and same_value(gold.args[0], derivative)
    except (Inexact, Undefined, Undecided):
        return False


def difference_vanishes(gold: Node, answer: Node, seconds: float | None) -> bool | None:
    """Whether two expressions are equal, by sympy's simplification; None where it cannot tell."""
    import sympy

    if _is_matrix(gold) != _is_matrix(answer):
        return False
    try:
        with time_limit(seconds):
            converter = Converter(Op("add", (gold, answer)), real=True)
            left, right = converter.convert(gold), converter.convert(answer)
            if not isinstance(left, sympy.Expr) or not isinstance(right, sympy.Expr):
                return None
            if left.is_Matrix or right.is_Matrix:
                return _same_matrices(left, right)
            return _vanishes(left - right)
    except (OutOfTime, NoSymbolicForm, TooLarge):
        return None


def _is_matrix(node: Node) -> bool:
    if not isinstance(node, Op) or node.head not in ("matrix", "pow", "neg", "add", "mul"):
        return False
    parts = node.args[:1] if node.head == "pow" else node.args
    return node.head == "matrix" or any(map(_is_matrix, parts))


def _same_matrices(left: Any, right: Any) -> bool | None:
    """Whether both are matrices of one shape with equal entries; None where one cannot be told."""
    if not left.is_Matrix or not right.is_Matrix or left.shape != right.shape:
        return False
    same: bool | None = True
    for difference in left - right:
        entry = _vanishes(difference)
        if entry is False:
            return False
        same = same if entry else None
    return same


def _vanishes(difference: Any) -> bool | None:
    import sympy

    try:
        if sympy.simplify(difference) == 0:
            return True
        found = difference.equals(0)
    except MemoryError:
        raise
    # As in _by_sympy.
    except Exception:
        return None
    return None if found is None else bool(found)
