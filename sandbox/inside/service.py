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

from rlvr.sandbox.inside import library_types, plain
from rlvr.sandbox.inside.mail import Mail
from rlvr.sandbox.inside.operations import OPERATIONS

_COMMON = frozenset((int, str, float, list, tuple, dict, set))


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


def written(
    value: Any, keep: Callable[[Any], int | None] | None = None, other: Callable[..., Any] | None = None
) -> Any:
    """Encode `value` as plain data. A value whose methods raise is encoded as opaque, whatever they raise."""
    try:
        return plain.encode(value, keep, other)
    except Exception:
        return ["o", "unreadable", None, None]


def array(kind: str, shape: tuple[int, ...], items: list[Any]) -> Any:
    """Return an array of numpy's."""
    numpy = importlib.import_module("numpy")
    return numpy.array(items, dtype=kind).reshape(shape)


def send(descriptor: int, message: Any) -> None:
    """Write one line of JSON, all of it."""
    data = memoryview(plain.dumps(message) + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


class _Function:
    """A function of the tests."""

    def __init__(self, server: Server, number: int, name: str, parameters: list[list[Any]] | None) -> None:
        self._server = server
        self._number = number
        self._parameters = parameters
        self.__name__ = self.__qualname__ = name
        self.__doc__ = None
        if parameters is not None:
            positional = [name for name, kind, _ in parameters if kind < 2]
            self.__code__ = types.SimpleNamespace(co_argcount=len(positional), co_varnames=tuple(positional))
            self.__defaults__ = tuple(None for _, _, optional in parameters if optional) or None

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
        return self._server.ask_tests(self._number, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)


class Server:
    """Answers requests until their pipe is closed.

    A request is {"do", "on", "with"}: `do` is "call" or one of OPERATIONS, `on` a dotted name or an encoded object,
    `with` the arguments, [args, kwargs]. An answer is {"v"}: the value, or {"x", "m", "s", "d"}: types, arguments, text
    and attributes of an exception; and {"a"}: the arguments if the call changed them. Before its answer, a request may
    lead to requests {"call", "args", "kwargs"} of functions of the tests, which are answered by {"r"} or {"x", "m"}.
    "n", "t" and "c" are the numbers of a request, of the thread of the tests that waits for it, and of such a call.
    """

    def __init__(self, names: dict[str, Any], requests: int, replies: int) -> None:
        self._names = names
        self._replies = replies
        self._lines: BinaryIO = open(requests, "rb", closefd=False)  # noqa: SIM115
        # Objects that the other side knows by a handle: kept alive, one handle per object.
        self._objects: list[Any] = []
        self._handles: dict[int, int] = {}
        # Objects of the tests' own classes, by their numbers there.
        self._theirs: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._functions: dict[int, _Function] = {}
        self._doubles: dict[str, type] = {}
        self._numbering = _thread.allocate_lock()
        self._sending = _thread.allocate_lock()
        self._calls = itertools.count()
        # Threads of the tests that have a thread here; which of them a thread serves; how many requests each waits for.
        self._served = {0}
        self._seats: dict[int, int | None] = {}
        self._waiting: dict[int, int] = {}
        self._mail = Mail(self._receive, self._address)

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
        with self._sending:
            self._seats[thread] = before
            self._waiting[seat] -= 1
            send(self._replies, {**answer, "n": request["n"]})

    def ask_tests(self, what: int | str, args: Any, kwargs: Any) -> Any:
        """Call a function of the tests by its number, or a method of the first argument by its name."""
        call = next(self._calls)
        asked = {"call": what, "c": call, "args": self._written(list(args)), "kwargs": self._written(kwargs)}
        while not self._call(asked):
            # Nobody there is waiting for the program.
            time.sleep(0.001)
        while "do" in (answer := self._mail.take(("call", call))):
            self._handle(answer)
        if "x" not in answer:
            return self._read(answer["r"])
        known = getattr(builtins, answer["x"], None) or self._names.get(answer["x"])
        usable = isinstance(known, type) and issubclass(known, Exception)
        raise (known if usable else type(answer["x"], (Exception,), {}))(*self._read(answer["m"]))  # type: ignore[misc]

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
        return written(value, self._keep, self._write_other)

    def _read(self, data: Any) -> Any:
        return plain.decode(data, self._object, array, self._read_other)

    def _object(self, kind: str, handle: int | None, truth: bool | None) -> Any:
        if handle is None:
            raise ValueError(f"a {kind} cannot be passed to the program")
        return self._objects[handle]

    def _write_other(self, value: Any, encoder: Any, depth: int) -> Any:
        if type(value) in _COMMON:
            return None
        if type(value) is _Function:
            return ["F", value._number, value.__name__, None]
        number = self._numbers.get(id(value))
        if number is not None and type(value) in (io.StringIO, io.BytesIO):
            return ["S", number, *library_types.contents(value)] if not value.closed else None
        if number is not None:
            return encoder.refer(number, value)
        own = library_types.write(value, encoder, depth)
        if own is not None:
            return own
        if isinstance(value, Iterator) and type(value) is not plain.Yielded:
            return ["g", type(value).__name__, self._keep(value)]
        return None

    def _read_other(self, tag: str, rest: list[Any], decoder: Any, depth: int) -> Any:
        if tag == "F":
            return self._functions.setdefault(rest[0], _Function(self, *rest))
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
            vars(self._theirs[number]).update({name: decoder.any(part, depth) for name, part in attributes})
        return decoder.any(value, depth)

    def _double(self, kind: str, methods: list[str]) -> type:
        """Return a class for objects of the tests whose class the program does not have: its methods are theirs."""

        def method(name: str) -> Callable[..., Any]:
            return lambda own, *args, **kwargs: self.ask_tests(name, (own, *args), kwargs)[0]

        return self._doubles.setdefault(kind, type(kind, (), {name: method(name) for name in methods}))

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {}
        try:
            on = request["on"]
            target = find(self._names, on["name"]) if "name" in on else self._read(on["object"])
            args, kwargs = self._read(request["with"])
            operate = target if request["do"] == "call" else None
            with self._streams(request, told):
                value = operate(*args, **kwargs) if operate else OPERATIONS[request["do"]](target, *args)
            answer = {"v": self._written(value), **told}
            after = self._written([list(args), kwargs])
            if after != request["with"]:
                answer["a"] = after
            return answer
        except (Exception, SystemExit) as error:
            return {"x": [base.__name__ for base in type(error).__mro__], **_told(error), **told}

    @contextlib.contextmanager
    def _streams(self, request: dict[str, Any], told: dict[str, Any]) -> Iterator[None]:
        """Use for a call the stdin, stdout, stderr and `input` that the tests have put in place of their own.

        What was written, and how much was read, is added to `told`.
        """
        if "streams" not in request:
            yield
            return
        streams, before = request["streams"], (sys.stdin, sys.stdout, sys.stderr, builtins.input)
        texts = {name: io.StringIO() for name in ("stdout", "stderr") if name in streams}
        if "stdin" in streams:
            sys.stdin = io.StringIO(streams["stdin"])
        if "input" in streams:
            builtins.input = self._read(streams["input"])
        for name, text in texts.items():
            setattr(sys, name, text)
        try:
            yield
        finally:
            if "stdin" in streams:
                told["stdin"] = len(streams["stdin"]) - len(sys.stdin.read())
            sys.stdin, sys.stdout, sys.stderr, builtins.input = before
            told.update({name: text.getvalue() for name, text in texts.items()})


def serve(names: dict[str, Any], requests: int, replies: int) -> None:
    """Answer requests until their pipe is closed."""
    Server(names, requests, replies).serve()


def _told(error: BaseException) -> dict[str, Any]:
    """Return arguments, text and attributes of an exception."""
    told = {"m": lambda: list(error.args), "s": lambda: str(error), "d": lambda: dict(vars(error))}
    found = {}
    for key, read in told.items():
        with contextlib.suppress(Exception):
            found[key] = written(read())
    return found
