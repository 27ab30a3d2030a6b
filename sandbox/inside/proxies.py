"""Run test code with proxies for the objects of a program in another sandbox.

Values that the program returns are decoded into exact builtin types. Instances of its classes are proxies that compare
by identity, so that the program's `__eq__` never decides a test. Any other object that it returns is a `Handle`, which
has no methods: the test expects a value there, and the program's code must not answer for it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any, BinaryIO

from rlvr.sandbox.inside import instrument, plain, service, testing
from rlvr.sandbox.inside.originals import Originals

_MAX_LINE = 8 << 20


class ProgramEnded(BaseException):
    """The program ended or broke the protocol. As a BaseException, `except Exception` in a test does not catch it."""


class RaisedByProgram(Exception):
    """An exception of a type that the program defined, which has no builtin base but Exception."""


class _Link:
    """Connection to the program's side (service.py)."""

    def __init__(self, requests: int, replies: int, classes: frozenset[str]) -> None:
        self.requests = requests
        self.classes = classes
        self.ended = False
        self.answered = 0
        self.raised: Exception | None = None
        self.originals = Originals()
        self._known: dict[int, Handle] = {}
        self.replies: BinaryIO = open(replies, "rb", closefd=False)  # noqa: SIM115

    def ask(self, do: str, on: dict[str, Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Do an operation on an object of the program and return its value, or raise what it raised."""
        passed = list(args)
        before = [self.originals.copy(value) for value in passed]
        encoded = [plain.encode(value, _handle) for value in (passed, kwargs or {})]
        request = {"do": do, "on": on, "args": encoded[0], "kwargs": encoded[1]}
        with contextlib.suppress(BrokenPipeError):
            service.send(self.requests, request)
        line = self.replies.readline(_MAX_LINE)
        answer = plain.loads(line) if line.endswith(b"\n") else None
        if type(answer) is not dict:
            # Remembered, for a test that catches every exception.
            self.ended = True
            raise ProgramEnded
        if "x" in answer:
            self.answered += 1
            self.raised = self._exception(answer)
            raise self.raised
        if "a" in answer:
            self._update(passed, plain.decode(answer["a"], self._handle))
            self.originals.keep(passed, before)
        made = self._instance if self._is_class(do, on) else self._handle
        value = plain.decode(answer.get("v"), made)
        # To look up a function is not to call it.
        self.answered += do != "self" or type(value) is not Handle
        return value

    def _is_class(self, do: str, on: dict[str, Any]) -> bool:
        """Check whether the answer counts as an instance of a class. The program has no say in it."""
        return do == "call" and on.get("name", "").rpartition(".")[2] in self.classes

    def _handle(self, kind: str, handle: int | None, truth: bool | None) -> Any:
        """Return the proxy of a program's object, always the same one, so that `is` works."""
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
        """Return an exception of the nearest builtin type, by name."""
        names = answer["x"] if type(answer["x"]) is list else []
        if "StopIteration" in names or "StopAsyncIteration" in names:
            # StopIteration would silently end a map() in the test; PEP 479 does the same for generators.
            return RuntimeError("the program raised StopIteration")
        args = plain.decode(answer.get("m", ["l", []]))
        for name in names[:20]:
            found = getattr(builtins, name, None) if type(name) is str else None
            if isinstance(found, type) and issubclass(found, Exception) and found is not Exception:
                try:
                    return found(*args) if type(args) is list else found()
                except TypeError:
                    # UnicodeDecodeError and others take arguments of fixed types.
                    return RaisedByProgram(name)
        return RaisedByProgram(str(names[:1]))

    @staticmethod
    def _update(passed: list[Any], after: Any) -> None:
        """Repeat on our arguments what the program changed in place."""
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
    """Return the program's handle of a proxy; None for other objects, which cannot be passed to the program."""
    if type(value) not in (Handle, Member, Instance, Named):
        return None
    known = object.__getattribute__(value, "_on").get("object")
    if known is None:
        found = _ask(value, "self")
        return _handle(found) if found is not value else None
    handle: int = known[2]
    return handle


class Handle:
    """A program's object where the test expects a value. Equal only to itself.

    It can be passed back to the program, and its attributes can be read; those that are not plain data are handles too.
    It has no callable methods, items, length, order or text: the program's code would compute them, and could learn
    from the arguments what is expected. Its truth value came with it: the program could as well have returned a bool.
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
    """Attribute of an Instance, such as a method; can be called."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _ask(self, "call", args, kwargs)


class Instance(Handle):
    """Instance of a program's class, created by the test. Its operators run the program's code: they are tested."""

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
    """Global name of the program: a function or class to call, or a value, which every other operation fetches.

    A dotted name is called in the program only if it is a method of a class.
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


def _ask(proxy: Handle, do: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    link = object.__getattribute__(proxy, "_link")
    return link.ask(do, object.__getattribute__(proxy, "_on"), args, kwargs)


def _of_type(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"the program returned no {kind.__name__}")
    return value


class _Counter:
    """Counts the asserts that were executed after the program had answered."""

    def __init__(self, link: _Link) -> None:
        self.link = link
        self.checked: set[int] = set()
        self.started: set[str] = set()
        self.loops: dict[int, tuple[int, ...]] = {}

    def functions(self) -> dict[str, Any]:
        """Return what instrumented code calls."""
        return {
            instrument.CHECKED: self._checked,
            instrument.CAUGHT: self._caught,
            instrument.ENTERED: self._entered,
            instrument.STARTED: self.started.add,
            instrument.BEFORE: self.link.originals.before,
        }

    def failure(self) -> tuple[str, int] | None:
        """Return why the tests have not passed although none failed, and the line; None where they have."""
        if not self.checked:
            return "NoAssertExecuted", 0
        empty = [line for line, sites in self.loops.items() if not self.checked.intersection(sites)]
        return ("NothingToLoopOver", min(empty)) if empty else None

    def _checked(self, site: int) -> None:
        if self.link.answered:
            self.checked.add(site)

    def _caught(self, site: int) -> None:
        """Count an expected exception if the program raised it; the test may have caught its own AssertionError."""
        if self.link.raised is not None and sys.exc_info()[1] is self.link.raised:
            self.checked.add(site)

    def _entered(self, line: int, *sites: int) -> None:
        self.loops[line] = sites


def run_tests(test: str, names: list[str], classes: list[str], *, requests: int, replies: int, verdict: int) -> None:
    """Execute the test code and report the verdict. Ends by `os._exit`.

    Only code that runs to its end passes, with its test functions and classes, if an assert that depends on the
    program was executed.
    """
    link = _Link(requests, replies, frozenset(classes))
    counter = _Counter(link)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    space = module.__dict__
    space.update({name: Named(link, {"name": name}) for name in names})
    space.update(counter.functions())
    testing.provide_pytest()
    try:
        exec(compile(instrument.instrument(ast.parse(test), names), "test.py", "exec", dont_inherit=True), space)
        testing.run_defined(space, counter.started)
    except (Exception, ProgramEnded, SystemExit) as error:
        line = _line_of(error)
        service.send(verdict, {"passed": False, "error": type(error).__name__, "line": line})
    else:
        failure = ("ProgramEnded", 0) if link.ended else counter.failure()
        service.send(verdict, {"passed": failure is None, **dict(zip(("error", "line"), failure or ()))})
    os._exit(0)


def _line_of(error: BaseException) -> int:
    """Return the last line of the test code in the traceback, 0 for none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "test.py"]
    return (lines[-1] or 0) if lines else 0
