"""What sympy decides, where rules and numbers leave an answer open; it is imported when it is needed.

Trees become sympy objects and trees again, node by node, with bounds on what sympy may compute meanwhile. Integrals,
sums, limits and derivatives are evaluated by sympy or by quadrature. A call of sympy has a limit on its time. An
evaluation that ended a worker process, or its time, is not tried again by any worker of the pool: they share a table,
since they are forked from a process that has imported this module. Each place of it holds the number of the process
that evaluates there, GIVEN_UP, or 0.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import signal
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .grammar.parse import parse
from .values.exact import Inexact, Undefined, bits, rational
from .values.identity import Undecided, is_undefined, same_value
from .values.matrices import is_transposed_letter
from .values.numeric import FAILURES, Floats, evaluate
from .values.quadrature import estimate
from .values.tree import (
    BOUND,
    CALCULUS_HEADS,
    IMAGINARY,
    OO,
    PI,
    E,
    Node,
    Num,
    Op,
    Quantity,
    Sym,
    TooLarge,
    Words,
    children,
    is_op,
    is_unevaluated,
    number,
    outermost,
    replace_parts,
    symbols,
    walk,
)
from .values.units import UNITS

if TYPE_CHECKING:
    import sympy

# --- trees as sympy objects -------------------------------------------------------------------------------------------

MAX_NODES = 400
MAX_BITS = 2_000  # of a number, and of a power of numbers
MAX_LIMIT = 10_000  # of a sum or product
MAX_EXPONENT = 100  # a number in an exponent with variables
MAX_FACTORIAL = 400
# Before a variable these are functions, f(x), which parse as products.
_UNKNOWN = frozenset("fghpqrsuvwyzABDEFGHIJKLMNOPQRSTUVWXYZ")

_FUNCTIONS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "sinh": "sinh", "cosh": "cosh",
    "tanh": "tanh", "coth": "coth", "sech": "sech", "csch": "csch", "arcsin": "asin", "arccos": "acos",
    "arctan": "atan", "arcsec": "asec", "arccsc": "acsc", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "ln": "log", "log": "log", "exp": "exp", "sgn": "sign", "abs": "Abs", "floor": "floor", "ceil": "ceiling",
    "fact": "factorial", "subfact": "subfactorial", "binom": "binomial", "min": "Min", "max": "Max", "add": "Add",
    "mul": "Mul",
}  # fmt: skip
_HEADS = {name: head for head, name in _FUNCTIONS.items() if head != "log"}


class NoSymbolicForm(ValueError):
    """A tree that is no sympy object, or a sympy object that is no tree."""


class Converter:
    """Converts the parts of one tree, with the same symbol for the same name.

    `real`: variables are real, those in limits of sums and in factorials positive integers; else they have no
    assumptions. `names`: the names of the symbols made so far. Raise TooLarge where the tree exceeds the bounds.
    """

    def __init__(self, tree: Node, *, real: bool) -> None:
        import sympy

        check_size(tree)
        self._sympy = sympy
        self._real = real
        self._whole = _integer_names(tree) if real else frozenset()
        self._symbols: dict[str, Any] = {}
        self._bound: dict[str, Any] = {}
        self.names: dict[Any, str] = {}

    def convert(self, node: Node) -> Any:
        """Return the sympy object of a tree. Raise NoSymbolicForm or TooLarge."""
        if isinstance(node, Num):
            return self._sympy.Rational(node.value.numerator, node.value.denominator)
        if isinstance(node, Sym):
            return self._symbol(node)
        if isinstance(node, Quantity) and node.unit == UNITS["%"]:
            return self.convert(node.value) / 100
        if not isinstance(node, Op):
            raise NoSymbolicForm("text, units and relations have no form in sympy")
        if node.head in CALCULUS_HEADS:
            return self._calculus(node)
        if node.head == "apply" and isinstance(node.args[0], Sym):
            return self._sympy.Function(node.args[0].name)(self.convert(node.args[1]))
        if node.head in _FUNCTIONS:
            return getattr(self._sympy, _FUNCTIONS[node.head])(*map(self.convert, node.args))
        handler = _OPERATIONS.get(node.head)
        if handler is None:
            raise NoSymbolicForm(f"{node.head!r} has no form in sympy")
        return handler(self._sympy, *map(self._cell, node.args))

    def evaluate(self, expression: Any) -> Any:
        """Return the value of an expression; where it is given by cases, the case that holds in general."""
        value = expression.doit()
        if value.has(self._sympy.Piecewise):
            value = value.replace(lambda part: isinstance(part, self._sympy.Piecewise), self._general)
        return value

    def _general(self, by_cases: Any) -> Any:
        """The only evaluated case, as of a series within its radius, or the one for values that are not special."""
        kept = [(value, condition) for value, condition in by_cases.args if not value.has(*self._open_forms())]
        if len(kept) > 1:
            kept = [(value, condition) for value, condition in kept if not isinstance(condition, self._sympy.Eq)]
        if len(kept) > 1 and isinstance(kept[0][1], self._sympy.Ne):
            kept = kept[:1]
        if len(kept) != 1:
            raise NoSymbolicForm("several cases")
        return kept[0][0]

    def _open_forms(self) -> tuple[Any, ...]:
        s = self._sympy
        return s.Sum, s.Product, s.Integral, s.Limit, s.Derivative

    def _cell(self, node: Node) -> Any:
        if is_op(node, "row"):
            return [self.convert(entry) for entry in node.args]
        return node.text if isinstance(node, Words) else self.convert(node)

    def _symbol(self, node: Sym) -> Any:
        s = self._sympy
        constant = {PI: s.pi, E: s.E, IMAGINARY: s.I, OO: s.oo}.get(node)
        if constant is not None:
            return constant
        if node.name in self._bound:
            return self._bound[node.name]
        if BOUND in node.name:
            raise NoSymbolicForm("the terms of a sequence")
        if node.name not in self._symbols:
            assumptions = {"integer": True, "positive": True} if node.name in self._whole else {"real": True}
            symbol = s.Symbol(node.name, **(assumptions if self._real else {}))
            self._symbols[node.name] = symbol
            self.names[symbol] = node.name
        return self._symbols[node.name]

    def _calculus(self, node: Op) -> Any:
        s = self._sympy
        if self._real and any(_is_unknown_function(part, node.args[1]) for part in walk(node.args[0])):
            raise NoSymbolicForm("a function that is not given")
        if node.head == "diff":
            return s.Derivative(*map(self.convert, node.args))
        if len(node.args) == 2:
            return s.Integral(self.convert(node.args[0]), self.convert(node.args[1]))
        variable = node.args[1]
        assert isinstance(variable, Sym)
        assumptions = {"integer": True} if node.head in ("sum", "prod") else {"real": True}
        if node.head == "lim" and node.args[2] == OO:
            assumptions = {"positive": True} | ({"integer": True} if _integer_names(node.args[0], True) else {})
        low = self.convert(node.args[2])
        high = None if node.head == "lim" else self.convert(node.args[3])
        outer = dict(self._bound)
        symbol = self._bound[variable.name] = self._bound_symbol(variable, assumptions)
        body = self.convert(node.args[0])
        self._bound = outer
        if node.head == "lim":
            side = node.args[3].text if isinstance(node.args[3], Words) else ""
            return s.Limit(body, symbol, low, side or ("+" if low in (s.oo, -s.oo) else "+-"))
        return {"sum": s.Sum, "prod": s.Product, "int": s.Integral}[node.head](body, (symbol, low, high))

    def _bound_symbol(self, variable: Sym, assumptions: dict[str, bool]) -> Any:
        """A symbol that no free variable can have: its name is not one of the grammar (k1)."""
        name = f"k{variable.name[len(BOUND) :]}"
        return self._sympy.Dummy(name, **assumptions) if self._real else self._sympy.Symbol(name)


def _is_unknown_function(node: Node, variable: Node) -> bool:
    """f(x), which parses as a product."""
    if not is_op(node, "mul"):
        return False
    pairs = zip(node.args, node.args[1:], strict=False)
    return any(isinstance(f, Sym) and f.name[:1] in _UNKNOWN and variable in tuple(walk(x)) for f, x in pairs)


def _integer_names(tree: Node, bound: bool = False) -> frozenset[str]:
    """The variables in limits of sums and products, in factorials and binomials."""
    found: set[str] = set()
    for part in walk(tree):
        if is_op(part, "sum", "prod"):
            found.update(*(symbols(limit) for limit in children(part)[2:]))
        if is_op(part, "fact", "binom"):
            found |= {n.name for n in walk(part) if isinstance(n, Sym) and (bound or n.name in symbols(part))}
    return frozenset(found)


# --- bounds -----------------------------------------------------------------------------------------------------------


def check_size(tree: Node) -> None:
    """Raise TooLarge where sympy might compute numbers or expand sums beyond the bounds."""
    for count, node in enumerate(walk(tree)):
        if count >= MAX_NODES:
            raise TooLarge(f"an expression of more than {MAX_NODES} parts")
        if isinstance(node, Num) and bits(node.value) > MAX_BITS:
            raise TooLarge("a number too large to be evaluated")
        if is_op(node, *_BOUNDS):
            _BOUNDS[node.head](node)


def _check_power(node: Op) -> None:
    base, exponent = rational(node.args[0]), rational(node.args[1])
    if exponent is not None:
        if abs(exponent) > MAX_BITS or (base is not None and abs(exponent) * bits(base) > MAX_BITS):
            raise TooLarge("a power too large to be evaluated")
        return
    for part in walk(node.args[1]):
        tower = is_op(part, "fact", "pow") and rational(part.args[-1]) is None
        if tower or (isinstance(part, Num) and abs(part.value) > MAX_EXPONENT):
            raise TooLarge("a power too large to be evaluated")


def _check_factorial(node: Op) -> None:
    value = rational(node.args[0])
    if value is not None and abs(value) > MAX_FACTORIAL:
        raise TooLarge("a factorial too large to be evaluated")
    if value is None and any(
        (is_op(part, "pow", "fact", "exp")) or (isinstance(part, Num) and abs(part.value) > MAX_EXPONENT)
        for part in walk(node.args[0])
    ):
        raise TooLarge("a factorial too large to be evaluated")


def _check_limits(node: Op) -> None:
    for limit in node.args[2:]:
        value = rational(limit)
        if value is not None and abs(value) > MAX_LIMIT:
            raise TooLarge("a sum too long to be evaluated")
        if value is not None and value.denominator != 1:
            raise NoSymbolicForm("a sum between numbers that are no integers")
    low, high = rational(node.args[2]), rational(node.args[3])
    if low is not None and high is not None and high < low - 1:
        raise NoSymbolicForm("a sum whose limits are exchanged")


_BOUNDS: dict[str, Callable[[Op], None]] = {
    "pow": _check_power,
    "fact": _check_factorial,
    "subfact": _check_factorial,
    "binom": _check_factorial,
    "sum": _check_limits,
    "prod": _check_limits,
}

# --- single operations ------------------------------------------------------------------------------------------------


def _root(s: Any, index: Any, radicand: Any) -> Any:
    if index.is_number and not index.is_Integer:
        raise NoSymbolicForm("a root whose index is no integer")
    return _power(s, radicand, 1 / index)


def _power(s: Any, base: Any, exponent: Any) -> Any:
    """A power; the odd root of a negative number is real, as in trees."""
    if isinstance(base, s.MatrixBase):
        return base.T if exponent in (s.Symbol("T"), s.Symbol("T", real=True)) else base**exponent
    if exponent.is_Rational and exponent.q % 2 and exponent.q > 1 and base.is_number and base.is_negative:
        return (-1) ** exponent.p * (-base) ** exponent
    return base**exponent


def _integers(name: str) -> Callable[..., Any]:
    def of_integers(s: Any, *args: Any) -> Any:
        if not all(arg.is_Integer for arg in args):
            raise NoSymbolicForm(f"{name} of variables")
        return getattr(s, f"i{name}")(*args)

    return of_integers


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "neg": lambda s, x: -x,
    "div": lambda s, x, y: x / y,
    "pow": _power,
    "root": _root,
    "percent": lambda s, x: x / 100,
    "deg": lambda s, x: x * s.pi / 180,
    "logb": lambda s, base, x: s.log(x, base),
    "arccot": lambda s, x: s.pi / 2 - s.atan(x),
    "gcd": _integers("gcd"),
    "lcm": _integers("lcm"),
    "matrix": lambda s, *rows: s.ImmutableMatrix(rows),
    "det": lambda s, matrix: matrix.det(),
    "trace": lambda s, matrix: matrix.trace(),
}

# --- and back ---------------------------------------------------------------------------------------------------------


def from_sympy(expression: Any, names: Mapping[Any, str]) -> Node:
    """Return the tree of a sympy expression. `names`: of its symbols. Raise NoSymbolicForm."""
    if expression.is_Rational:
        value = Num(Fraction(abs(int(expression.p)), int(expression.q)))
        return Op("neg", (value,)) if expression.p < 0 else value
    if expression.is_Symbol:
        if expression not in names:
            raise NoSymbolicForm("a bound variable outside")
        return Sym(names[expression])
    constant = _CONSTANTS.get(str(expression)) if expression.is_Atom else None
    if constant is not None:
        return constant
    if expression.is_Pow:
        return _from_power(expression, names)
    head = _HEADS.get(type(expression).__name__)
    if head is None:
        raise NoSymbolicForm(f"no tree for {type(expression).__name__}")
    return Op(head, tuple(from_sympy(arg, names) for arg in expression.args))


def _from_power(expression: Any, names: Mapping[Any, str]) -> Node:
    base, exponent = expression.args
    if base.is_number and not base.is_nonnegative and exponent.is_Rational and not exponent.is_Integer:
        raise NoSymbolicForm("a root of a negative number")
    if exponent.is_Rational and exponent.p < 0:
        below = from_sympy(base, names)
        return Op("div", (number(1), below if exponent == -1 else Op("pow", (below, from_sympy(-exponent, names)))))
    return Op("pow", (from_sympy(base, names), from_sympy(exponent, names)))


_CONSTANTS: dict[str, Node] = {"pi": PI, "E": E, "I": IMAGINARY, "oo": OO, "-oo": Op("neg", (OO,))}

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


# --- answers as sympy objects -----------------------------------------------------------------------------------------

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
