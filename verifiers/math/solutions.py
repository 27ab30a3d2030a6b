"""Solutions of systems: x = 1, y = 2 or x = 2, y = 1 are the points (1, 2) and (2, 1)."""

from __future__ import annotations

from rlvr.verifiers.math.tree import Node, Op, Rel, Sym, symbols

MAX_UNKNOWNS = 6
_BRACKETS = frozenset(("()", "set", "both"))


def as_points(items: list[Node], joints: list[str]) -> list[Node]:
    """Return the points that items of a list give, in the alphabetical order of their unknowns; else the items."""
    grouped = [_of_group(item) for item in items]
    if all(grouped) and len({frozenset(group) for group in grouped}) == 1:
        return [_point(group) for group in grouped]
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
    return [_point(block) for block in blocks]


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


def _point(values: dict[str, Node]) -> Node:
    return Op("()", tuple(values[name] for name in sorted(values)))
