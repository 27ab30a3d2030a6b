"""Lists, sets, tuples, intervals, matrices, ratios and numbers in a base, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlvr.verifiers.math.builders import same_builders
from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.labels import without_other_labels
from rlvr.verifiers.math.rounding import is_integer, literal
from rlvr.verifiers.math.sets import TURNED, NotASet, Piece, intersection, real_set, same_real_set, signs
from rlvr.verifiers.math.solutions import (
    by_names,
    in_parameter_of,
    is_half_labelled,
    is_labelled,
    is_of_roots,
    under_name_of,
    unknowns,
    without_numbers,
)
from rlvr.verifiers.math.tree import Node, Op, Quantity, Rel, Sym, TooLarge, Words, symbols

if TYPE_CHECKING:
    from rlvr.verifiers.math.compare import Rules

MAX_UNORDERED = 64  # elements of a list that are matched pair by pair
_ORDERS = frozenset(("<", "<=", ">", ">=", "in"))
_SETS = frozenset(("union", "inter", "minus", "domain", "both", "[)", "(]"))


def _elements(node: Node) -> list[Node]:
    """The elements of a list or set, plus-minus written out."""
    parts = node.args if isinstance(node, Op) and node.head in ("list", "either", "set") else (node,)
    return [signed for part in parts for signed in signs(part)]


def _unordered(gold: Op, answer: Node, rules: Rules) -> bool:
    """Lists of solutions and sets: the same elements in any order."""
    head = answer.head if isinstance(answer, Op) else ""
    if "either" in (gold.head, head) or _are_inequalities(gold):
        verdict = _alternatives(gold, answer, rules)
        if verdict is not None:
            return verdict
    if head in ("()", "[]"):
        assert isinstance(answer, Op)
        if gold.head == "set":
            return head == "[]" and len(answer.args) > 2 and _match(_elements(gold), list(answer.args), rules)
        wanted = by_names(gold.args)
        return (head == "()" or len(answer.args) > 2) and (
            ordered(wanted, answer.args, rules)
            or ordered(wanted, under_name_of(Op("()", tuple(unknowns(gold).values())), answer), rules)
        )
    if head in _SETS or (gold.args and _excludes(gold, answer)):
        return real_sets(gold, answer, rules)
    if is_labelled(gold) and is_labelled(answer) and (renamed := in_parameter_of(gold, answer)) is not None:
        answer = renamed
    left, right, in_order = without_other_labels(*without_numbers(_elements(gold), _elements(answer)))
    if in_order or _assigns(gold, answer):
        return ordered(tuple(left), tuple(right), rules)
    left, right = _unnumbered(left, right), _unnumbered(right, left)
    if "set" in (gold.head, head):
        left, right = _distinct(left), _distinct(right)
    return _match(left, right, rules)


def _assigns(gold: Op, answer: Node) -> bool:
    """Whether a gold says whose each value is, P = 5, Q = 6, and the answer is values only: they have that order."""
    if not isinstance(answer, Op) or len(gold.args) != len(answer.args):
        return False
    nouns = {part.unit.words for part in gold.args if isinstance(part, Quantity)}
    if len(nouns) == len(gold.args) and "" not in nouns:  # 5 apples, 6 pears
        return answer.head == "list" and not any(isinstance(part, Quantity) for part in answer.args)
    names = [part.sides[0] if isinstance(part, Rel) and part.ops == ("=",) else None for part in gold.args]
    if gold.head != "list" or len({*names}) < len(names) or len(names) < 2:
        return False
    if not all(isinstance(name, Sym) and not is_of_roots(name.name) for name in names):
        return False  # x_1 and x_2 are the roots of an equation
    return answer.head == "list" and not any(isinstance(part, Rel) for part in answer.args)


def _are_inequalities(gold: Op) -> bool:
    """Whether a list is of inequalities in several variables."""
    relations = [part for part in gold.args if isinstance(part, Rel) and set(part.ops) <= _ORDERS]
    return len(relations) == len(gold.args) > 1 and len(symbols(gold)) > 1


def _excludes(gold: Op, answer: Node) -> bool:
    r"""Whether a list says which values one variable has not: x \ne -1, 1."""
    first = gold.args[0]
    return isinstance(first, Rel) and "!=" in first.ops and len(symbols(gold)) == 1 and symbols(answer) <= symbols(gold)


def _alternatives(gold: Op, answer: Node, rules: Rules) -> bool | None:
    """Whether relations, some of them joined by "or", say the same; None where the joint makes no difference.

    x = 1 or y = 2 is not the point (1, 2), and x > 1 or x < 3 is not x > 1 and x < 3.
    """
    both = isinstance(answer, Op) and gold.head == answer.head
    relations = [part for node in (gold, answer) for part in _elements(node) if isinstance(part, Rel)]
    if not both and gold.head == "either" and _unknowns(gold) > 1:
        return False
    if not both and gold.head != "either" and _unknowns(answer) > 1:
        return False
    if not _are_inequalities(gold) and not any(op in TURNED and op != "=" for part in relations for op in part.ops):
        return None
    if max(len(symbols(gold)), len(symbols(answer))) > 1:
        if "either" in (gold.head, answer.head if isinstance(answer, Op) else ""):
            return both and _match_by_name(_elements(gold), _elements(answer), rules)
        try:
            return _same_systems(_by_name(gold), _by_name(answer), rules)
        except NotASet:
            return _match_by_name(_elements(gold), _elements(answer), rules) if _are_inequalities(gold) else None
    try:
        left, right = real_set(gold), real_set(answer)
    except NotASet:
        return None if both else False
    return same_real_set(left, right, rules.values)


def _match_by_name(left: list[Node], right: list[Node], rules: Rules) -> bool:
    """Whether relations are equal in this order or another, each in the same variables."""
    rest = list(right)
    for node in left:
        match = next((one for one in rest if symbols(one) == symbols(node) and rules.same(node, one)), None)
        if match is None:
            return False
        rest.remove(match)
    return not rest


def _unnumbered(nodes: list[Node], others: list[Node]) -> list[Node]:
    """Return x_1 = 1, x_2 = 2 with the unknown x that the other list has: x = 1 or x = 2."""
    names = {part.sides[0].name if isinstance(part, Rel) and isinstance(part.sides[0], Sym) else "" for part in others}
    name = names.pop() if names else ""
    if names or not name or "_" in name:
        return nodes
    return [
        Rel(node.ops, (Sym(name), *node.sides[1:])) if isinstance(node, Rel) and _is_numbered(node, name) else node
        for node in nodes
    ]


def _is_numbered(relation: Rel, name: str) -> bool:
    first = relation.sides[0]
    base, mark, index = first.name.partition("_") if isinstance(first, Sym) else ("", "", "")
    return base == name and bool(mark) and set(index) <= set("0123456789,")


def _unknowns(node: Node) -> int:
    """The number of unknowns that the equations of a list are solved for."""
    return len({part.sides[0] for part in _elements(node) if isinstance(part, Rel) and isinstance(part.sides[0], Sym)})


def _distinct(nodes: list[Node]) -> list[Node]:
    return list(dict.fromkeys(nodes))


def _match(left: list[Node], right: list[Node], rules: Rules) -> bool:
    """Whether the elements can be paired; those of equal value are paired first, which costs no comparison."""
    if len(left) != len(right):
        return False
    places: dict[object, list[int]] = {}
    for place, node in enumerate(right):
        places.setdefault(_key(node), []).append(place)
    rest = dict(enumerate(right))
    unmatched: list[Node] = []
    for node in left:
        same_key = places.get(_key(node))
        if same_key:
            del rest[same_key.pop()]
        else:
            unmatched.append(node)
    if len({_key(node) for node in right}) < len({_key(node) for node in left}):
        return False  # one value twice for two that are near it
    if len(unmatched) > MAX_UNORDERED:
        raise TooLarge(f"more than {MAX_UNORDERED} elements that differ in form")
    owners: dict[int, Node] = {}
    return all(_paired(node, rest, owners, set(), rules) for node in unmatched)


def _paired(node: Node, rest: dict[int, Node], owners: dict[int, Node], tried: set[int], rules: Rules) -> bool:
    """Give an element one that equals it; one that is taken where its owner can have another (Kuhn 1955)."""
    for place, other in rest.items():
        if place in tried or not _same_element(node, other, rules):
            continue
        tried.add(place)
        if place not in owners or _paired(owners[place], rest, owners, tried, rules):
            owners[place] = node
            return True
    return False


def _same_element(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether two elements are equal; {2} is not 2 there."""
    return _is_set(gold) == _is_set(answer) and rules.same(gold, answer)


def _is_set(node: Node) -> bool:
    return isinstance(node, Op) and node.head == "set"


def _key(node: Node) -> object:
    """Equal keys mean equal nodes: the exact value, else the tree."""
    value = rational(node)
    return node if value is None else value


def ordered(left: tuple[Node, ...], right: tuple[Node, ...], rules: Rules) -> bool:
    """Whether the elements are equal in this order."""
    return len(left) == len(right) and all(rules.same(g, a) for g, a in zip(left, right, strict=True))


def _tuple(gold: Op, answer: Node, rules: Rules) -> bool:
    """(a, b): a point, a vector, or an open interval, as the answer is written."""
    if is_half_labelled(answer):
        return False
    if isinstance(answer, Op) and (answer.head in ("()", "list") or (answer.head == "[]" and len(answer.args) != 2)):
        found = by_names(answer.args)
        return (
            ordered(gold.args, _unlabelled(found), rules)
            or ordered(gold.args, found, rules)
            or ordered(_unlabelled(gold.args), found, rules)
            or ordered(gold.args, under_name_of(gold, answer), rules)
        )
    if isinstance(answer, Op) and answer.head == "matrix":
        return _vector(answer) is not None and ordered(gold.args, _vector(answer) or (), rules)
    return len(gold.args) == 2 and real_sets(gold, answer, rules)


def _unlabelled(entries: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the coordinates of P(1, 2), whose label was distributed over the entries like a factor."""
    labels = {entry.args[0] if isinstance(entry, Op) and entry.head == "mul" else None for entry in entries}
    label = labels.pop()
    if labels or not isinstance(label, Sym) or not label.name[:1].isupper():
        return entries
    return tuple(entry.args[1] for entry in entries if isinstance(entry, Op) and len(entry.args) == 2)


def _brackets(gold: Op, answer: Node, rules: Rules) -> bool:
    """[a, b]: a closed interval or a list in square brackets."""
    if isinstance(answer, Op) and answer.head == gold.head:
        return ordered(gold.args, answer.args, rules)
    if isinstance(answer, Op) and answer.head in ("list", "set") and len(gold.args) != 2:
        return ordered(gold.args, answer.args, rules)
    return len(gold.args) == 2 and real_sets(gold, answer, rules)


def real_sets(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether both are the same set of reals: intervals, unions, solved inequalities, finite sets."""
    try:
        if len(symbols(gold)) > 1 or len(symbols(answer)) > 1:
            return _same_systems(_by_name(gold), _by_name(answer), rules)
        return same_real_set(real_set(gold), real_set(answer), lambda g, a: rules.values(g, a))
    except NotASet:
        return False


def _by_name(node: Node) -> dict[str, list[Piece]]:
    """The numbers that inequalities, all of which hold, allow for each of their variables. Raise NotASet."""
    found: dict[str, list[Piece]] = {}
    for part in node.args if isinstance(node, Op) and node.head in ("list", "both", "set") else (node,):
        names = symbols(part)
        if not isinstance(part, Rel) or len(names) != 1:
            raise NotASet
        (name,) = names
        pieces = real_set(part)
        found[name] = intersection(found[name], pieces) if name in found else pieces
    return found


def _same_systems(gold: dict[str, list[Piece]], answer: dict[str, list[Piece]], rules: Rules) -> bool:
    return gold.keys() == answer.keys() and all(
        same_real_set(pieces, answer[name], rules.values) for name, pieces in gold.items()
    )


def _vector(matrix: Op) -> tuple[Node, ...] | None:
    """The entries of a matrix of one column or one row."""
    rows = [row.args for row in matrix.args if isinstance(row, Op)]
    if len(rows) == 1:
        return rows[0]
    return tuple(row[0] for row in rows) if all(len(row) == 1 for row in rows) else None


def _matrix(gold: Op, answer: Node, rules: Rules) -> bool:
    if isinstance(answer, Op) and answer.head == "()":
        return ordered(_vector(gold) or (), answer.args, rules)
    if not isinstance(answer, Op) or answer.head != "matrix" or len(gold.args) != len(answer.args):
        return False
    return all(
        isinstance(g, Op) and isinstance(a, Op) and ordered(g.args, a.args, rules)
        for g, a in zip(gold.args, answer.args, strict=True)
    )


def _based(gold: Op, answer: Node, rules: Rules) -> bool:
    """52_8: the same digits in the same base; the base may be left out."""
    if isinstance(answer, Op) and answer.head == "based":
        return gold == answer
    return Words(digits_of(answer)) == gold.args[0]


def digits_of(node: Node) -> str:
    """Return the digits of an integer, with letters too (3A is read as a product), "" for anything else."""
    parts = node.args if isinstance(node, Op) and node.head == "mul" else (node,)
    digits = ""
    for part in parts:
        written = literal(part)
        if isinstance(part, Sym) and len(part.name) == 1:
            digits += part.name.upper()
        elif written is not None and is_integer(written) and written.value >= 0:
            digits += str(written.value)
        else:
            return ""
    return digits


def _ratio(gold: Op, answer: Node, rules: Rules) -> bool:
    """a:b as a fraction, a:b:c up to a factor."""
    parts = answer.args if isinstance(answer, Op) and answer.head == "ratio" else None
    if parts is None:
        return len(gold.args) == 2 and rules.values(Op("div", gold.args), answer)
    if len(parts) != len(gold.args):
        return False
    return all(
        rules.values(Op("mul", (gold.args[0], other)), Op("mul", (parts[0], wanted)))
        for wanted, other in zip(gold.args[1:], parts[1:], strict=True)
    )


def _modular(gold: Op, answer: Node, rules: Rules) -> bool:
    """3 (mod 7): the same residue class; the modulus may be left out."""
    if not isinstance(answer, Op) or answer.head != "mod":
        if symbols(gold.args[0]):
            return False
        modulus, least = rational(gold.args[1]), rational(answer)
        if modulus and least is not None and 0 <= least < modulus and (value := rational(gold.args[0])) is not None:
            return ((value - least) / modulus).denominator == 1
        return rules.same(gold.args[0], answer)
    modulus, other = rational(gold.args[1]), rational(answer.args[1])
    left, right = rational(gold.args[0]), rational(answer.args[0])
    if modulus is None or not modulus or left is None or right is None:
        return ordered(gold.args, answer.args, rules)
    return modulus == other and ((left - right) / modulus).denominator == 1


def _domain(gold: Op, answer: Node, rules: Rules) -> bool:
    return gold == answer or real_sets(gold, answer, rules)


def _plus_minus(gold: Op, answer: Node, rules: Rules) -> bool:
    return _unordered(Op("list", (gold,)), answer, rules)


def _joined(gold: Op, answer: Node, rules: Rules) -> bool:
    """Propositions joined by the same sign, in any order."""
    return isinstance(answer, Op) and answer.head == gold.head and _match(list(gold.args), list(answer.args), rules)


def _of_sets(gold: Op, answer: Node, rules: Rules) -> bool:
    """Unions, intersections and differences of sets of reals, or of sets by name."""
    if isinstance(answer, Op) and answer.head == gold.head and _are_names(gold) and _are_names(answer):
        if gold.head == "minus":
            return ordered(gold.args, answer.args, rules)
        return _match(_distinct(list(gold.args)), _distinct(list(answer.args)), rules)
    return real_sets(gold, answer, rules)


def _are_names(node: Op) -> bool:
    return any(isinstance(part, Sym) and symbols(part) for part in node.args)


STRUCTURES: dict[str, Callable[[Op, Node, Rules], bool]] = {
    "list": _unordered,
    "either": _unordered,
    "set": _unordered,
    "()": _tuple,
    "[]": _brackets,
    **dict.fromkeys(("[)", "(]", "both"), real_sets),
    **dict.fromkeys(("union", "inter", "minus"), _of_sets),
    **dict.fromkeys(("and", "or"), _joined),
    "matrix": _matrix,
    "based": _based,
    "ratio": _ratio,
    "domain": _domain,
    "such": same_builders,
    "mod": _modular,
    "pm": _plus_minus,
    "mp": _plus_minus,
}
# Structures of an answer that are also compared with a gold without structure.
EITHER_SIDE = frozenset(("ratio", "set"))
