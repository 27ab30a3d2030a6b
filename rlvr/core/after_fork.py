"""Reset objects in forked processes, where threads are missing, locks may be held and connections are the parent's."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Object whose `after_fork` is called in the child before anything else runs there."""

    def after_fork(self) -> None: ...


_registered: weakref.WeakSet[Forked] = weakref.WeakSet()


def register(one: Forked) -> None:
    """Call `one.after_fork()` in every process forked from this one, as long as `one` is alive. Holds no reference."""
    _registered.add(one)


def _after_fork() -> None:
    for one in list(_registered):
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork)
