"""The event loop of a program: it takes a turn when the tests ask for one, so that both sides' tasks run together."""

from __future__ import annotations

import _thread
import contextlib
import heapq
import importlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

# The first turns are taken one by one, as the tests' own loop takes its turns; then several at once, for so long.
_ONE_BY_ONE, _TURN_SECONDS = 200, 0.002
# The original: a program that replaces the module's would work for free.
_monotonic = time.monotonic
# A loop that may be woken from elsewhere, by threads or files, is asked again after this time.
_POLL_SECONDS = 0.002


async def _next(found: Any) -> list[Any]:
    try:
        return [await found.__anext__()]
    except StopAsyncIteration:
        return []


async def _await(found: Any) -> Any:
    return await found


async def _leave(found: Any, kind: str = "", args: Any = ()) -> bool:
    error = Loop.error(kind, args) if kind else None
    return bool(await type(found).__aexit__(found, type(error) if error else None, error, None))


_STARTED: dict[str, Callable[..., Any]] = {
    "await": _await,
    "anext": _next,
    "aenter": lambda found: _await(type(found).__aenter__(found)),
    "aexit": _leave,
}


class Loop:
    """The loop of one thread, its tasks by number, and what they await of the tests."""

    loops: ClassVar[dict[int, Loop]] = {}
    # Makes an exception of the tests of its name and its arguments.
    error: ClassVar[Callable[[str, list[Any]], Exception]]

    def __init__(self) -> None:
        asyncio = importlib.import_module("asyncio")
        self.asyncio = asyncio
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self._numbers = itertools.count()
        self._tasks: dict[int, Any] = {}
        self._done: list[list[Any]] = []
        self._turns = 0
        # Awaitables of the tests, by number: to be started, to be cancelled, awaited.
        self._wanted: list[int] = []
        self._dropped: list[int] = []
        self._futures: dict[int, Any] = {}

    @classmethod
    def own(cls) -> Loop:
        """Return the loop of this thread."""
        thread = _thread.get_ident()
        if thread not in cls.loops:
            cls.loops[thread] = cls()
        return cls.loops[thread]

    @classmethod
    def run(cls, awaitable: Any) -> Any:
        """Return the result of an awaitable, for tests without a loop of their own."""
        return cls.own().loop.run_until_complete(_await(awaitable))

    @classmethod
    def leave(cls, found: Any, kind: str = "", args: Any = ()) -> bool:
        """Leave an asynchronous context, after an exception that is known by its name."""
        return bool(cls.run(_leave(found, kind, args)))

    @classmethod
    def step(cls, found: Any) -> list[Any]:
        """Return the next item of an asynchronous iterator in a list, an empty one at its end."""
        return list(cls.run(_next(found)))

    def fresh(self) -> list[Any]:
        """Cancel all tasks, as `asyncio.run` does in the end."""
        for task in self.asyncio.all_tasks(self.loop):
            task.cancel()
        self._tasks.clear()
        return self.turn([])

    def start(self, found: Any, how: str, *args: Any) -> list[Any]:
        """Start a task, `how` with further arguments, up to where it waits, as a task of the tests' loop starts.

        Returns its number before what `turn` returns. What else is ready waits for the turns that follow.
        """
        begin, number = _monotonic(), next(self._numbers)
        ready, timers = [*self.loop._ready], [*self.loop._scheduled]
        self.loop._ready.clear()
        self.loop._scheduled.clear()
        task = self._tasks[number] = self.loop.create_task(_STARTED[how](found, *args))
        task.add_done_callback(lambda task: self._done.append([number, task.cancelled()]))
        if self._is_free():
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        self.loop._ready.extendleft(reversed(ready))
        for timer in timers:
            heapq.heappush(self.loop._scheduled, timer)
        return [number, *self._told(begin)]

    def turn(self, ended: list[Any]) -> list[Any]:
        """Take a turn. `ended`: of awaitables of the tests the number, whether there is a value, it or an error, and
        the object of the tests whose method it was, as it is now.

        Returns the tasks that are done, with whether they were cancelled; seconds to wait for the next turn, None if
        nothing is due; awaitables to start and to cancel; the seconds that it took.
        """
        begin = _monotonic()
        for number, good, value, _ in ended:
            future = self._futures.pop(number, None)
            if future is not None and not future.done():
                future.set_result(value) if good else future.set_exception(Loop.error(*value))
        while self._is_free():
            self._turns += 1
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            late = _monotonic() - begin > _TURN_SECONDS
            if self._turns <= _ONE_BY_ONE or late or self._delay() != 0 or self._done or self._wanted:
                break
        return self._told(begin)

    def _is_free(self) -> bool:
        """Whether the loop may run: neither it nor another one runs in this thread."""
        return not self.loop.is_running() and self.asyncio.events._get_running_loop() is None

    def _told(self, begin: float) -> list[Any]:
        parts = self._done, self._wanted, self._dropped
        self._done, self._wanted, self._dropped = [], [], []
        return [parts[0], self._delay(), *parts[1:], _monotonic() - begin]

    def _delay(self) -> float | None:
        if self.loop._ready:
            return 0
        due = [handle.when() - self.loop.time() for handle in self.loop._scheduled if not handle.cancelled()]
        threading = sys.modules.get("threading")
        woken = len(self.loop._selector.get_map()) > 1 or (threading is not None and threading.active_count() > 1)
        waits = [*due, *([_POLL_SECONDS] if woken else [])]
        return min(max(min(waits), 0), 1e6) if waits else None

    def result(self, number: int) -> Any:
        """Return the result of a task that is done, or raise its exception."""
        return self._tasks.pop(number).result()

    def cancel(self, number: int) -> list[Any]:
        """Cancel a task, and take a turn."""
        if number in self._tasks:
            self._tasks[number].cancel()
        return self.turn([])

    @classmethod
    async def awaited(cls, number: int, without: Callable[[], Any]) -> Any:
        """Await an awaitable of the tests; by calling `without` in a loop that the program runs itself."""
        own = cls.own()
        if own.asyncio.get_running_loop() is not own.loop or own.loop not in cls.turning():
            return without()
        future = own._futures[number] = own.loop.create_future()
        own._wanted.append(number)
        try:
            return await future
        except own.asyncio.CancelledError:
            if future.cancelled():
                own._futures.pop(number, None)
                own._dropped.append(number)
            raise

    @classmethod
    def turning(cls) -> list[Any]:
        """Return the loops that take turns for the tests."""
        return [loop.loop for loop in cls.loops.values()]


_TURNING = frozenset(("start", "turn", "cancel", "fresh", "await", "anext", "step"))


@contextlib.contextmanager
def running(request: dict[str, Any]) -> Iterator[None]:
    """Let the program find its loop running in a request that comes out of a running loop of the tests."""
    if not request.get("loop") or request["do"] in _TURNING:
        yield
        return
    events = Loop.own().asyncio.events
    before = events._get_running_loop()
    events._set_running_loop(Loop.own().loop)
    try:
        yield
    finally:
        events._set_running_loop(before)
