"""Coroutines of a program in the event loop of test code: both loops take turns, and time between them does not count.

A coroutine of the program is a task there, and a future here. While there are such tasks, or the program has others,
a callback of the tests' loop asks the program's loop for its turns; their messages carry what each side awaits of the
other. The tests' loop counts no time for the way there and back, so that a slow machine makes nothing time out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from typing import Any

from rlvr.sandbox.inside import exceptions
from rlvr.sandbox.inside.originals import is_own
from rlvr.sandbox.inside.plain import PlainError

_MAX_DELAY = 1e6  # seconds
# For requests that concern no object of the program.
NOBODY: dict[str, Any] = {"object": None}


class Started:
    """What the program computes in a task of its own, for `await`: `how` is a name in `_STARTED` of turns.py."""

    def __init__(self, link: Any, on: dict[str, Any], how: str, *args: Any, chained: bool = True) -> None:
        self._parts = link, on, how, args, chained

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from awaited(*self._parts))


def awaited(
    link: Any, on: dict[str, Any], how: str, args: tuple[Any, ...] = (), chained: bool = True
) -> Generator[Any, Any, Any]:
    """Await a task of the program; without a running loop of the tests, run it to its end. `chained`: as for Maker."""
    loop = running_loop()
    if loop is None:
        return link.ask(how, on, args, returned=True, chained=chained)
    return (yield from turns_of(link, loop).waited(on, (how, *args), chained))


def turns_of(link: Any, loop: Any) -> Turns:
    """Return the turns of the program's loop within a loop of the tests."""
    if getattr(loop, "_turns", None) is None:
        loop._turns = Turns(link, loop)
    found: Turns = loop._turns
    return found


class Turns:
    """The turns of a program's loop, within one loop of the tests."""

    def __init__(self, link: Any, loop: Any) -> None:
        self._link = link
        self._loop = loop
        self._asyncio = sys.modules["asyncio"]
        # Tasks of the program that are awaited here, and those of them that are done: whether they were cancelled.
        self._futures: dict[int, Any] = {}
        self._done: dict[int, bool] = {}
        # Tasks here for what the program awaits, and what has come of them.
        self._tasks: dict[int, Any] = {}
        self._ended: list[list[Any]] = []
        self._next: Any = None
        self._asking = False
        self._ask("fresh")
        link.after = _after

    def waited(self, on: dict[str, Any], how: tuple[Any, ...], chained: bool) -> Generator[Any, Any, Any]:
        """Start a task of the program and await it. A cancellation is the program's, which may go on."""
        number = self._ask("start", how, on)
        while True:
            error: BaseException | None = None
            if number not in self._done:
                future = self._futures[number] = self._loop.create_future()
                try:
                    yield from future
                except self._asyncio.CancelledError as cancelled:
                    error = cancelled
            if number in self._done and not self._done[number]:
                return self._link.ask("result", NOBODY, (number,), returned=True, chained=chained)
            if number in self._done:
                self._link.raised = error or self._asyncio.CancelledError()
                raise self._link.raised
            self._ask("cancel", (number,))

    def _ask(self, do: str, args: tuple[Any, ...] = (), on: dict[str, Any] = NOBODY) -> int:
        """Ask the program's loop for something that takes a turn. Returns the number of a task that was started."""
        begin, self._asking = time.monotonic(), True
        try:
            answer = self._link.ask(do, on, args)
            number = answer.pop(0) if do == "start" and type(answer) is list and answer else 0
            busy = self._hear(answer)
            if type(number) is not int:
                raise PlainError("malformed number")
        except BaseException as error:
            for future in self._futures.values():
                if not future.done():
                    future.set_exception(error)
            raise
        finally:
            self._asking = False
        took = time.monotonic() - begin
        self._loop._not_counted = getattr(self._loop, "_not_counted", 0.0) + took - min(busy, took)
        return number

    def _hear(self, answer: Any) -> float:
        """Do what the program's loop has told, and return the seconds that it worked."""
        done, delay, wanted, dropped, busy = answer
        # Neither is NaN, with which all timers would be due.
        if type(busy) is not float or not busy >= 0 or (delay is not None and not 0 <= delay <= _MAX_DELAY):
            raise PlainError("malformed turn")
        for number, cancelled in done:
            self._done[number] = cancelled is True
            future = self._futures.pop(number, None)
            if future is not None and not future.done():
                future.set_result(None)
        for number in wanted:
            found = self._link.lent.object(number)
            if number not in self._tasks:
                self._tasks[number] = self._loop.create_task(self._serve(number, found))
        for number in dropped:
            if number in self._tasks:
                self._tasks[number].cancel()
        self._schedule(delay)
        return busy

    def _schedule(self, delay: float | None) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = None
        if delay is not None and not self._loop.is_closed():
            self._next = self._loop.call_later(delay, self._turn) if delay > 0 else self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._next = None
        ended, self._ended = self._ended, []
        self._ask("turn", (ended,))

    def after(self) -> None:
        """Let the program's loop go on after a request that may have given it something to do."""
        if not self._asking:
            self._schedule(0)

    async def _serve(self, number: int, found: Any) -> None:
        """Await for the program what it awaits of the tests."""
        frame = getattr(found, "cr_frame", None)
        own = frame.f_locals.get("self") if frame is not None else None
        own = own if is_own(own) else None
        try:
            # First: what has ended is told with each turn, and a new list begun.
            value = await found
            self._ended.append([number, True, value, own])
        except Exception as error:
            self._link.hidden |= _takes_arguments(found) and exceptions.fails(error)
            self._ended.append([number, False, [type(error).__name__, [str(part) for part in error.args]], own])
        finally:
            self._tasks.pop(number, None)
            if not self._asking:
                self._schedule(0)


def _takes_arguments(found: Any) -> bool:
    """Whether a coroutine is of a function with parameters, which the program may have given what it likes."""
    code = getattr(found, "cr_code", None)
    return code is not None and code.co_argcount > (code.co_varnames[:1] == ("self",))


def running_loop() -> Any:
    """Return the loop that this thread runs, or None."""
    events = sys.modules.get("asyncio.events")
    return None if events is None else events._get_running_loop()


def _after() -> None:
    turns = getattr(running_loop(), "_turns", None)
    if turns is not None:
        turns.after()
