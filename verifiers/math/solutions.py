"""Solutions of systems: x = 1, y = 2 or x = 2, y = 1 are the points (1, 2) and (2, 1)."""

from __future__ import annotations

from typing import TypeVar

from rlvr.verifiers.math.binders import renamed
from rlvr.verifiers.math.tree import Node, Num, Op, Rel, Sym, symbols

_PARAMETER_NAMES = frozenset((*"tsrknmuc", "lambda", "mu"))  # of a point of a line, of triples (n, n, n)
NodeT = TypeVar("NodeT", bound=Node)

MAX_UNKNOWNS = 6
LISTS = frozenset(("list", "either", "()"))
_BRACKETS = frozenset(("()", "set", "both"))


def as_points(items: list[Node], joints: list[str]) -> list[Node]:
    """Return the points that items of a list give, in the order of their unknowns as in `by_names`; else the items."""
    grouped = [_of_group(item) for item in items]
    if all(grouped) and len({frozenset(group) for group in grouped}) == 1:
        return [_point(group, grouped[0]) for group in grouped]
    return _of_run(items, joints)


def _of_run(items: list[Node], joints: list[str]) -> list[Node]:
    """The points of x = 1, y = 2 or x = 2, y = 1: the same unknowns again and again."""
    assigned = [_assigned(item) for item in items]
    names = [name for name, _ in assigned]
    size = next((place for place, name in enumerate(names) if place and name == names[0]), 0)
    if not 2 <= size <= MAX_UNKNOWNS or "" in names or len(items) % size:
        return items
    blocks = [dict(assigned[place : place + size]) for place in range(0, len(items), size)]
    within = [joint for place, joint in enumerate(joints) if (place + 1) % size]
    if any(block.keys() != blocks[0].keys() or len(block) < size for block in blocks) or "or" in within:
        return items
    return [_point(block, blocks[0]) for block in blocks]


def _of_group(item: Node) -> dict[str, Node]:
    """The unknowns and values of (x = 1, y = 2); none where it is another item."""
    if not isinstance(item, Op) or item.head not in _BRACKETS or not 2 <= len(item.args) <= MAX_UNKNOWNS:
        return {}
    values = dict(map(_assigned, item.args))
    return values if len(values) == len(item.args) and "" not in values else {}


def _assigned(item: Node) -> tuple[str, Node]:
    """(x, 1) of x = 1; ("", item) of anything else."""
    if isinstance(item, Rel) and item.ops == ("=",) and isinstance(item.sides[0], Sym) and symbols(item.sides[0]):
        return item.sides[0].name, item.sides[1]
    return "", item


def _point(values: dict[str, Node], first: dict[str, Node]) -> Node:
    """The point of unknowns in a row in their order, of others in that of the first point."""
    places = _places(list(first))
    return Op("()", tuple(values[name] for name in (sorted(first, key=places.__getitem__) if places else first)))


def with_modulus(items: list[Node]) -> list[Node]:
    """Return the items of x = 0, 1 (mod 3) with x and the modulus, which are written once, for each of them."""
    value = items[-1].sides[-1] if isinstance(items[-1], Rel) else items[-1]
    if not isinstance(value, Op) or value.head != "mod":
        return items
    modulus = value.args[1]
    name, _ = _assigned(items[0])
    found: list[Node] = []
    for item in items:
        label, residue = _assigned(item)
        if label not in ("", name) or symbols(residue):
            return items
        if item is items[-1] and isinstance(residue, Op):
            residue = residue.args[0]
        elif not isinstance(residue, Num) and not (isinstance(residue, Op) and residue.head == "neg"):
            return items
        residue = Op("mod", (residue, modulus))
        found.append(Rel(("=",), (Sym(name), residue)) if name else residue)
    return found


def by_names(items: tuple[NodeT, ...]) -> tuple[NodeT, ...]:
    """Return equations for x and y, a and b, x_1 and x_2 in the order of these names, other items as they are.

    A point has that order, (x, y) = (1, 2), whichever of y = 2, x = 1 is written first; m = 3, b = 1 have none.
    """
    names = [_assigned(item)[0] for item in items]
    places = _places(names)
    return tuple(items[names.index(name)] for name in sorted(names, key=places.__getitem__)) if places else items


def of_point(node: Node) -> tuple[Rel, ...]:
    """The equations x = 1, y = 2 of (x, y) = (1, 2), and x = 2, y = 2 of x = y = 2; none for another node."""
    if not isinstance(node, Rel) or set(node.ops) != {"="}:
        return ()
    *names, value = node.sides
    values = (value,) * len(names)
    if len(names) == 1 and isinstance(value, Op) and isinstance(names[0], Op) and names[0].head == value.head == "()":
        names, values = list(names[0].args), value.args
    elif len(names) == 1 or symbols(value):
        return ()
    if len(names) != len(values) or not all(isinstance(name, Sym) and symbols(name) for name in names):
        return ()
    return tuple(Rel(("=",), pair) for pair in zip(names, values, strict=True))


def is_labelled(node: Node) -> bool:
    """Whether a node is a list of equations for its unknowns."""
    return isinstance(node, Op) and node.head in ("list", "both") and all(_assigned(item)[0] for item in node.args)


def under_name_of(gold: Op, answer: Op) -> tuple[Node, ...]:
    """Return points with one parameter with the name that the gold gives it, (t, 2t) for (s, 2s); () where none is."""
    names, others = symbols(gold), symbols(answer)
    if len(names) != 1 or len(others) != 1 or names == others or not names | others <= _PARAMETER_NAMES:
        return ()
    (name,), (other,) = names, others
    return tuple(renamed(arg, other, Sym(name)) for arg in answer.args)


def in_parameter_of(gold: Node, answer: Node) -> Op | None:
    """Return x = 1 + s, y = s with the parameter of x = 1 + t, y = t; None where there is nothing to rename."""
    left, right = unknowns(gold), unknowns(answer)
    if left.keys() != right.keys() or len(left) < 2:
        return None
    values = under_name_of(Op("()", tuple(left.values())), Op("()", tuple(right.values())))
    return (
        Op("list", tuple(Rel(("=",), (Sym(name), value)) for name, value in zip(right, values, strict=True)))
        if values
        else None
    )


def is_of_roots(name: str) -> bool:
    """Whether a name is a coordinate's, or an eigenvalue's: those with numbers are roots in any order."""
    return name[0] in "xyzt" or name.startswith("lambda")


def without_numbers(left: list[Node], right: list[Node]) -> tuple[list[Node], list[Node]]:
    r"""Return lists of eigenvalues, \lambda_1 = 2, \lambda_2 = 3, as values: their numbers say nothing."""
    if not all(_assigned(item)[0].startswith("lambda_") for item in left):
        return left, right
    named = [_assigned(item) for item in right]
    plain = all(name == "" or name.startswith("lambda") for name, _ in named)
    return ([_assigned(item)[1] for item in left], [value for _, value in named]) if plain else (left, right)


def unknowns(node: Node) -> dict[str, Node]:
    """The unknowns of a list of equations, and their values."""
    return dict(map(_assigned, node.args)) if isinstance(node, Op) else {}


def confuses_unknowns(gold: Op, answer: Node) -> bool:
    """Whether an answer is no solution for several unknowns, or one where several for one are wanted.

    x = 1, 2 gives y no value, 1 or 2 says not whose value is which; (1, 2) is not x = 1 or x = 2, nor that (1, 2).
    """
    if not isinstance(answer, Op) or len(gold.args) < 2:
        return False
    if gold.head == "()":
        one = is_labelled(answer) and len(unknowns(answer)) == 1
        return one or (
            answer.head == "either" and not any(isinstance(arg, Op) and arg.head == "()" for arg in answer.args)
        )
    named = [_assigned(item)[0] for item in gold.args]
    bases = _bases(gold)
    if "" in bases:
        return is_half_labelled(gold) and is_labelled(answer) and len(_bases(answer)) > 1
    if len(bases) == 1:
        return len({*named}) == 1 and answer.head == "()"
    return is_half_labelled(answer) or (answer.head in ("either", "set") and "" in _bases(answer))


def is_half_labelled(node: Node) -> bool:
    """Whether a node is a list such as x = 1, 2, which gives one unknown values."""
    labels = [_assigned(item)[0] for item in node.args] if isinstance(node, Op) and node.head == "list" else []
    return labels[:1] > [""] and "" in labels


def _bases(node: Op) -> set[str]:
    return {_assigned(item)[0].partition("_")[0] for item in node.args}


def _places(names: list[str]) -> dict[str, int]:
    """The places of names in a row: x and z, a and b, x_1 and x_3; none where they are others, or one comes twice."""
    if "" in names or len({*names}) < len(names) or len(names) < 2:
        return {}
    if all(len(name) == 1 for name in names):
        places = {name: ord(name) for name in names}
        row = max(places.values()) - min(places.values()) == len(names) - 1
        return places if row or {*names} <= {*"xyz"} else {}
    numbered = [name.partition("_")[::2] for name in names]
    if len({base for base, _ in numbered}) > 1 or not all(index.isdecimal() for _, index in numbered):
        return {}
    return {name: int(index) for name, (_, index) in zip(names, numbered, strict=True)}
