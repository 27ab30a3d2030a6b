"""Containers of the tests that a program keeps beyond a call: what either side changes is told to the other.

`log = []`, then `worker = Worker(log)`, `worker.run()` and `assert log == ["done"]`.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from rlvr.sandbox.inside.originals import Copied, Originals, same, update

_KINDS = (list, dict, set, bytearray, deque, Counter, OrderedDict, defaultdict)
# What is more, or larger, stays as it was.
_MAX_KEPT, _MAX_ITEMS = 16, 1000


class Lender:
    """The tests' side: arguments of calls in progress, and of calls that returned an object, which may keep them."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        # By number: the container, and a copy of it as both sides know it.
        self._kept: dict[int, tuple[Any, Any]] = {}

    def offer(self, places: Iterable[tuple[int | str, Any]]) -> list[tuple[int | str, int, bool]]:
        """Number the arguments that a program may keep. Returns place, number, and whether it is kept already."""
        offered = []
        for place, value in places:
            if type(value) in _KINDS and len(value) <= _MAX_ITEMS:
                known = next((number for number, kept in self._kept.items() if kept[0] is value), None)
                number = next(self._numbers) if known is None else known
                self._kept[number] = (value, Originals().copy(value))
                offered.append((place, number, known is not None))
        return offered

    def told(self, offered: list[tuple[int | str, int, bool]], write: Callable[[Any], Any]) -> dict[str, Any]:
        """Return what a request tells of containers, if there are any."""
        if not self._kept:
            return {}
        new = [[place, number] for place, number, _ in offered]
        return {"kept": {"new": new, "live": list(self._kept), "refill": self.changed(write)}}

    def end(self, offered: list[tuple[int | str, int, bool]], keep: bool) -> None:
        """Take note that both sides know the arguments of a call as they are now; forget those that nothing keeps."""
        for _, number, known in offered:
            if keep or known:
                self._agree(number)
            else:
                self._kept.pop(number, None)
        for number in list(self._kept)[:-_MAX_KEPT]:
            del self._kept[number]

    def changed(self, write: Callable[[Any], Any]) -> list[list[Any]]:
        """Return what the tests have changed since both sides knew it, by number."""
        rows = []
        for number, (value, known) in list(self._kept.items()):
            if not same(value, known):
                self._kept[number] = (value, Originals().copy(value))
                rows.append([number, write(value)])
        return rows

    def copy(self, copied: Copied) -> None:
        """Take note of what is kept before a request that may change it."""
        for value, _ in self._kept.values():
            Originals().copy(value, copied)

    def hear(self, rows: Any, read: Callable[[Any], Any]) -> None:
        """Repeat what the program has changed."""
        for row in rows if type(rows) is list else ():
            number, data = row
            if type(number) is int and number in self._kept:
                update([self._kept[number][0]], [read(data)])
                self._agree(number)

    def _agree(self, number: int) -> None:
        if number in self._kept:
            value = self._kept[number][0]
            self._kept[number] = (value, Originals().copy(value))


class Keeper:
    """The program's side: the containers by number, and how both sides know them, encoded."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self._write = write
        self._kept: dict[int, tuple[Any, Any]] = {}

    def take(self, told: dict[str, Any], read: Callable[[Any], Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        """Do what a request says of containers. Those among its arguments that are known are put in their places."""
        self._kept = {number: kept for number, kept in self._kept.items() if number in told["live"]}
        self.refill(told["refill"], read)
        for place, number in told["new"]:
            given: Any = args if type(place) is int else kwargs
            if number in self._kept:
                fill(self._kept[number][0], given[place])
                given[place] = self._kept[number][0]
            self._kept[number] = (given[place], self._write(given[place]))

    def refill(self, rows: list[list[Any]], read: Callable[[Any], Any]) -> None:
        """Repeat what the tests have changed."""
        for number, data in rows:
            if number in self._kept:
                fill(self._kept[number][0], read(data))
                self._kept[number] = (self._kept[number][0], data)

    def changed(self) -> list[list[Any]]:
        """Return what the program has changed since both sides knew it, by number."""
        rows = []
        for number, (value, known) in list(self._kept.items()):
            data = self._write(value)
            if data != known:
                self._kept[number] = (value, data)
                rows.append([number, data])
        return rows


def fill(inner: Any, value: Any) -> None:
    """Give a container the items of another one."""
    if inner is value:
        return
    if isinstance(inner, (list, bytearray)):
        inner[:] = value
    else:
        inner.clear()
        (inner.extend if hasattr(inner, "extend") else inner.update)(value)
