"""What kind of thing an answer is, in words, for the reasons of verdicts."""

from __future__ import annotations

from rlvr.verifiers.math.tree import Node, Op, Quantity, Rel, symbols

_KINDS = {
    "set": "a set", "such": "a set", "()": "a tuple", "[]": "an interval", "[)": "an interval", "(]": "an interval",
    "union": "an interval",
    "inter": "an interval", "minus": "an interval", "domain": "a set", "both": "an inequality", "matrix": "a matrix",
    "based": "a number in a base", "ratio": "a ratio", "pm": "two values",
}  # fmt: skip


def kind(node: Node) -> str:
    """Return the kind of an answer in words."""
    if isinstance(node, Rel):
        return "an equation" if set(node.ops) <= {"=", "~"} else "an inequality"
    if isinstance(node, Quantity):
        return f"{kind(node.value)} with a unit"
    if isinstance(node, Op) and node.head in ("list", "either"):
        return f"{len(node.args)} {'values' if node.head == 'list' else 'alternatives'}"
    if isinstance(node, Op) and node.head in _KINDS:
        return _KINDS[node.head]
    return "an expression" if symbols(node) else "a number"
