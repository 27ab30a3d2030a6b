"""Trees to sympy objects and back, node by node, with bounds on what sympy may compute meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from ..values.exact import bits, rational
from ..values.tree import (
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
    number,
    symbols,
    walk,
)
from ..values.units import UNITS

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
