"""What a forked process must make anew: threads are not copied, locks may be held, and connections are the parent's."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Something with `after_fork`, which is called in the child before anything else runs there."""

    def after_fork(self) -> None: ...


_registered: weakref.WeakSet[Forked] = weakref.WeakSet()


def register(one: Forked) -> None:
    """Have `one.after_fork()` called in each process that is forked from this one, for as long as `one` lives."""
    _registered.add(one)


def _after_fork() -> None:
    for one in list(_registered):
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork)
