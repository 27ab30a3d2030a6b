"""Propositions joined by signs: `p \\land q`, `p \\lor q`."""

from __future__ import annotations

from rlvr.verifiers.math.tree import Node, Op, Rel, symbols


def is_logic(items: list[Node]) -> bool:
    """Whether items between signs of logic are propositions, not relations or numbers."""
    return all(symbols(item) and not isinstance(item, Rel) for item in items)


def propositions(items: list[Node], joints: list[str]) -> Node:
    """Return propositions with the signs between them: `land` binds more tightly than `lor`."""
    groups: list[list[Node]] = [[items[0]]]
    for joint, item in zip(joints, items[1:], strict=False):
        if joint in ("lor", "or"):
            groups.append([item])
        else:
            groups[-1].append(item)
    found = tuple(group[0] if len(group) == 1 else Op("and", tuple(group)) for group in groups)
    return found[0] if len(found) == 1 else Op("or", found)


def chained(items: list[Node], joints: list[str]) -> list[Node]:
    """Return a < b < c for a < b and b < c."""
    if not joints or not {*joints} <= {"and", "land", ","} or joints == [","] * len(joints):
        return items
    first, *others = items
    if not isinstance(first, Rel):
        return items
    chain = first
    for item in others:
        if not isinstance(item, Rel) or item.sides[0] != chain.sides[-1] or not symbols(item.sides[0]):
            return items
        chain = Rel((*chain.ops, *item.ops), (*chain.sides, *item.sides[1:]))
    return [chain]
