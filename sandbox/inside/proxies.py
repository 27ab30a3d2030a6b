"""Test code in a sandbox of its own, with stand-ins for the program's objects.

The program runs in another sandbox. What it answers is decoded into exact builtin types. The instances of its classes
are stand-ins that compare by identity alone, so that no `__eq__` of the program ever decides a test. Any other object
that it hands out is a `Handle`: there the test expects a value, and an object must not answer in the place of one.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import traceback
import types
from collections.abc import Iterator
from typing import Any, BinaryIO

from rlvr.sandbox.inside import plain, service

_MAX_LINE = 8 << 20


class ProgramEnded(BaseException):
    """The program is gone, or does not speak the protocol. No test code catches it by accident."""


class RaisedByProgram(Exception):
    """An exception of a type that the program defined itself."""


class _Link:
    def __init__(self, requests: int, replies: int, classes: frozenset[str]) -> None:
        self.requests = requests
        self.classes = classes
        self.ended = False
        self._known: dict[int, Handle] = {}
        self.replies: BinaryIO = open(replies, "rb", closefd=False)  # noqa: SIM115

    def ask(self, do: str, on: dict[str, Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        passed = list(args)
        encoded = [plain.encode(value, _handle) for value in (passed, kwargs or {})]
        request = {"do": do, "on": on, "args": encoded[0], "kwargs": encoded[1]}
        with contextlib.suppress(BrokenPipeError):
            service.send(self.requests, request)
        line = self.replies.readline(_MAX_LINE)
        answer = plain.loads(line) if line.endswith(b"\n") else None
        if type(answer) is not dict:
            # A test that excepts everything must not take this for an exception of the program.
            self.ended = True
            raise ProgramEnded
        if "x" in answer:
            raise self._exception(answer)
        if "a" in answer:
            self._update(passed, plain.decode(answer["a"], self._handle))
        made = self._instance if self._is_class(do, on) else self._handle
        return plain.decode(answer.get("v"), made)

    def _is_class(self, do: str, on: dict[str, Any]) -> bool:
        """Whether the test side takes the answer for an instance of a class: the program is not asked."""
        return do == "call" and on.get("name", "").rpartition(".")[2] in self.classes

    def _handle(self, kind: str, handle: int | None, truth: bool | None) -> Any:
        """One object here for each object there, so that identity holds among them."""
        if handle is None:
            return plain.Opaque(kind, None, truth)
        if handle not in self._known:
            self._known[handle] = Handle(self, {"object": ["o", kind, handle, truth]})
        return self._known[handle]

    def _instance(self, kind: str, handle: int | None, truth: bool | None) -> Any:
        if handle is not None and type(self._known.get(handle)) is not Instance:
            self._known[handle] = Instance(self, {"object": ["o", kind, handle, truth]})
        return self._handle(kind, handle, truth)

    @staticmethod
    def _exception(answer: dict[str, Any]) -> Exception:
        """The exception's nearest builtin type, by name."""
        names = answer["x"] if type(answer["x"]) is list else []
        if "StopIteration" in names or "StopAsyncIteration" in names:
            # It would end a map() of the test as if there were no more: a failure, as in a generator (PEP 479).
            return RuntimeError("the program raised StopIteration")
        args = plain.decode(answer.get("m", ["l", []]))
        for name in names[:20]:
            found = getattr(builtins, name, None) if type(name) is str else None
            if isinstance(found, type) and issubclass(found, Exception) and found is not Exception:
                try:
                    return found(*args) if type(args) is list else found()
                except TypeError:
                    # UnicodeDecodeError and its like take arguments of fixed types.
                    return RaisedByProgram(name)
        return RaisedByProgram(str(names[:1]))

    @staticmethod
    def _update(passed: list[Any], after: Any) -> None:
        """What the program did to its arguments in place, done to ours."""
        if type(after) is not list or len(after) != len(passed):
            raise ValueError("no arguments")
        for ours, theirs in zip(passed, after):
            if type(ours) is not type(theirs):
                continue
            if type(ours) in (list, bytearray):
                ours[:] = theirs
            elif type(ours) in (dict, set):
                ours.clear()
                ours.update(theirs)


def _handle(value: Any) -> int | None:
    """What the program knows one of its objects by; other objects cannot be passed to it."""
    if type(value) not in (Handle, Member, Instance, Named):
        return None
    known = object.__getattribute__(value, "_on").get("object")
    if known is None:
        found = _ask(value, "self")
        return _handle(found) if found is not value else None
    handle: int = known[2]
    return handle


class Handle:
    """An object of the program where the test expects a value. Equal to nothing but itself.

    It can be given back to the program, and its attributes can be read: what is no plain data among them is a handle
    again. It has no methods, members, items, length, order or text: the program's code would answer for them, and may
    be told there what is expected. Its truth came along with it: the program could as well have returned a bool.
    """

    __slots__ = ("_link", "_on")

    def __init__(self, link: _Link, on: dict[str, Any]) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_on", on)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ask(self, "get", (name,))

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "set", (name, value))

    def __bool__(self) -> bool:
        return _of_type(bool, object.__getattribute__(self, "_on")["object"][3])

    def __repr__(self) -> str:
        return "<object of the program>"


class Member(Handle):
    """An attribute of an instance of a class that the test made: a method may be called."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _ask(self, "call", args, kwargs)


class Instance(Handle):
    """An instance of a class that the test made: its operators are what is tested, and the program's own."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        found = _ask(self, "get", (name,))
        if type(found) is not Handle:
            return found
        return Member(object.__getattribute__(self, "_link"), object.__getattribute__(found, "_on"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _ask(self, "call", args, kwargs)

    def __len__(self) -> int:
        return _of_type(int, _ask(self, "len"))

    def __iter__(self) -> Iterator[Any]:
        return iter(_of_type(list, _ask(self, "list")))

    def __str__(self) -> str:
        return _of_type(str, _ask(self, "str"))

    def __repr__(self) -> str:
        return _of_type(str, _ask(self, "repr"))

    def __getitem__(self, key: Any) -> Any:
        return _ask(self, "item", (key,))

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "setitem", (key, value))

    def __delitem__(self, key: Any) -> None:
        _ask(self, "delitem", (key,))

    def __contains__(self, item: Any) -> bool:
        return _of_type(bool, _ask(self, "contains", (item,)))

    def __bool__(self) -> bool:
        return _of_type(bool, _ask(self, "truth"))


class Named(Handle):
    """A name of the program: a function or a class to call, or a value, which is fetched for all but a call.

    Of a dotted name only methods of classes are called there.
    """

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        link = object.__getattribute__(self, "_link")
        first, *path = object.__getattribute__(self, "_on")["name"].split(".")
        if path and first not in link.classes:
            found = _ask(Named(link, {"name": first}), "self")
            for name in path:
                found = getattr(found, name)
            return found(*args, **kwargs)
        return _ask(self, "call", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            return _ask(self, "get", (name,))
        on = object.__getattribute__(self, "_on")
        return Named(object.__getattribute__(self, "_link"), {"name": f"{on['name']}.{name}"})

    def __len__(self) -> int:
        return len(_ask(self, "self"))

    def __iter__(self) -> Iterator[Any]:
        return iter(_ask(self, "self"))

    def __str__(self) -> str:
        return str(_ask(self, "self"))

    def __repr__(self) -> str:
        return repr(_ask(self, "self"))

    def __getitem__(self, key: Any) -> Any:
        return _ask(self, "self")[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "setitem", (key, value))

    def __delitem__(self, key: Any) -> None:
        _ask(self, "delitem", (key,))

    def __contains__(self, item: Any) -> bool:
        return item in _ask(self, "self")

    def __eq__(self, other: object) -> bool:
        return self is other or bool(_ask(self, "self") == other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return bool(_ask(self, "self"))


def _ask(stand_in: Handle, do: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    link = object.__getattribute__(stand_in, "_link")
    return link.ask(do, object.__getattribute__(stand_in, "_on"), args, kwargs)


def _of_type(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"the program returned no {kind.__name__}")
    return value


def run(
    code: types.CodeType, names: list[str], classes: list[str], *, requests: int, replies: int, verdict: int
) -> None:
    """Run the test code; its end, and nothing else, is a pass."""
    link = _Link(requests, replies, frozenset(classes))
    space: dict[str, Any] = {"__name__": "test"}
    space.update({name: Named(link, {"name": name}) for name in names})
    try:
        exec(code, space)
    except (Exception, ProgramEnded, SystemExit) as error:
        line = _line_of(error)
        service.send(verdict, {"passed": False, "error": type(error).__name__, "line": line})
    else:
        ended = {"passed": False, "error": "ProgramEnded", "line": 0}
        service.send(verdict, ended if link.ended else {"passed": True})
    os._exit(0)


def _line_of(problem: BaseException) -> int:
    """The last line of the test code in the traceback, 0 where there is none."""
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == "test.py"]
    return (lines[-1] or 0) if lines else 0
