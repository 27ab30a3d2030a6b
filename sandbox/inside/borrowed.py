"""Functions and objects of the tests that stay there and that a program uses: each use is a request (lent.py).

This runs in the program's process.
"""

from __future__ import annotations

import importlib
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rlvr.sandbox.inside.turns import Loop

# Asks for an operation on an object of the tests, with its arguments.
Ask = Callable[..., Any]


def borrowed(ask: Ask, number: int, way: str) -> Any:
    """Return what stands for an object of the tests: a coroutine for one of theirs. `way`: see lent.way."""
    if way == "await":
        return Loop.awaited(number, lambda: ask(number, "run"))
    return {"next": Items, "anext": AsyncItems}.get(way, Borrowed)(ask, number)


def members(ask: Ask, names: list[str]) -> dict[str, Any]:
    """Return what a class of objects of the tests has, by the names that signatures.methods has told."""

    def method(name: str) -> Callable[..., Any]:
        return lambda own, *args, **kwargs: ask(name, (own, *args), kwargs)[0]

    found: dict[str, Any] = {}
    for name in names:
        bare = name.lstrip(".:=")
        if name[0] == ":":
            found[bare] = property(method(name), method(f"={bare}") if f"={bare}" in names else None)
        elif name[0] != "=":
            found[bare] = ClassValue(method(name)) if name[0] == "." else method(name)
    if "__getattr__" in found:
        found["__getattr__"] = _public(found["__getattr__"])
    return found


def _public(get: Callable[..., Any]) -> Callable[..., Any]:
    def getattribute(own: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return get(own, name)

    return getattribute


class ClassValue:
    """A value of a class of the tests; an object may have its own of the name."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._read(instance)


class Borrowed:
    """An object of the tests. Attributes, items and the results of its methods are fetched from there."""

    def __init__(self, ask: Ask, number: int) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _use(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _use(self, "set", name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _use(self, "call", *args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        return iter(_use(self, "list"))

    def __await__(self) -> Any:
        number = object.__getattribute__(self, "_number")
        return Loop.awaited(number, lambda: _use(self, "run")).__await__()

    async def __aenter__(self) -> Any:
        return await _use(self, "aenter")

    async def __aexit__(self, *error: Any) -> Any:
        return await _use(self, "aexit", *error[1:2])

    def __exit__(self, *error: Any) -> Any:
        return _use(self, "exit", *error[1:2])


class Items(Borrowed):
    """An iterator of the tests: its items are fetched one by one, and some at once by a long loop."""

    def __init__(self, ask: Ask, number: int) -> None:
        super().__init__(ask, number)
        object.__setattr__(self, "_items", deque())
        object.__setattr__(self, "_taken", 0)

    def __iter__(self) -> Items:
        return self

    def __next__(self) -> Any:
        if not self._items:
            object.__setattr__(self, "_taken", self._taken + 1)
            self._items.extend(_use(self, "next", self._taken))
        if not self._items:
            raise StopIteration
        return self._items.popleft()


class AsyncItems(Borrowed):
    """An asynchronous generator of the tests."""

    def __aiter__(self) -> AsyncItems:
        return self

    async def __anext__(self) -> Any:
        found = await _use(self, "anext")
        if not found:
            raise StopAsyncIteration
        return found[0]


def _use(own: Borrowed, do: str, *args: Any, **kwargs: Any) -> Any:
    return object.__getattribute__(own, "_ask")(object.__getattribute__(own, "_number"), do, *args, **kwargs)


def _operation(do: str) -> Callable[..., Any]:
    return lambda self, *args: _use(self, do, *args)


for _name, _do in {
    **{name: name for name in ("len", "contains", "enter", "bool", "str", "repr", "int", "float")},
    "getitem": "item",
    "setitem": "setitem",
    "delitem": "delitem",
}.items():
    setattr(Borrowed, f"__{_name}__", _operation(_do))


class Function:
    """A function of the tests."""

    def __init__(self, ask: Ask, number: int, name: str, parameters: list[list[Any]] | None, told: Any) -> None:
        self._call = ask
        self._number = number
        self._parameters = parameters
        self.__name__ = self.__qualname__ = name
        self.__doc__ = None
        if parameters is not None:
            positional = [name for name, kind, _ in parameters if kind < 2]
            self.__code__ = types.SimpleNamespace(co_argcount=len(positional), co_varnames=tuple(positional))
            self.__defaults__ = tuple(None for _, _, optional in parameters if optional) or None
        if type(told) is dict:
            # Its `__doc__` and the like, for `functools.wraps`.
            self.__dict__.update({name: value for name, value in told.items() if name != "async"})
            if told.get("async"):
                _mark(self)

    @property
    def __signature__(self) -> Any:
        """The parameters, as `inspect.signature` finds them."""
        inspect = importlib.import_module("inspect")
        if self._parameters is None:
            raise AttributeError("__signature__")
        kinds = list(inspect._ParameterKind)
        return inspect.Signature(
            [
                inspect.Parameter(name, kinds[kind], default=None if optional else inspect.Parameter.empty)
                for name, kind, optional in self._parameters
            ]
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._number, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)


def _mark(function: Any) -> None:
    """Let asyncio and inspect take a callable for a function that returns coroutines."""
    asyncio, inspect = (importlib.import_module(name) for name in ("asyncio", "inspect"))
    function._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)
    function._is_coroutine_marker = getattr(inspect, "_is_coroutine_mark", None)
