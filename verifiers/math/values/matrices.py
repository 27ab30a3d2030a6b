"""Arithmetic of matrices whose entries are trees, and products of letters whose order counts.

A vector is a tuple of at least two entries. A^{-1}B is not BA^{-1}: the letters of a gold are matrices where it has

- an inverse, a transpose, a determinant or a trace of capital letters,
- a product of bold capitals (head `matmul`), or the same two capitals in both orders,
- letters A to D as in A^2B and AB = C.

Then a small letter at the end of a product is a vector, A/B is A B^{-1}, and I is the unit matrix. Two such
expressions are equal where they are for 3 x 3 matrices of large random numbers (Schwartz 1980): matrices of that size
satisfy no polynomial identity of a degree below 6 (Amitsur and Levitzki 1950).
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

from .exact import Inexact, Undefined, rational
from .tree import (
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
    tree = _write_grid(result) if isinstance(result, _Grid) else result
    if isinstance(tree, Op) and sum(1 for _ in walk(tree)) > MAX_NODES:
        raise TooLarge("matrix arithmetic beyond what is evaluated")
    return tree


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


class _Grid(NamedTuple):
    """The entries of a matrix, or of a vector as one column."""

    rows: Rows
    is_vector: bool = False


_Value = Node | _Grid


def _read_grid(node: Node) -> _Value:
    if is_op(node, "()"):
        return _Grid(tuple((entry,) for entry in node.args), is_vector=True)
    if not is_op(node, "matrix"):
        return node
    rows = tuple(row.args for row in node.args if isinstance(row, Op))
    if max(len(rows), len(rows[0])) > MAX_SIZE:
        raise _NoArithmetic
    return _Grid(rows)


def _write_grid(grid: _Grid) -> Op:
    if grid.is_vector:
        return Op("()", tuple(_simple(row[0]) for row in grid.rows))
    return Op("matrix", tuple(Op("row", tuple(map(_simple, row))) for row in grid.rows))


def _simple(entry: Node) -> Node:
    value = rational(entry)
    return entry if value is None else Num(value) if value >= 0 else Op("neg", (Num(-value),))


def _value(node: Node) -> _Value:
    """Return a matrix, a vector or a scalar. Raise _NoArithmetic."""
    if not is_op(node, *_OPERATIONS):
        return _read_grid(distribute(node))
    return _HANDLERS[node.head](*map(_value, node.args))


def _add(*args: _Value) -> _Value:
    grids = [arg for arg in args if isinstance(arg, _Grid)]
    if not grids:
        return Op("add", tuple(arg for arg in args if not isinstance(arg, _Grid)))
    if len(grids) != len(args) or len({(len(one.rows), len(one.rows[0]), one.is_vector) for one in grids}) != 1:
        raise _NoArithmetic
    rows = zip(*(one.rows for one in grids), strict=True)
    return grids[0]._replace(
        rows=tuple(tuple(_simple(Op("add", cells)) for cells in zip(*row, strict=True)) for row in rows)
    )


def _mul(*args: _Value) -> _Value:
    scalars = tuple(arg for arg in args if not isinstance(arg, _Grid))
    grids = [arg for arg in args if isinstance(arg, _Grid)]
    if not grids:
        return Op("mul", scalars)
    product = functools.reduce(_product, grids)
    return _scale(product, *scalars) if scalars else product


def _scale(grid: _Grid, *scalars: Node) -> _Grid:
    rows = (tuple(_simple(Op("mul", (*scalars, entry))) for entry in row) for row in grid.rows)
    return grid._replace(rows=tuple(rows))


def _product(left: _Grid, right: _Grid) -> _Grid:
    """The product of two matrices, or of a matrix and a vector; of two vectors it may be one of several."""
    if left.is_vector or len(left.rows[0]) != len(right.rows):
        raise _NoArithmetic
    columns = tuple(zip(*right.rows, strict=True))
    found = _Grid(tuple(tuple(_dot(row, column) for column in columns) for row in left.rows), right.is_vector)
    if sum(1 for _ in itertools.islice(walk(_write_grid(found)), MAX_NODES + 1)) > MAX_NODES:
        raise TooLarge("matrix arithmetic beyond what is evaluated")
    return found


def _dot(left: tuple[Node, ...], right: tuple[Node, ...]) -> Node:
    terms = tuple(_simple(Op("mul", pair)) for pair in zip(left, right, strict=True))
    return terms[0] if len(terms) == 1 else _simple(Op("add", terms))


def _div(top: _Value, bottom: _Value) -> _Value:
    if isinstance(bottom, _Grid):
        raise _NoArithmetic
    return _scale(top, Op("div", (number(1), bottom))) if isinstance(top, _Grid) else Op("div", (top, bottom))


def _neg(value: _Value) -> _Value:
    return _scale(value, Op("neg", (number(1),))) if isinstance(value, _Grid) else Op("neg", (value,))


def _pow(base: _Value, exponent: _Value) -> _Value:
    if isinstance(exponent, _Grid):
        raise _NoArithmetic
    if not isinstance(base, _Grid):
        return Op("pow", (base, exponent))
    if exponent in _TRANSPOSE:
        return _Grid(base.rows if base.is_vector else tuple(zip(*base.rows, strict=True)))
    power, rows = rational(exponent), _square_rows(base)
    if power is None or power.denominator != 1 or abs(power) > MAX_POWER:
        raise _NoArithmetic
    base = _inverse(rows) if power < 0 else base
    size = range(len(rows))
    unit = _Grid(tuple(tuple(number(int(i == j)) for j in size) for i in size))
    return functools.reduce(_product, [base] * abs(int(power)), unit)


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


def _inverse(rows: Rows) -> _Grid:
    """The adjugate over the determinant."""
    determinant = _determinant(rows)
    if rational(determinant) == 0:
        raise Undefined("the inverse of a singular matrix")
    if len(rows) == 1:
        return _Grid(((_simple(Op("div", (number(1), determinant))),),))

    def cofactor(i: int, j: int) -> Node:
        minor = _determinant(_minor(rows, i, j))
        return _simple(Op("div", (Op("neg", (minor,)) if (i + j) % 2 else minor, determinant)))

    return _Grid(tuple(tuple(cofactor(i, j) for i in range(len(rows))) for j in range(len(rows))))


def _square_rows(value: _Value) -> Rows:
    """The rows of a square matrix. Raise _NoArithmetic."""
    if not isinstance(value, _Grid) or value.is_vector or len(value.rows) != len(value.rows[0]):
        raise _NoArithmetic
    return value.rows


def _trace(value: _Value) -> Node:
    return _simple(Op("add", tuple(row[k] for k, row in enumerate(_square_rows(value)))))


_HANDLERS: dict[str, Callable[..., _Value]] = {
    "add": _add,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "pow": _pow,
    "det": lambda value: _determinant(_square_rows(value)),
    "trace": _trace,
}


# --- products whose order counts --------------------------------------------------------------------------------------

_ROWS = range(3)
LARGEST_ENTRY = 2**61
MAX_ORDERED_NODES = 400
_ONE = number(1)
_TRANSPOSE_SIGN = Sym("T")
_MINUS_ONE = Op("neg", (number(1),))
_BOLD = re.compile(r"\\(?:mathbf|boldsymbol|bm|pmb)\s*(?:\{\s*([A-Za-z ]+)\}|([A-Za-z]))")
_ORDERED = frozenset(("matmul", "det", "trace", "pow", "mul"))
_MATRIX_NAMES = frozenset("ABCD")
_OF_MATRICES = frozenset(("add", "mul", "matmul", "neg", "pow", "div"))


def with_bold_products(text: str, tree: Node) -> Node:
    """Return the tree with `matmul` for products of bold capitals, except in the label of an equation."""
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
    terms = [inner for part in children(node) for inner in (children(part) if is_op(part, "neg") else (part,))]
    if not isinstance(node, Op):
        return False
    if node.head == "add" and len(terms) == 2 and len(set(map(type, terms))) == 2:
        return all(isinstance(term, Sym) or (is_op(term, "mul")) for term in terms)
    return node.head == "mul" and any(is_op(factor, "pow") for factor in node.args[:-1])


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
    names = sorted(symbols(gold) | symbols(answer))
    turned = {part.args[0] for tree in (gold, answer) for part in walk(tree) if is_op(part, "pow")}
    vectors = _vectors(gold)

    def draw(name: str) -> _Grid:
        if name in ("I", "I_n") and Sym(name) not in turned:
            return _multiple_of_unit(_ONE)
        if not (name[0].isupper() or name.startswith("hat ") or name in vectors):
            return _multiple_of_unit(Num(Fraction(rng.randrange(1, LARGEST_ENTRY))))
        return _Grid(tuple(tuple(Num(Fraction(rng.randrange(1, LARGEST_ENTRY))) for _ in _ROWS) for _ in _ROWS))

    values = {name: draw(name) for name in names}
    try:
        return _in_matrices(gold, values) == _in_matrices(answer, values)
    except _NoArithmetic:
        raise Inexact from None


def _multiple_of_unit(scalar: Node) -> _Grid:
    return _Grid(tuple(tuple(scalar if i == j else number(0) for j in _ROWS) for i in _ROWS))


def _in_matrices(node: Node, values: Mapping[str, _Grid]) -> _Grid:
    """The value of a tree, of which a scalar is a multiple of the unit matrix. Raise Inexact or Undefined."""
    if rational(node) is not None:
        return _multiple_of_unit(_simple(node))
    if isinstance(node, Sym) and node.name in values:
        return values[node.name]
    if not isinstance(node, Op) or node.head not in _ALGEBRA:
        raise Inexact
    parts = [_in_matrices(arg, values) for arg in (node.args[:1] if node.head == "pow" else node.args)]
    found = _pow(parts[0], node.args[1]) if node.head == "pow" else _ALGEBRA[node.head](*parts)
    return found if isinstance(found, _Grid) else _multiple_of_unit(found)


_ALGEBRA: dict[str, Callable[..., _Value]] = {
    **_HANDLERS,
    "matmul": _mul,
    "div": lambda top, bottom: _product(top, _inverse(bottom.rows)),
}


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
