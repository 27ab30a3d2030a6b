"""Let asyncio and inspect in test code take what functions of a program return for coroutines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any

from rlvr.sandbox.inside import awaiting
from rlvr.sandbox.inside.proxies import Handle, Named, asked

_QUESTIONS = ("iscoroutinefunction", "isgeneratorfunction", "isasyncgenfunction")


def patch(link: Any, patches: MutableMapping[str, Callable[[Any], None]], fail: Callable[[], None]) -> None:
    """Change the modules in this process, or, through `patches`, once they are imported.

    `fail` is told of tasks that a group takes for cancelled although nobody has cancelled them.
    """
    for name, change in (
        ("asyncio.runners", _runners),
        ("asyncio.base_events", lambda module: _base_events(link, module)),
        ("asyncio.taskgroups", lambda module: _taskgroups(module, fail)),
        ("inspect", _inspect),
    ):
        if name in sys.modules:
            change(sys.modules[name])
        else:
            patches[name] = change


async def _result(handle: Handle) -> Any:
    return await handle


def _runners(module: Any) -> None:
    original = module.Runner.run

    def run(self: Any, coro: Any, **kwargs: Any) -> Any:
        return original(self, _result(coro) if isinstance(coro, Handle) else coro, **kwargs)

    module.Runner.run = run


def _base_events(link: Any, module: Any) -> None:
    original = module.BaseEventLoop.create_task

    def create_task(self: Any, coro: Any, **kwargs: Any) -> Any:
        return original(self, _result(coro) if isinstance(coro, Handle) else coro, **kwargs)

    module.BaseEventLoop.create_task = create_task
    module.BaseEventLoop.time = lambda self: time.monotonic() - getattr(self, "_not_counted", 0.0)
    run_forever = module.BaseEventLoop.run_forever

    def run(self: Any) -> None:
        awaiting.turns_of(link, self)
        run_forever(self)

    module.BaseEventLoop.run_forever = run


def _taskgroups(module: Any, fail: Callable[[], None]) -> None:
    original = module.TaskGroup._on_task_done

    def on_task_done(self: Any, task: Any) -> None:
        if task.cancelled() and not task.cancelling():
            fail()
        original(self, task)

    module.TaskGroup._on_task_done = on_task_done


def _inspect(module: Any) -> None:
    for name in _QUESTIONS:
        original = getattr(module, name)

        def answer(found: Any, name: str = name, original: Callable[[Any], bool] = original) -> bool:
            return asked(found, name) is True if isinstance(found, Handle) else original(found)

        setattr(module, name, answer)
    is_awaitable = module.isawaitable
    module.isawaitable = lambda found: not isinstance(found, Named) and is_awaitable(found)
