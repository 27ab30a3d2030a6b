"""Values of integrals, sums, limits and derivatives by sympy.

A call of sympy has a limit on its time. An evaluation that ended a worker process, or its time, is not tried again by
any worker of the pool: they share a table, since they are forked from a process that has imported this module. Each
place of it holds the number of the process that evaluates there, GIVEN_UP, or 0.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import signal
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sympy
import threading
import zlib
from collections.abc import Iterator
from typing import Any

from ..grammar.parse import parse
from ..values.exact import Inexact, Undefined
from ..values.identity import Undecided, is_undefined, same_value
from ..values.matrices import is_transposed_letter
from ..values.numeric import FAILURES, Floats, evaluate
from ..values.quadrature import estimate
from ..values.tree import (
    Node,
    Op,
    Sym,
    TooLarge,
    is_op,
    is_unevaluated,
    number,
    outermost,
    replace_parts,
    walk,
)
from .conversion import Converter, NoSymbolicForm, from_sympy

# --- evaluations that were given up -----------------------------------------------------------------------------------

PLACES = 16_384
GIVEN_UP = -1
_ENTRY = struct.Struct("i")

_table = mmap.mmap(-1, PLACES * _ENTRY.size)


@contextlib.contextmanager
def attempt(node: Node, seconds: float | None) -> Iterator[bool]:
    """Note that a node is being evaluated, for so long; yields whether it should be: no process has died of it."""
    place = _place(node, seconds)
    (before,) = _ENTRY.unpack_from(_table, place)
    if before == GIVEN_UP or (before and before != os.getpid() and not _is_alive(before)):
        yield False
        return
    _ENTRY.pack_into(_table, place, os.getpid())
    try:
        yield True
    finally:
        if _ENTRY.unpack_from(_table, place) == (os.getpid(),):
            _ENTRY.pack_into(_table, place, 0)


def give_up(node: Node, seconds: float | None) -> None:
    """Note that a node took longer than that."""
    _ENTRY.pack_into(_table, _place(node, seconds), GIVEN_UP)


def _place(node: Node, seconds: float | None) -> int:
    return zlib.crc32(f"{node} {seconds}".encode()) % PLACES * _ENTRY.size


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


# --- trees as sympy objects -------------------------------------------------------------------------------------------

_ONE = number(1)
CHECKED_DIGITS = 1e-4  # to which an integral must agree with its numeric value


def parse_answer(text: str) -> sympy.Basic:
    """Return the sympy expression or matrix that an answer in LaTeX or plain text means.

    Sums, integrals, limits and derivatives are not evaluated: `.doit()` does so. The logarithm is natural, decimals are
    exact; f, g and h before a bracket are functions, other letters are factors. Raise a ValueError: ParseError where
    the text cannot be read, NoSymbolicForm for sets, lists, text, units, plus-minus, A^T and what has no value (0/0),
    TooLarge beyond the bounds, or one of sympy's own.
    """
    import sympy

    node = parse(text)
    for part in walk(node):
        if is_op(part, "pow") and (is_transposed_letter(part) or is_undefined(part)):
            raise NoSymbolicForm("no value")
        if is_op(part, "add") and len({is_op(term, "matrix") for term in part.args}) > 1:
            raise NoSymbolicForm("a matrix added to a number")
    try:
        found: sympy.Basic = sympy.sympify(Converter(node, real=False).convert(node))
    except (ValueError, MemoryError):
        raise
    # As in `_by_sympy`.
    except Exception as error:
        raise NoSymbolicForm(f"no form in sympy: {error}") from error
    if found.has(sympy.nan, sympy.zoo):
        raise NoSymbolicForm("no value")
    return found


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
        evaluate_parts(parse(text), None)


def evaluate_parts(node: Node, seconds: float | None) -> Node:
    """Return the tree with the values of its sums, integrals, ... where sympy finds them. Values are kept.

    Raise NotInTime where one takes longer than `seconds`, or took too long before.
    """
    parts = dict.fromkeys(outermost(node))
    found = {part: _value(part, seconds) for part in parts}
    return replace_parts(node, {part: value for part, value in found.items() if value is not None})


def _value(part: Op, seconds: float | None) -> Node | None:
    with attempt(part, seconds) as may_try:
        value, in_time = _evaluated_once(part, seconds) if may_try or seconds is None else (None, False)
        if not in_time:
            give_up(part, seconds)
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
    if part.head != "int" or len(part.args) != 4:
        return True
    try:
        wanted, found = evaluate(value, {}, Floats(False)), estimate(part, {}, CHECKED_DIGITS / 100)
    except FAILURES:
        return True
    return bool(abs(complex(found) - wanted) <= CHECKED_DIGITS * max(1.0, abs(wanted)))


def is_antiderivative(gold: Node, answer: Node, seconds: float | None) -> bool:
    """Whether the derivative of an answer without integrals is the integrand of an indefinite integral."""
    if not is_op(gold, "int") or len(gold.args) != 2 or is_unevaluated(answer):
        return False
    variable = gold.args[1]
    derivative = _value(Op("diff", (answer, variable, _ONE)), seconds) if isinstance(variable, Sym) else None
    try:
        return derivative is not None and not is_unevaluated(gold.args[0]) and same_value(gold.args[0], derivative)
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
    if not is_op(node, "matrix", "pow", "neg", "add", "mul"):
        return False
    parts = node.args[:1] if node.head == "pow" else node.args
    return node.head == "matrix" or any(map(_is_matrix, parts))


def _same_matrices(left: Any, right: Any) -> bool | None:
    """Whether both are matrices of one shape with equal entries; None where sympy cannot decide."""
    if not left.is_Matrix or not right.is_Matrix or left.shape != right.shape:
        return False
    found = [_vanishes(difference) for difference in left - right]
    return None if None in found and False not in found else all(found)


def _vanishes(difference: Any) -> bool | None:
    import sympy

    try:
        if sympy.simplify(difference) == 0:
            return True
        found = difference.equals(0)
    except MemoryError:
        raise
    # As in `_by_sympy`.
    except Exception:
        return None
    return None if found is None else bool(found)
