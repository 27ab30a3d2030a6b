"""Arithmetic of matrices whose entries are trees, and products of letters whose order counts.

A vector is a tuple of at least two entries. A^{-1}B is not BA^{-1}: the letters of a gold are matrices where it has

- an inverse, a transpose, a determinant or a trace of capital letters,
- a product of bold capitals (head `matmul`), or the same two capitals in both orders,
- letters A to D as in A^2B and AB = C.

Then a small letter at the end of a product is a vector, A/B is A B^{-1}, and I is the unit matrix. Two such
expressions are equal where they are for random 3 x 3 matrices modulo a prime near 2**127 (Schwartz 1980): matrices of
that size satisfy no polynomial identity of a degree below 6 (Amitsur and Levitzki 1950).
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from rlvr.verifiers.math.values.exact import PRIMES, Inexact, Undefined, rational
from rlvr.verifiers.math.values.tree import (
    CONSTANTS,
    Node,
    Num,
    Op,
    Rel,
    Sym,
    TooLarge,
    children,
    heads,
    is_op,
    number,
    symbols,
    walk,
    with_children,
)

MAX_SIZE = 8  # rows and columns
MAX_SYMBOLIC = 4  # of a determinant or an inverse with variables
MAX_POWER = 12
MAX_NODES = 4_000  # of a result

Rows = tuple[tuple[Node, ...], ...]
_OPERATIONS = frozenset(("add", "mul", "div", "neg", "pow", "det", "trace"))
_TRANSPOSE = (Sym("T"), Sym("t"))


class _NoArithmetic(ValueError):
    """Not an expression of matrices, or one whose sizes do not fit."""


def resolve(node: Node) -> Node:
    """Return an expression of matrices or vectors as one matrix, vector or scalar; any other tree as it is.

    Raise TooLarge beyond the bounds.
    """
    found = distribute(node)
    if found is not node or not is_op(node, *_OPERATIONS):
        return found
    if heads(node).isdisjoint(("matrix", "()")):
        return node
    try:
        result = _value(node)
    except _NoArithmetic:
        return node
    if isinstance(result, Op) and sum(1 for _ in walk(result)) > MAX_NODES:
        raise TooLarge("matrix arithmetic beyond what is evaluated")
    return result


def distribute(node: Node) -> Node:
    """Return a matrix with its scalar factor, its sign and its transposition applied to the entries."""
    if not isinstance(node, Op):
        return node
    if node.head in ("[]", "()") and all(is_op(arg, "[]") for arg in node.args):
        return Op("matrix", tuple(Op("row", arg.args) for arg in node.args if isinstance(arg, Op)))
    if node.head not in ("mul", "div", "neg", "pow"):
        return node
    first = node.args[0]
    if node.head == "pow" and is_op(first, "[]") and node.args[1] == Sym("T"):
        return _transpose(Op("()", first.args))  # [1, 2, 3]^T
    places = [n for n, arg in enumerate(node.args) if is_op(arg, "matrix", "()")]
    if len(places) != 1:
        return node
    matrix = node.args[places[0]]
    assert isinstance(matrix, Op)
    if node.head == "pow":
        return _transpose(matrix) if places == [0] and node.args[1] in (Sym("T"), Sym("\\top")) else node

    def entry(cell: Node) -> Node:
        return Op(node.head, (*node.args[: places[0]], cell, *node.args[places[0] + 1 :]))

    if matrix.head == "()":
        return Op("()", tuple(entry(cell) for cell in matrix.args))
    return Op(
        "matrix",
        tuple(Op("row", tuple(entry(cell) for cell in row.args)) for row in matrix.args if isinstance(row, Op)),
    )


def _transpose(matrix: Op) -> Op:
    if matrix.head == "()":
        return Op("matrix", tuple(Op("row", (cell,)) for cell in matrix.args))
    rows = [row.args for row in matrix.args if isinstance(row, Op)]
    return Op("matrix", tuple(Op("row", column) for column in zip(*rows, strict=True)))


def _rows(node: Node) -> Rows | None:
    """The entries of a matrix; None for a vector or a scalar."""
    if not is_op(node, "matrix"):
        return None
    rows = tuple(row.args for row in node.args if isinstance(row, Op))
    if max(len(rows), len(rows[0])) > MAX_SIZE:
        raise _NoArithmetic
    return rows


def _matrix(rows: Rows) -> Op:
    return Op("matrix", tuple(Op("row", tuple(map(_simple, row))) for row in rows))


def _simple(entry: Node) -> Node:
    value = rational(entry)
    return entry if value is None else Num(value) if value >= 0 else Op("neg", (Num(-value),))


def _is_vector(node: Node) -> bool:
    return is_op(node, "()")


def _is_scalar(node: Node) -> bool:
    return not (is_op(node, "matrix", "()"))


def _value(node: Node) -> Node:
    """Return a matrix, a vector or a scalar. Raise _NoArithmetic."""
    if not is_op(node, *_OPERATIONS):
        return distribute(node)
    handler = _HANDLERS[node.head]
    return handler(tuple(_value(arg) for arg in node.args))


def _add(args: tuple[Node, ...]) -> Node:
    if all(map(_is_scalar, args)):
        return Op("add", args)
    if all(map(_is_vector, args)):
        entries = [arg.args for arg in args if isinstance(arg, Op)]
        if len({len(row) for row in entries}) != 1:
            raise _NoArithmetic
        return Op("()", tuple(_simple(Op("add", column)) for column in zip(*entries, strict=True)))
    found = [_rows(arg) for arg in args]
    rows = [one for one in found if one is not None]
    if len(rows) != len(args) or len({(len(one), len(one[0])) for one in rows}) != 1:
        raise _NoArithmetic
    return _matrix(
        tuple(
            tuple(Op("add", tuple(one[i][j] for one in rows)) for j in range(len(rows[0][0])))
            for i in range(len(rows[0]))
        )
    )


def _mul(args: tuple[Node, ...]) -> Node:
    scalars = tuple(arg for arg in args if _is_scalar(arg))
    others = [arg for arg in args if not _is_scalar(arg)]
    if not others:
        return Op("mul", args)
    product = others[0]
    for other in others[1:]:
        product = _within_bounds(_product(product, other))
    return _scale(scalars, product) if scalars else product


def _scale(scalars: tuple[Node, ...], node: Node) -> Node:
    if _is_scalar(node):
        return Op("mul", (*scalars, node))
    rows = _rows(node)
    if rows is None:
        assert isinstance(node, Op)
        return Op("()", tuple(_simple(Op("mul", (*scalars, entry))) for entry in node.args))
    return _matrix(tuple(tuple(Op("mul", (*scalars, entry)) for entry in row) for row in rows))


def _product(left: Node, right: Node) -> Node:
    """The product of two matrices, or of a matrix and a vector; of two vectors it may be one of several."""
    rows, other = _rows(left), _rows(right)
    if rows is None:
        raise _NoArithmetic
    if other is None:
        assert isinstance(right, Op)
        product = _product(left, _matrix(tuple((entry,) for entry in right.args)))
        return Op("()", tuple(row[0] for row in _rows(product) or ()))
    if len(rows[0]) != len(other):
        raise _NoArithmetic
    columns = tuple(zip(*other, strict=True))
    return _matrix(tuple(tuple(_dot(row, column) for column in columns) for row in rows))


def _dot(left: tuple[Node, ...], right: tuple[Node, ...]) -> Node:
    terms = tuple(_simple(Op("mul", (a, b))) for a, b in zip(left, right, strict=True))
    return _simple(terms[0] if len(terms) == 1 else Op("add", terms))


def _div(args: tuple[Node, ...]) -> Node:
    if not _is_scalar(args[1]):
        raise _NoArithmetic
    return Op("div", args) if _is_scalar(args[0]) else _scale((Op("div", (number(1), args[1])),), args[0])


def _neg(args: tuple[Node, ...]) -> Node:
    return Op("neg", args) if _is_scalar(args[0]) else _scale((Op("neg", (number(1),)),), args[0])


def _pow(args: tuple[Node, ...]) -> Node:
    base, exponent = args
    if _is_scalar(base) and _is_scalar(exponent):
        return Op("pow", args)
    if exponent in _TRANSPOSE:
        return distribute(Op("pow", (base, Sym("T"))))
    rows, power = _rows(base), rational(exponent)
    if rows is None or len(rows) != len(rows[0]) or power is None or power.denominator != 1 or abs(power) > MAX_POWER:
        raise _NoArithmetic
    if power < 0:
        base = _inverse(rows)
    size = len(rows)
    result: Node = _matrix(tuple(tuple(number(int(i == j)) for j in range(size)) for i in range(size)))
    for _ in range(abs(int(power))):
        result = _within_bounds(_product(result, base))
    return result


def _within_bounds(result: Node) -> Node:
    """Return a result of at most MAX_NODES. Raise TooLarge."""
    if sum(1 for _ in itertools.islice(walk(result), MAX_NODES + 1)) > MAX_NODES:
        raise TooLarge("matrix arithmetic beyond what is evaluated")
    return result


def _determinant(rows: Rows) -> Node:
    """Laplace's expansion, along the first row; of rational entries Gaussian elimination."""
    values = [[rational(entry) for entry in row] for row in rows]
    if all(value is not None for row in values for value in row):
        return _simple(_eliminate([[value for value in row if value is not None] for row in values]))
    if len(rows) > MAX_SYMBOLIC:
        raise _NoArithmetic
    return _laplace(rows)


def _eliminate(rows: list[list[Fraction]]) -> Node:
    total = Fraction(1)
    for k in range(len(rows)):
        pivot = next((i for i in range(k, len(rows)) if rows[i][k]), None)
        if pivot is None:
            return number(0)
        if pivot != k:
            rows[k], rows[pivot], total = rows[pivot], rows[k], -total
        total *= rows[k][k]
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return Num(total)


def _laplace(rows: Rows) -> Node:
    if len(rows) == 1:
        return rows[0][0]
    terms = []
    for j, entry in enumerate(rows[0]):
        if rational(entry) == 0:
            continue
        term = Op("mul", (entry, _laplace(_minor(rows, 0, j))))
        terms.append(Op("neg", (term,)) if j % 2 else term)
    return _simple(Op("add", (number(0), *terms)))


def _minor(rows: Rows, i: int, j: int) -> Rows:
    return tuple((*row[:j], *row[j + 1 :]) for k, row in enumerate(rows) if k != i)


def _inverse(rows: Rows) -> Node:
    """The adjugate over the determinant."""
    determinant = _square(rows)
    if rational(determinant) == 0:
        raise Undefined("the inverse of a singular matrix")
    if len(rows) == 1:
        return _matrix(((Op("div", (number(1), determinant)),),))

    def cofactor(i: int, j: int) -> Node:
        minor = _determinant(_minor(rows, i, j))
        return Op("div", (Op("neg", (minor,)) if (i + j) % 2 else minor, determinant))

    return _matrix(tuple(tuple(cofactor(i, j) for i in range(len(rows))) for j in range(len(rows))))


def _square(rows: Rows) -> Node:
    if len(rows) != len(rows[0]):
        raise _NoArithmetic
    return _determinant(rows)


def _det(args: tuple[Node, ...]) -> Node:
    rows = _rows(args[0])
    if rows is None:
        raise _NoArithmetic
    return _square(rows)


def _trace(args: tuple[Node, ...]) -> Node:
    rows = _rows(args[0])
    if rows is None or len(rows) != len(rows[0]):
        raise _NoArithmetic
    return _simple(Op("add", tuple(row[k] for k, row in enumerate(rows))))


_HANDLERS: dict[str, Callable[[tuple[Node, ...]], Node]] = {
    "add": _add,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "pow": _pow,
    "det": _det,
    "trace": _trace,
}


# --- products whose order counts --------------------------------------------------------------------------------------

SIZE = 3
MAX_ORDERED_NODES = 400
MAX_MATRIX_POWER = 64
_TRANSPOSE_SIGN = Sym("T")
_MINUS_ONE = Op("neg", (number(1),))
_BOLD = re.compile(r"\\(?:mathbf|boldsymbol|bm|pmb)\s*(?:\{\s*([A-Za-z ]+)\}|([A-Za-z]))")
_ORDERED = frozenset(("matmul", "det", "trace", "pow", "mul"))
_MATRIX_NAMES = frozenset("ABCD")
_OF_MATRICES = frozenset(("add", "mul", "matmul", "neg", "pow", "div"))

_Matrix = list[list[int]]


def with_bold_products(text: str, tree: Node) -> Node:
    """Return the tree with `matmul` for products of bold capitals, but for the label of an equation."""
    bold = {letter for match in _BOLD.finditer(text) for letter in match[1] or match[2] if letter.isupper()}
    if not bold:
        return tree
    if isinstance(tree, Rel):
        return Rel(tree.ops, (tree.sides[0], *(_with_bold(side, bold) for side in tree.sides[1:])))
    return _with_bold(tree, bold)


def _with_bold(node: Node, bold: set[str]) -> Node:
    below = tuple(_with_bold(child, bold) for child in children(node))
    if is_op(node, "mul"):
        found = {part.name for part in below if isinstance(part, Sym)} & bold
        return Op("matmul" if len(found) > 1 else "mul", below)
    return with_children(node, below) if below else node


def is_bold_product(text: str) -> bool:
    r"""Whether a text is bold letters without anything between them, \mathbf{AB}: a product, not two choices."""
    return "\\" in text and any(len(match[1] or "") > 1 and match[1].isalpha() for match in _BOLD.finditer(text))


def has_order(gold: Node) -> bool:
    """Whether the order of factors counts in a gold."""
    seen: set[tuple[Node, Node]] = set()
    for part in walk(gold):
        if type(part) is not Op or part.head not in _ORDERED:
            continue
        if part.head in ("matmul", "det", "trace"):
            return not any(is_op(inner, "matrix") for inner in walk(part))
        if part.head == "pow" and (part.args[1] in (_TRANSPOSE_SIGN, _MINUS_ONE)) and _is_matrix(part.args[0]):
            return True
        if part.head == "mul":
            capitals = [base for arg in part.args if _is_capital(base := _base(arg))]
            hats = {arg.name for arg in part.args if isinstance(arg, Sym) and arg.name.startswith("hat ")}
            if len(hats) > 1:
                return True  # operators
            seen.update(pair for pair in itertools.pairwise(capitals) if pair[0] != pair[1])
    return any((right, left) in seen for left, right in seen) or (bool(seen) and _is_of_matrices(gold))


def _is_of_matrices(node: Node) -> bool:
    """Whether letters A to D are rather matrices: A^2B, where AB^2 is a length, and AB = C as a difference."""
    if not symbols(node) <= _MATRIX_NAMES:
        return False
    terms = [inner for part in children(node) for inner in (children(part) if _is_negative(part) else (part,))]
    if not isinstance(node, Op):
        return False
    if node.head == "add" and len(terms) == 2 and len(set(map(type, terms))) == 2:
        return all(isinstance(term, Sym) or (is_op(term, "mul")) for term in terms)
    return node.head == "mul" and any(is_op(factor, "pow") for factor in node.args[:-1])


def _is_negative(node: Node) -> bool:
    return is_op(node, "neg")


def _base(node: Node) -> Node:
    return node.args[0] if is_op(node, "pow") else node


def _is_capital(node: Node) -> bool:
    return isinstance(node, Sym) and node not in CONSTANTS and node.name[0].isupper() and node.name[1:2] in ("", "_")


def _is_matrix(node: Node) -> bool:
    """Whether a node is made of capital letters: A, AB, A + B, X^T X."""
    if is_op(node, "pow") and node.args[1] in (_TRANSPOSE_SIGN, _MINUS_ONE):
        return _is_matrix(node.args[0])
    if is_op(node, *_OF_MATRICES):
        return all(map(_is_matrix, node.args))
    return _is_capital(node)


def is_transposed_letter(node: Op) -> bool:
    """Whether a power is A^T or (AB)^T."""
    return node.args[1] == _TRANSPOSE_SIGN and _is_matrix(node.args[0])


def commuting(node: Node) -> Node:
    """Return the tree with products whose order does not count."""
    below = tuple(map(commuting, children(node)))
    if isinstance(node, Op):
        return Op("mul" if node.head == "matmul" else node.head, below)
    return with_children(node, below) if below else node


def same_ordered(gold: Node, answer: Node) -> bool:
    """Whether two expressions of matrices are equal. Raise Inexact where one of them is no such expression."""
    if sum(1 for tree in (gold, answer) for _ in itertools.islice(walk(tree), MAX_ORDERED_NODES)) >= MAX_ORDERED_NODES:
        raise Inexact
    rng = random.Random(f"{gold}*{answer}")
    algebra = _Algebra(gold, answer, rng)
    for _ in range(2):
        algebra.draw()
        left, right = algebra.value(gold), algebra.value(answer)
        if algebra.matrix(left) != algebra.matrix(right):
            return False
    return True


class _Algebra:
    """Values of trees in matrices and scalars modulo a prime."""

    def __init__(self, gold: Node, answer: Node, rng: random.Random) -> None:
        self._rng = rng
        self._names = sorted(symbols(gold) | symbols(answer))
        parts = [part for tree in (gold, answer) for part in walk(tree) if isinstance(part, Op)]
        turned = {part.args[0] for part in parts if part.head == "pow"}
        self._matrices = {name for name in self._names if name[0].isupper() or name.startswith("hat ")} | _vectors(gold)
        self._unit = {name for name in ("I", "I_n") if Sym(name) not in turned}
        self._prime = 2
        self._at: dict[str, Any] = {}

    def draw(self) -> None:
        """Choose a prime, and a value for each name."""
        self._prime = PRIMES[self._rng.randrange(len(PRIMES))][0]
        self._at = {name: self._draw_value(name) for name in self._names}

    def _draw_value(self, name: str) -> Any:
        if name in self._unit:
            return self.matrix(1)
        if name not in self._matrices:
            return self._rng.randrange(1, self._prime)
        return [[self._rng.randrange(1, self._prime) for _ in range(SIZE)] for _ in range(SIZE)]

    def matrix(self, value: Any) -> _Matrix:
        """Return a scalar as a multiple of the unit matrix."""
        if isinstance(value, int):
            return [[value % self._prime if i == j else 0 for j in range(SIZE)] for i in range(SIZE)]
        result: _Matrix = value
        return result

    def value(self, node: Node) -> Any:
        """Return the value of a tree: an integer or a matrix. Raise Inexact or Undefined."""
        exact = rational(node)
        if exact is not None:
            return exact.numerator * pow(exact.denominator, -1, self._prime) % self._prime
        if isinstance(node, Sym) and node.name in self._at:
            return self._at[node.name]
        if not isinstance(node, Op):
            raise Inexact
        if node.head == "pow":
            return self._power(node.args[0], node.args[1])
        values = [self.value(arg) for arg in node.args]
        if node.head in ("mul", "matmul"):
            return functools.reduce(self._product, values)
        if node.head == "add":
            return functools.reduce(self._sum, values)
        if node.head == "neg":
            return self._product(self._prime - 1, values[0])
        if node.head == "div":
            return self._product(values[0], self._inverse(values[1]))
        if node.head == "det":
            return _determinant_of_three(self.matrix(values[0])) % self._prime
        if node.head == "trace":
            return sum(self.matrix(values[0])[k][k] for k in range(SIZE)) % self._prime
        raise Inexact

    def _power(self, base: Node, exponent: Node) -> Any:
        value = self.value(base)
        if exponent == _TRANSPOSE_SIGN:
            return value if isinstance(value, int) else [list(column) for column in zip(*value, strict=True)]
        power = rational(exponent)
        if power is None or power.denominator != 1 or abs(power) > MAX_MATRIX_POWER:
            raise Inexact
        if power < 0:
            value = self._inverse(value)
        return functools.reduce(self._product, [value] * abs(int(power)), 1)

    def _sum(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            return (left + right) % self._prime
        rows = zip(self.matrix(left), self.matrix(right), strict=True)
        return [[(a + b) % self._prime for a, b in zip(*pair, strict=True)] for pair in rows]

    def _product(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            return left * right % self._prime
        if isinstance(left, int) or isinstance(right, int):
            scalar, rows = (left, right) if isinstance(left, int) else (right, left)
            return [[scalar * entry % self._prime for entry in row] for row in rows]
        columns = list(zip(*right, strict=True))
        return [
            [sum(a * b for a, b in zip(row, column, strict=True)) % self._prime for column in columns] for row in left
        ]

    def _inverse(self, value: Any) -> Any:
        determinant = (value if isinstance(value, int) else _determinant_of_three(value)) % self._prime
        if not determinant:
            raise Undefined("the inverse of a singular matrix")
        inverse = pow(determinant, -1, self._prime)
        return inverse if isinstance(value, int) else self._product(inverse, _adjugate(value))


def _determinant_of_three(rows: _Matrix) -> int:
    (a, b, c), (d, e, f), (g, h, i) = rows
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


def _adjugate(rows: _Matrix) -> _Matrix:
    (a, b, c), (d, e, f), (g, h, i) = rows
    return [
        [e * i - f * h, c * h - b * i, b * f - c * e],
        [f * g - d * i, a * i - c * g, c * d - a * f],
        [d * h - e * g, b * g - a * h, a * e - b * d],
    ]


def _vectors(gold: Node) -> set[str]:
    """The small letters that end a product after a matrix, or are transposed."""
    found: set[str] = set()
    for part in walk(gold):
        if not isinstance(part, Op):
            continue
        if part.head in ("mul", "matmul"):
            last, before = part.args[-1], part.args[-2]
            if isinstance(last, Sym) and _is_matrix(before):
                found.add(last.name)
        elif part.head == "pow" and part.args[1] == _TRANSPOSE_SIGN and isinstance(part.args[0], Sym):
            found.add(part.args[0].name)
    return found
