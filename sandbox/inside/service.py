"""Serve calls into a program: requests come in, values go out as tagged plain data.

This runs in the program's process. The program can send anything that this module sends: the reader trusts none of it.
"""

from __future__ import annotations

import _thread
import builtins
import contextlib
import importlib
import io
import itertools
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NoReturn

from rlvr.sandbox.inside import borrowed, bounds, library_types, plain, telling, world
from rlvr.sandbox.inside.kept import Keeper
from rlvr.sandbox.inside.mail import Mail
from rlvr.sandbox.inside.operations import OPERATIONS
from rlvr.sandbox.inside.turns import Loop, running

_COMMON = frozenset((int, str, float, list, tuple, dict, set))
# The program's may be another function.
_getpid = os.getpid


def find(names: dict[str, Any], path: str) -> Any:
    """Return the object with a dotted name in the program's namespace. Raises NameError if there is none."""
    first, *attributes = path.split(".")
    if first not in names:
        raise NameError(f"the program defines no {first!r}")
    found = names[first]
    for attribute in attributes:
        found = getattr(found, attribute)
    return found


def entry(names: dict[str, Any], path: str) -> Any:
    """Return the function to call for a dotted name, as `find`.

    A method is that of a new instance, unless it is static or of the class; a method of `Solution` needs no class name.
    """
    if path not in names and "." not in path and hasattr(names.get("Solution"), path):
        path = f"Solution.{path}"
    above, _, name = path.rpartition(".")
    owner = find(names, above) if above else None
    if isinstance(owner, type) and isinstance(_static(owner, name), types.FunctionType):
        return getattr(owner(), name)
    return find(names, path)


def _static(owner: type, name: str) -> Any:
    return next((vars(kind)[name] for kind in owner.__mro__ if name in vars(kind)), None)


def array(kind: str, shape: tuple[int, ...], items: list[Any]) -> Any:
    """Return an array of numpy's."""
    numpy = importlib.import_module("numpy")
    return numpy.array(items, dtype=kind).reshape(shape)


def send(descriptor: int, message: Any) -> None:
    """Write one line of JSON, all of it; instead of a value that makes it too long that it is too large."""
    line = plain.dumps(message) + b"\n"
    if len(line) > bounds.MAX_LINE and "n" in message:
        line = plain.dumps({"v": telling.TOO_LARGE, "n": message["n"]}) + b"\n"
    data = memoryview(line)
    while data:
        data = data[os.write(descriptor, data) :]


class Server:
    """Answers requests until their pipe is closed.

    A request is {"do", "on", "with"}: `do` is "call" or one of OPERATIONS, `on` a dotted name or an encoded object,
    `with` the arguments, [args, kwargs]. An answer is {"v"}: the value, or {"x", "m", "s", "d"}: types, arguments, text
    and attributes of an exception; and {"a"}: the arguments if the call changed them. Before its answer, a request may
    lead to requests {"call", "args", "kwargs"} of functions of the tests, which are answered by {"r"} or {"x", "m"}.
    "n", "t" and "c" are the numbers of a request, of the thread of the tests that waits for it, and of such a call.
    """

    def __init__(self, names: dict[str, Any], requests: int, replies: int, end_copies: Callable[[int], None]) -> None:
        self._names = names
        self._process = _getpid()
        self._end_copies = end_copies
        self._replies = replies
        self._lines: BinaryIO = open(requests, "rb", closefd=False)  # noqa: SIM115
        # Objects that the other side knows by a handle: kept alive, one handle per object.
        self._objects: list[Any] = []
        self._handles: dict[int, int] = {}
        # Objects of the tests' own classes, by their numbers there.
        self._theirs: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._functions: dict[int, borrowed.Function] = {}
        self._borrowed: dict[int, Any] = {}
        self._lenders: dict[int, int] = {}
        self._classes: dict[int, int] = {}
        self._doubles: dict[str, type] = {}
        # Attributes of objects of the tests as both sides know them, encoded, by the numbers of the objects.
        self._told: dict[int, dict[str, Any]] = {}
        self._numbering = _thread.allocate_lock()
        self._sending = _thread.allocate_lock()
        self._calls = itertools.count()
        # Threads of the tests that have a thread here; which of them a thread serves; how many requests each waits for.
        self._served = {0}
        self._seats: dict[int, int | None] = {}
        self._waiting: dict[int, int] = {}
        self._mail = Mail(self._receive, self._address)
        self._kept = Keeper(self._written)
        Loop.error = self.error

    def serve(self, seat: int = 0) -> NoReturn:
        """Answer the requests of one thread of the tests, for ever."""
        while True:
            self._handle(self._mail.take(("requests", seat)))

    def _receive(self) -> Any:
        line = self._lines.readline()
        if not line:
            os._exit(0)
        return plain.loads(line)

    def _address(self, message: dict[str, Any]) -> tuple[str, int]:
        """Tell for whom a message is; the requests of another thread of the tests have a thread of their own here."""
        if message.get("c") is not None:
            return "call", message["c"]
        seat = message["t"]
        if seat not in self._served:
            self._served.add(seat)
            _thread.start_new_thread(self._in_thread, (self.serve, seat))
        return "requests", seat

    @staticmethod
    def _in_thread(function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        finally:
            # As if it were the main thread.
            os._exit(1)

    def _handle(self, request: dict[str, Any]) -> None:
        """Answer a request. What this thread calls meanwhile is a matter of the thread that has sent it."""
        seat, thread = request["t"], _thread.get_ident()
        if request["threads"] and -1 not in self._served:
            # While all others are busy, this one reads.
            self._served.add(-1)
            _thread.start_new_thread(self._in_thread, (self.serve, -1))
        before = self._seats.get(thread)
        with self._sending:
            self._seats[thread] = seat
            self._waiting[seat] = self._waiting.get(seat, 0) + 1
        answer = self._answer(request)
        self._end_copies(self._process)
        with self._sending:
            self._seats[thread] = before
            self._waiting[seat] -= 1
            send(self._replies, {**self._news(answer), "n": request["n"]})

    def ask_tests(self, what: int | str | list[Any], args: Any, kwargs: Any) -> Any:
        """Call a function of the tests by its number, a method of the first argument by its name, or one of lent.py."""
        # Processes of the program that are copies of this one count from the same number.
        call = _getpid() << 32 | next(self._calls)
        asked = {
            "call": what,
            "c": call,
            **self._news({"args": self._written(list(args)), "kwargs": self._written(kwargs)}),
        }
        if rows := self._kept.changed():
            asked["k"] = rows
        while not self._call(asked):
            # Nobody there is waiting for the program.
            time.sleep(0.001)
        while "do" in (answer := self._mail.take(("call", call))):
            self._handle(answer)
        self._kept.refill(answer["k"], self._read)
        if "x" not in answer:
            return self._read(answer["r"])
        raise self.error(answer["x"], self._read(answer["m"]))

    def error(self, name: str, args: list[Any]) -> Exception:
        """Return an exception of the tests by the name of its type."""
        spaces = [
            vars(builtins),
            self._names,
            self._doubles,
            *(vars(sys.modules[n]) for n in ("asyncio", "queue") if n in sys.modules),
        ]
        known = next((space[name] for space in spaces if name in space), None)
        usable = isinstance(known, type) and issubclass(known, Exception)
        made: Exception = (known if usable else type(name, (Exception,), {}))(*args)  # type: ignore[misc]
        return made

    def _call(self, asked: dict[str, Any]) -> bool:
        with self._sending:
            seat = self._seats.get(_thread.get_ident())
            foreign = seat is None
            if foreign:
                seat = next((seat for seat, requests in self._waiting.items() if requests), None)
            if seat is not None:
                send(self._replies, {**asked, "t": seat, "foreign": foreign})
        return seat is not None

    def _keep(self, value: Any) -> int:
        with self._numbering:
            handle = self._handles.get(id(value))
            if handle is None:
                handle = self._handles[id(value)] = len(self._objects)
                self._objects.append(value)
        return handle

    def _written(self, value: Any) -> Any:
        return telling.written(value, self._keep, self._write_other)

    def _read(self, data: Any) -> Any:
        return plain.decode(data, self._object, array, self._read_other)

    def _object(self, kind: str, handle: int | None, truth: bool | None) -> Any:
        if handle is None:
            raise ValueError(f"a {kind} cannot be passed to the program")
        return self._objects[handle]

    def _write_other(self, value: Any, encoder: Any, depth: int) -> Any:
        if type(value) in _COMMON:
            return None
        if type(value) is borrowed.Function:
            return ["F", value._number, value.__name__, None, None]
        if id(value) in self._lenders:
            return ["W", self._lenders[id(value)], ""]
        if id(value) in self._classes:
            return ["F", self._classes[id(value)], value.__name__, None, None]
        number = self._numbers.get(id(value))
        if number is not None and type(value) in (io.StringIO, io.BytesIO):
            return ["S", number, *library_types.contents(value)] if not value.closed else None
        if number is not None:
            return encoder.refer(number, value)
        own = library_types.write(value, encoder, depth)
        if own is not None:
            return own
        if isinstance(value, Exception):
            return ["X", self._keep(value), telling.told(value)]
        if isinstance(value, Iterator) and type(value) is not plain.Yielded:
            return ["g", type(value).__name__, self._keep(value)]
        return None

    def _read_other(self, tag: str, rest: list[Any], decoder: Any, depth: int) -> Any:
        if tag == "F":
            if rest[0] not in self._functions:
                number, name, parameters, more = rest
                told = None if more is None else decoder.any(more, depth)
                self._functions[number] = borrowed.Function(self.ask_tests, number, name, parameters, told)
            return self._functions[rest[0]]
        if tag == "W":
            return self._lent(*rest)
        if tag == "exception":
            error = self.error(rest[0], decoder.any(rest[1], depth))
            vars(error).update(decoder.any(rest[2], depth))
            return error
        if tag == "K":
            return self._class(*rest)
        if tag == "G":
            return getattr(importlib.import_module(rest[0]), rest[1])
        if tag == "j":
            return self._theirs[rest[0]]
        if tag == "S":
            number, held, position = rest
            file = self._theirs.setdefault(number, io.StringIO(newline="") if type(held) is str else io.BytesIO())
            self._numbers[id(file)] = number
            return library_types.filled(file, held, position, decoder)
        if tag in library_types.TAGS:
            return library_types.read(tag, rest, decoder, depth)
        objects, value = rest
        for number, kind, _, methods in objects:
            if number not in self._theirs:
                known = self._names.get(kind)
                made: Any = object.__new__(known if isinstance(known, type) else self._double(kind, methods))
                self._theirs[number] = made
                self._numbers[id(made)] = number
        for number, _, attributes, _ in objects:
            self._told.setdefault(number, {}).update(attributes)
            vars(self._theirs[number]).update({name: decoder.any(part, depth) for name, part in attributes})
        return decoder.any(value, depth)

    def _news(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return an answer without attributes of objects of the tests that the program has not changed."""
        found, told = dict(answer), []
        for key, data in answer.items():
            if type(data) is list and data[:1] == ["J"]:
                rows = [
                    [
                        number,
                        kind,
                        [row for row in rows if self._told.get(number, {}).get(row[0], row) != row[1]],
                        names,
                    ]
                    for number, kind, rows, names in data[1]
                ]
                found[key] = ["J", rows, data[2]]
                told += rows
        for number, _, attributes, _ in told:
            self._told.setdefault(number, {}).update(attributes)
        return found

    def _lent(self, number: int, way: str) -> Any:
        """Return what stands for an object of the tests that stays there."""
        if number not in self._borrowed:
            made = self._borrowed[number] = borrowed.borrowed(
                lambda number, do, *args, **kwargs: self.ask_tests([number, do], args, kwargs), number, way
            )
            self._lenders[id(made)] = number
        return self._borrowed[number]

    def _class(self, number: int, name: str, methods: list[str], base: str | None) -> type:
        """Return what stands for a class of the tests: the program's own, or one whose objects are theirs."""
        known = self._names.get(name)
        if isinstance(known, type):
            return known
        made = self._double(name, methods, base)
        if base is None and id(made) not in self._classes:
            setattr(made, "__new__", lambda cls, *args, **kwargs: self.ask_tests(number, args, kwargs))  # noqa: B010
        self._classes[id(made)] = number
        return made

    def _double(self, kind: str, methods: list[str], base: str | None = None) -> type:
        """Return a class for objects of the tests whose class the program does not have: its methods are theirs."""
        above = (getattr(builtins, base),) if base else ()
        return self._doubles.setdefault(kind, type(kind, above, borrowed.members(self.ask_tests, methods)))

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {}
        args: Any = None
        try:
            for name, found in request.get("globals", ()):
                self._names.setdefault(name, self._read(found))
            args, kwargs = self._read(request["with"])
            if "kept" in request:
                self._kept.take(request["kept"], self._read, args, kwargs)
            on = request["on"]
            target = find(self._names, on["name"]) if "name" in on else self._read(on["object"])
            operate = target if request["do"] == "call" else None
            with (
                running(request),
                self._streams(request, told),
                world.applied(request.get("world"), self._names, self._read, told),
            ):
                value = operate(*args, **kwargs) if operate else OPERATIONS[request["do"]](target, *args)
            return {"v": self._written(value), **told, **self._changed(request, args, kwargs)}
        except (Exception, SystemExit) as error:
            changed = {} if args is None else self._changed(request, args, kwargs)
            return {**telling.told(error), **told, **changed}

    def _changed(self, request: dict[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a request as they are after it, if the program has changed them."""
        after, kept = self._written([list(args), kwargs]), self._kept.changed()
        return {**({"a": after} if after != request["with"] else {}), **({"k": kept} if kept else {})}

    @contextlib.contextmanager
    def _streams(self, request: dict[str, Any], told: dict[str, Any]) -> Iterator[None]:
        """Use for a call the stdin, stdout, stderr and `input` that the tests have put in place of their own.

        What was written, and how much was read, is added to `told`.
        """
        if "streams" not in request:
            yield
            return
        streams, before = request["streams"], (sys.stdin, sys.stdout, sys.stderr, builtins.input, builtins.print)
        texts = {name: io.StringIO() for name in ("stdout", "stderr") if name in streams}
        if "stdin" in streams:
            sys.stdin = io.StringIO(streams["stdin"])
        for name in {"input", "print"} & streams.keys():
            setattr(builtins, name, self._read(streams[name]))
        for name, text in texts.items():
            setattr(sys, name, text)
        try:
            yield
        finally:
            if "stdin" in streams:
                told["stdin"] = len(streams["stdin"]) - len(sys.stdin.read())
            sys.stdin, sys.stdout, sys.stderr, builtins.input, builtins.print = before
            told.update({name: text.getvalue() for name, text in texts.items()})


def serve(names: dict[str, Any], requests: int, replies: int, end_copies: Callable[[int], None]) -> None:
    """Answer requests until their pipe is closed. `end_copies` ends processes but the one whose number it is given."""
    Server(names, requests, replies, end_copies).serve()
