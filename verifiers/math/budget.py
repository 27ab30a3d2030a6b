"""The work that a comparison may take in the caller's process, counted in nodes evaluated in floats: not in seconds,
so that a busy machine changes nothing. In a worker process, which can be killed, nothing is counted."""

from __future__ import annotations

from contextvars import ContextVar

from rlvr.verifiers.math.tree import Node, Num, Op, walk

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
        if isinstance(node, Op) and node.head == "pow" and isinstance(node.args[1], Num):
            total += PRECISE * min(abs(node.args[1].value.numerator), _MAX_POWER) // 32
    return total
