"""Exact values: rational arithmetic with bounds, residues of numbers too large to compute, and the budget of work.

Work in the caller's process is counted in nodes evaluated in floats, not in seconds, so that a busy machine changes
nothing. In a worker process, which can be killed, nothing is counted.

A rational function is also evaluated modulo a prime at a random point. Equal functions agree at every point; different
ones of degree d agree at a random point with probability d / p (Schwartz 1980, Zippel 1979), and p is near 2**127. The
imaginary unit is a square root of -1 modulo p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from fractions import Fraction

from .tree import IMAGINARY, OO, PI, E, Node, Num, Op, Sym, TooLarge, is_op, walk

# --- the budget -------------------------------------------------------------------------------------------------------

QUICK_WORK = 40_000  # nodes: 10 to 40 ms
PRECISE = 60  # a node at 60 to 200 digits, or in fractions, against one in floats
_COSTLY = {"fact": 20, "multifact": 20, "subfact": 20, "binom": 20, "gcd": 10, "lcm": 10, "sum": 20, "prod": 20}
_MAX_POWER = 200

_left: ContextVar[list[float] | None] = ContextVar("left", default=None)


class OutOfBudget(Exception):
    """More work than is done in the caller's process. No ValueError, so that no layer takes it for a difference."""


class BoundedWork:
    """Raise OutOfBudget within where more than `work` is spent. No generator: that would cost a tenth of a verdict."""

    __slots__ = ("_token", "_work")

    def __init__(self, work: float) -> None:
        self._work = work

    def __enter__(self) -> None:
        self._token = _left.set([self._work])

    def __exit__(self, *_: object) -> None:
        _left.reset(self._token)


def spend(work: float) -> None:
    """Count work that is about to be done. Raise OutOfBudget where there is none left."""
    left = _left.get()
    if left is not None:
        left[0] -= work
        if left[0] < 0:
            raise OutOfBudget


def is_counted() -> bool:
    """Whether work is counted here."""
    return _left.get() is not None


def weight(*trees: Node) -> int:
    """Return the work of one value of each tree in floats."""
    return sum(_COSTLY.get(node.head, 1) if isinstance(node, Op) else 1 for tree in trees for node in walk(tree))


def precise_weight(*trees: Node) -> int:
    """Return the work of one exact or precise value of each tree: powers make long fractions."""
    total = 0
    for node in (node for tree in trees for node in walk(tree)):
        total += PRECISE
        if is_op(node, "pow") and isinstance(node.args[1], Num):
            total += PRECISE * min(abs(node.args[1].value.numerator), _MAX_POWER) // 32
    return total


# --- rational numbers -------------------------------------------------------------------------------------------------

MAX_BITS = 40_000
MAX_FACTORIAL = 3_000
MAX_WORK = 2_000_000  # bits of all partial sums or products together
MAX_EXPONENT_BITS = 4_096
MANY_BITS, BITS_OF_A_NODE = 10_000, 50  # from where on the bits of sums and products count as work, and how many do


class Inexact(ValueError):
    """Not a rational number (or not a rational function)."""


class Undefined(ValueError):
    """No value: a division by zero, infinity minus infinity."""


def exact(node: Node) -> Fraction:
    """Return the rational value of a tree.

    Raise Inexact (irrational or with variables), Undefined (0/0) or TooLarge (more than MAX_BITS bits).
    """
    if isinstance(node, Num):
        return node.value
    if not isinstance(node, Op):
        raise Inexact
    handler = _EXACT.get(node.head)
    if handler is None:
        raise Inexact
    return handler(*node.args)


def rational(node: Node) -> Fraction | None:
    """Return the rational value of a tree; None where it has none or is too large."""
    try:
        return exact(node)
    except (Inexact, Undefined, TooLarge):
        return None


def written_exactly(node: Node) -> Fraction | None:
    """Return the value of an integer, a mixed number or a quotient of such, with its sign; None for any other tree."""
    if type(node) is Op:
        if node.head == "neg":
            inner = written_exactly(node.args[0])
            return None if inner is None else -inner
        if node.head == "div":
            top, bottom = node.args
            if (
                type(top) is Num
                and type(bottom) is Num
                and top.places is None
                and bottom.places is None
                and bottom.value
            ):
                return top.value / bottom.value
    elif type(node) is Num and node.places is None:
        return node.value
    return None


def bits(value: Fraction) -> int:
    """Return the size of a rational number in bits."""
    return value.numerator.bit_length() + value.denominator.bit_length()


def _check_bits(value: Fraction) -> Fraction:
    if bits(value) > MAX_BITS:
        raise TooLarge(f"a number of more than {MAX_BITS} bits")
    return value


def _add(*args: Node) -> Fraction:
    total, work = Fraction(0), 0
    for arg in args:
        total = _check_bits(total + exact(arg))
        work = _more_work(work, total)
    return total


def _mul(*args: Node) -> Fraction:
    total, work = Fraction(1), 0
    for arg in args:
        total = _check_bits(total * exact(arg))
        work = _more_work(work, total)
    return total


def _more_work(work: int, total: Fraction) -> int:
    work += bits(total)
    if work > MANY_BITS:
        spend(bits(total) / BITS_OF_A_NODE)
    if work > MAX_WORK:
        raise TooLarge("a sum or product beyond what is evaluated")
    return work


def _div(top: Node, bottom: Node) -> Fraction:
    above, below = exact(top), exact(bottom)
    if below == 0:
        raise Undefined("a division by zero")
    return _check_bits(above / below)


def _pow(base: Node, exponent: Node) -> Fraction:
    x, y = exact(base), exact(exponent)
    if x == 0:
        if y > 0:
            return Fraction(0)
        raise Undefined("zero to a power that is not positive")
    if y.denominator != 1:
        return _root_of(x, y)
    if x in (1, -1):
        return x if y % 2 else Fraction(1)
    if abs(y) * (bits(x) - 1) > MAX_BITS:
        raise TooLarge(f"a power of more than {MAX_BITS} bits")
    return x**y.numerator


def _root_of(x: Fraction, y: Fraction) -> Fraction:
    """x ** y for a fractional y, where it is rational; of a negative x the real root."""
    degree = y.denominator
    sign = 1
    if x < 0:
        if degree % 2 == 0:
            raise Inexact
        sign, x = (-1 if y.numerator % 2 else 1), -x
    if degree > 64 or abs(y.numerator) * bits(x) > MAX_BITS:
        raise Inexact
    top, bottom = _integer_root(x.numerator, degree), _integer_root(x.denominator, degree)
    if top is None or bottom is None:
        raise Inexact
    return sign * Fraction(top, bottom) ** y.numerator


def _integer_root(n: int, degree: int) -> int | None:
    """The exact root of a natural number, None if it is irrational."""
    if n < 2:
        return n
    if degree == 2:
        root = math.isqrt(n)
        return root if root * root == n else None
    # Newton's method for integers, from above.
    root = 1 << (n.bit_length() // degree + 1)
    while True:
        smaller = ((degree - 1) * root + n // root ** (degree - 1)) // degree
        if smaller >= root:
            return root if root**degree == n else None
        root = smaller


def _root(index: Node, radicand: Node) -> Fraction:
    n, x = exact(index), exact(radicand)
    if n.denominator != 1 or n < 2:
        raise Inexact
    return _root_of(x, Fraction(1, n.numerator)) if x else Fraction(0)


def _natural(node: Node, most: int) -> int:
    value = exact(node)
    if value.denominator != 1 or value < 0:
        raise Undefined("a factorial or binomial of something that is no natural number")
    if value > most:
        raise TooLarge(f"a factorial or binomial of a number above {most}")
    return value.numerator


def multifactorial(n: int, step: int) -> int:
    """n (n - step) (n - 2 step) ... over the positive factors."""
    return math.prod(range(n, 0, -step))


def subfactorial(n: int) -> int:
    """The number of permutations of n things that leave none in its place."""
    found = 1
    for k in range(1, n + 1):
        found = k * found + (-1) ** k
    return found


def _of_natural(function: Callable[..., int]) -> Callable[..., Fraction]:
    def at(node: Node, *others: Node) -> Fraction:
        n = _natural(node, MAX_FACTORIAL)
        if n > 100:
            spend(n)
        return Fraction(function(n, *(exact(other).numerator for other in others)))

    return at


def _binom(top: Node, bottom: Node) -> Fraction:
    n, k = _natural(top, 10**12), _natural(bottom, 10**12)
    k = min(k, n - k)
    if k < 0:
        return Fraction(0)
    if k > MAX_FACTORIAL or k * n.bit_length() > 2 * MAX_BITS:
        raise TooLarge(f"the binomial coefficient of {n} and {k}")
    return Fraction(math.comb(n, k))


def _integers(args: tuple[Node, ...]) -> list[int]:
    values = [exact(arg) for arg in args]
    if any(value.denominator != 1 for value in values):
        raise Inexact
    return [value.numerator for value in values]


def _log(base: Node, x: Node) -> Fraction:
    """log_b x where it is rational with a small denominator: b**p == x**q."""
    b, value = exact(base), exact(x)
    if b <= 0 or b == 1 or value <= 0:
        raise Inexact
    if value == 1:
        return Fraction(0)
    if max(bits(b), bits(value)) > 2_000:
        raise Inexact
    ratio = (math.log2(value.numerator) - math.log2(value.denominator)) / (
        math.log2(b.numerator) - math.log2(b.denominator)
    )
    candidate = Fraction(ratio).limit_denominator(12)
    if abs(candidate) > 2_000 or b**candidate.numerator != value**candidate.denominator:
        raise Inexact
    return candidate


_EXACT: dict[str, Callable[..., Fraction]] = {
    "add": _add,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "root": _root,
    "fact": _of_natural(math.factorial),
    "multifact": _of_natural(multifactorial),
    "subfact": _of_natural(subfactorial),
    "binom": _binom,
    "logb": _log,
    "neg": lambda x: -exact(x),
    "abs": lambda x: abs(exact(x)),
    "percent": lambda x: exact(x) / 100,
    "floor": lambda x: Fraction(math.floor(exact(x))),
    "ceil": lambda x: Fraction(math.ceil(exact(x))),
    "gcd": lambda *args: Fraction(math.gcd(*_integers(args))),
    "lcm": lambda *args: _check_bits(Fraction(math.lcm(*_integers(args)))),
    "min": lambda *args: min(exact(arg) for arg in args),
    "max": lambda *args: max(exact(arg) for arg in args),
}

# --- residues ---------------------------------------------------------------------------------------------------------

# (prime p = 1 mod 4, a square root of -1 modulo p).
PRIMES = (
    (2**127 - 39, 155782814877520920072798144727220504337),
    (2**127 - 295, 139532969058294879861285333481688886455),
    (2**127 - 507, 78338110645583737413555417043298936990),
    (2**127 - 511, 57470183346825787986646384746825783492),
)


def is_rational_function(node: Node) -> bool:
    """Whether `residue` can evaluate the tree, exponents aside."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, Op):
            if node.head not in _RESIDUE:
                return False
            stack.extend(node.args if node.head != "pow" else node.args[:1])
        elif isinstance(node, Sym):
            if node in (E, PI, OO):
                return False
        elif not isinstance(node, Num):
            return False
    return True


def residue(node: Node, point: Mapping[str, int], prime: int, root: int) -> tuple[int, int]:
    """Return (numerator, denominator) modulo `prime` of a rational function at `point`; `root` is used for i.

    Raise Inexact where the tree is not a rational function, TooLarge for a factorial or an exponent beyond the bounds.
    """
    if isinstance(node, Num):
        return node.value.numerator % prime, node.value.denominator % prime
    if isinstance(node, Sym):
        if node == IMAGINARY:
            return root, 1
        if node.name not in point:
            raise Inexact
        return point[node.name], 1
    if not is_op(node, *_RESIDUE):
        raise Inexact
    if node.head == "pow":
        return _residue_of_power(node.args[0], node.args[1], point, prime, root)
    if (function := _RESIDUE[node.head]) is None:  # rational only where its arguments are numbers
        value = exact(node)
        return value.numerator % prime, value.denominator % prime
    top, bottom = residue(node.args[0], point, prime, root)
    for arg in node.args[1:]:
        top, bottom = (part % prime for part in function((top, bottom), residue(arg, point, prime, root)))
    return (-top if node.head == "neg" else top) % prime, (100 * bottom if node.head == "percent" else bottom) % prime


_Residue = tuple[int, int]  # numerator and denominator


def _residue_of_power(base: Node, power: Node, point: Mapping[str, int], p: int, root: int) -> _Residue:
    try:
        exponent = exact(power)
    except Undefined:
        raise Inexact from None
    if exponent.denominator != 1:
        raise Inexact
    if exponent.numerator.bit_length() > MAX_EXPONENT_BITS:
        raise TooLarge("an exponent of more digits than are read")
    n, d = residue(base, point, p, root)
    if n == 0 and exponent <= 0:
        raise Undefined("zero to a power that is not positive")
    if exponent < 0:
        n, d, exponent = d, n, -exponent
    return pow(n, exponent.numerator, p), pow(d, exponent.numerator, p)


def _add_residues(left: _Residue, right: _Residue) -> _Residue:
    return left[0] * right[1] + right[0] * left[1], left[1] * right[1]


def _multiply_residues(left: _Residue, right: _Residue) -> _Residue:
    return left[0] * right[0], left[1] * right[1]


_RESIDUE: dict[str, Callable[[_Residue, _Residue], _Residue] | None] = {
    "add": _add_residues,
    "mul": _multiply_residues,
    "div": lambda top, bottom: (top[0] * bottom[1], top[1] * bottom[0]),
    **dict.fromkeys(("neg", "percent"), _add_residues),  # of one argument
    **dict.fromkeys("pow fact multifact subfact binom gcd lcm floor ceil abs root logb".split()),
}
