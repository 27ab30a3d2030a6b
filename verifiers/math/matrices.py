"""Arithmetic of matrices and vectors: sums, products, powers, inverses, transposes, determinants and traces.

Entries are trees, made rational numbers where they are. A vector is a tuple of at least two entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

from rlvr.verifiers.math.exact import Undefined, rational
from rlvr.verifiers.math.tree import Node, Num, Op, Sym, TooLarge, heads, number, walk

MAX_SIZE = 8  # rows and columns
MAX_SYMBOLIC = 4  # of a determinant or an inverse with variables
MAX_POWER = 12
MAX_NODES = 4_000  # of a result

Rows = tuple[tuple[Node, ...], ...]
_OPERATIONS = frozenset(("add", "mul", "div", "neg", "pow", "det", "trace"))
_TRANSPOSE = (Sym("T"), Sym("t"))


class _NoArithmetic(ValueError):
    """Not an expression of matrices, or one whose sizes do not fit."""


def resolved(node: Node) -> Node:
    """Return an expression of matrices or vectors as one matrix, vector or scalar; any other tree as it is.

    Raise TooLarge beyond the bounds.
    """
    found = distributed(node)
    if found is not node or not isinstance(node, Op) or node.head not in _OPERATIONS:
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


def distributed(node: Node) -> Node:
    """Return a matrix with its scalar factor, its sign and its transposition applied to the entries."""
    if not isinstance(node, Op):
        return node
    if node.head in ("[]", "()") and all(isinstance(arg, Op) and arg.head == "[]" for arg in node.args):
        return Op("matrix", tuple(Op("row", arg.args) for arg in node.args if isinstance(arg, Op)))
    if node.head not in ("mul", "div", "neg", "pow"):
        return node
    first = node.args[0]
    if node.head == "pow" and isinstance(first, Op) and first.head == "[]" and node.args[1] == Sym("T"):
        return _transposed(Op("()", first.args))  # [1, 2, 3]^T
    places = [n for n, arg in enumerate(node.args) if isinstance(arg, Op) and arg.head in ("matrix", "()")]
    if len(places) != 1:
        return node
    matrix = node.args[places[0]]
    assert isinstance(matrix, Op)
    if node.head == "pow":
        return _transposed(matrix) if places == [0] and node.args[1] in (Sym("T"), Sym("\\top")) else node

    def entry(cell: Node) -> Node:
        return Op(node.head, (*node.args[: places[0]], cell, *node.args[places[0] + 1 :]))

    if matrix.head == "()":
        return Op("()", tuple(entry(cell) for cell in matrix.args))
    return Op(
        "matrix",
        tuple(Op("row", tuple(entry(cell) for cell in row.args)) for row in matrix.args if isinstance(row, Op)),
    )


def _transposed(matrix: Op) -> Op:
    if matrix.head == "()":
        return Op("matrix", tuple(Op("row", (cell,)) for cell in matrix.args))
    rows = [row.args for row in matrix.args if isinstance(row, Op)]
    return Op("matrix", tuple(Op("row", column) for column in zip(*rows, strict=True)))


def _rows(node: Node) -> Rows | None:
    """The entries of a matrix; None for a vector or a scalar."""
    if not isinstance(node, Op) or node.head != "matrix":
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
    return isinstance(node, Op) and node.head == "()"


def _is_scalar(node: Node) -> bool:
    return not (isinstance(node, Op) and node.head in ("matrix", "()"))


def _value(node: Node) -> Node:
    """Return a matrix, a vector or a scalar. Raise _NoArithmetic."""
    if not isinstance(node, Op) or node.head not in _OPERATIONS:
        return distributed(node)
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
    return _scaled(scalars, product) if scalars else product


def _scaled(scalars: tuple[Node, ...], node: Node) -> Node:
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
    return Op("div", args) if _is_scalar(args[0]) else _scaled((Op("div", (number(1), args[1])),), args[0])


def _neg(args: tuple[Node, ...]) -> Node:
    return Op("neg", args) if _is_scalar(args[0]) else _scaled((Op("neg", (number(1),)),), args[0])


def _pow(args: tuple[Node, ...]) -> Node:
    base, exponent = args
    if _is_scalar(base) and _is_scalar(exponent):
        return Op("pow", args)
    if exponent in _TRANSPOSE:
        return distributed(Op("pow", (base, Sym("T"))))
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
        return _simple(_eliminated([[value for value in row if value is not None] for row in values]))
    if len(rows) > MAX_SYMBOLIC:
        raise _NoArithmetic
    return _laplace(rows)


def _eliminated(rows: list[list[Fraction]]) -> Node:
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
