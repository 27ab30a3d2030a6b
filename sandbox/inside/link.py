"""The connection of test code to the program (service.py): requests, values, exceptions, functions of the tests."""

from __future__ import annotations

import _thread
import contextlib
import importlib
import io
import itertools
import types
from collections.abc import Callable
from typing import Any, BinaryIO

from rlvr.sandbox.inside import awaiting, bounds, exceptions, library_types, plain, service, signatures
from rlvr.sandbox.inside.held import Held
from rlvr.sandbox.inside.kept import Lender
from rlvr.sandbox.inside.lent import Lent, MockBefore, ReturnedMock, is_lent, way
from rlvr.sandbox.inside.mail import Mail, ProgramEnded
from rlvr.sandbox.inside.originals import Copied, Originals, is_own
from rlvr.sandbox.inside.seats import Seat, Thread
from rlvr.sandbox.inside.standins import uncallable
from rlvr.sandbox.inside.streams import Streams
from rlvr.sandbox.inside.world import Shared, mentioned

# Modules whose functions the program gets as they are, and not as functions of the tests.
_SHARED = ("builtins", "_operator", "math", "collections", "datetime", "decimal", "fractions")
_NO_ANSWERS = frozenset(("self", "start", "turn", "cancel", "fresh"))


class Link:
    """Connection to the program's side. `make` creates the proxy of an object: see proxies.py."""

    def __init__(self, job: dict[str, Any], requests: int, replies: int, make: Callable[..., Any]) -> None:
        self.requests = requests
        self.classes = frozenset(job["classes"])
        self.objects = bool(job["objects"])
        # Those of the program's names that the tests catch.
        self.exceptions: dict[str, type[Exception]] = {}
        # Types of the tests that the program was given.
        self._errors: dict[str, type[Exception]] = {}
        # Whether the tests register classes with the program's.
        self.registers = ".register(" in job["test"]
        # Names whose results the tests use as objects (chains.py).
        self.chained: frozenset[str] = frozenset()
        self.ended = False
        # Whether a value was beyond the bounds of plain data.
        self.too_large = False
        # How often the program has answered, the last exception of it, and arguments that it changed.
        self.answered = 0
        self.raised: BaseException | None = None
        self.originals = Originals()
        # Whether a function of the tests has failed for what the program gave it, and the tests were not told.
        self.hidden = False
        # For tests that change what they read from the program's objects.
        self.held: Held | None = None
        self.kept = Lender()
        self.known: dict[int, Any] = {}
        # Handles of exceptions that the program has returned, by id.
        self._handles: dict[int, int] = {}
        # The tests' namespace, and those of its functions and classes that the program finds as its globals (lent.py).
        self.space: dict[str, Any] = {}
        self.shown: set[str] = set()
        # Objects of the tests that the program uses where they are.
        self.lent = Lent()
        # Called after each request, for an event loop of the tests (coroutines.py).
        self.after: Callable[[], None] | None = None
        # What is shared beside values, if anything.
        self.world: Shared | None = Shared(job["test"], self._write) if mentioned(job["test"]) else None
        self._make = make
        self._replies: BinaryIO = open(replies, "rb", closefd=False)  # noqa: SIM115
        self._streams = Streams()
        # Functions and objects of the tests that the program knows by number.
        self._functions: list[Any] = []
        self._ours: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._numbering = _thread.RLock()
        self._sending = _thread.allocate_lock()
        self._requested = itertools.count()
        self._free_seats: list[int] = []
        self._seats = itertools.count()
        self._own = Thread()
        # The first of the threads has the first seat, which is that of the program's main thread.
        self._own.seat = Seat(self._free_seats, self._seats)
        self._expected: set[tuple[str, int]] = set()
        self._mail = Mail(self._receive, self._address)

    def ask(
        self, do: str, on: dict[str, Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, **made: Any
    ) -> Any:
        """Do an operation on an object of the program and return its value, or raise what it raised.

        `made` tells what an object becomes that is the value.
        """
        for changed, *how in self.held.changed() if self.held is not None and do != "refill" else ():
            self.ask("refill", changed, tuple(how))
        outer, kwargs = self._own.before, kwargs or {}
        before: Copied = {}
        for value in (*args, *kwargs.values()):
            self.originals.copy(value, before)
        self.kept.copy(before)
        self._own.before = before
        try:
            return self._ask(do, on, args, kwargs, made)
        finally:
            self._own.before = outer
            self.originals.keep(before)
            if self.after is not None:
                self.after()

    def _ask(
        self, do: str, on: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any], made: dict[str, Any]
    ) -> Any:
        originals = self.originals
        given = [*args, *kwargs.values()]
        stays = [originals.stays(value) for value in given]
        originals.take(*(value for value, stay in zip(given, stays) if not stay))
        sent = [originals.theirs(value) for value in given]
        request = {"do": do, "on": on, "with": self._write([sent[: len(args)], dict(zip(kwargs, sent[len(args) :]))])}
        streams = self._streams.replaced(self._write)
        more: dict[str, Any] = {"streams": streams} if streams else {}
        if awaiting.running_loop() is not None:
            more["loop"] = True
        if shown := [name for name in self.shown if name in self.space]:
            self.shown -= set(shown)
            more["globals"] = [[name, self._write(self.space[name])] for name in shown]
        if self.world is not None:
            more["world"] = self.world.told()
        places = zip((*range(len(args)), *kwargs), given, stays)
        offered = self.kept.offer((place, value) for place, value, stay in places if do == "call" and not stay)
        more |= self.kept.told(offered, self._write)
        answer = self._converse({**request, **more})
        self.kept.hear(answer.get("k"), self._read_value)
        self._streams.hear(answer, streams)
        if self.world is not None:
            self.world.hear(answer.get("world"))
        if "a" in answer:
            left = self._changed_arguments(answer["a"], sent[: len(args)], dict(zip(kwargs, sent[len(args) :])))
            originals.write_back(given, left, stays)
        self.kept.end(offered, keep=type(answer.get("v")) is list and answer["v"][:1] in (["o"], ["g"]))
        if "x" in answer:
            self.answered += 1
            self.raised = self._exception(answer)
            raise self.raised
        value = self._read(answer.get("v"), **made)
        # To look up a function is not to call it, and to take turns is no answer.
        self.answered += do not in _NO_ANSWERS or self._make(self).handle(value) is None
        return value

    def _changed_arguments(self, data: Any, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments as the program has left them."""
        after = _list(self._read_value(data))
        if len(after) != 2 or (type(after[1]) is dict and list(after[1]) != list(kwargs)):
            raise plain.PlainError("other arguments")
        # What has become too large stays as it was.
        named = after[1] if type(after[1]) is dict else kwargs
        return [*(after[0] if type(after[0]) is list else args), *named.values()]

    def _converse(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer; call what functions of the tests the program calls before."""
        own = self._own
        own.seat = own.seat or Seat(self._free_seats, self._seats)
        seat, number = own.seat.number, next(self._requested)
        addresses = (("calls", seat), ("answer", number))
        self._expected.update(addresses)
        own.depth += 1
        try:
            self._send({**request, "n": number, "t": seat, "c": own.call, "threads": _thread._count() > 0})
            while True:
                message = self._mail.take(*addresses)
                if message is None:
                    # Remembered, for a test that catches every exception.
                    self.ended = True
                    raise ProgramEnded
                if "call" not in message:
                    found: dict[str, Any] = message
                    return found
                if message.get("foreign") is True:
                    # From a thread of the program: others of its threads may call meanwhile.
                    importlib.import_module("threading").Thread(target=self._reply, args=[message], daemon=True).start()
                else:
                    self._reply(message)
        finally:
            own.depth -= 1
            self._expected.difference_update(addresses[1:] if own.depth else addresses)

    def _receive(self) -> Any:
        line = self._replies.readline(bounds.MAX_LINE)
        try:
            return plain.loads(line) if line.endswith(b"\n") else None
        except plain.PlainError:
            return None

    def _address(self, message: Any) -> tuple[str, int]:
        """Tell for whom a message is. Raises an error for one that nobody waits for."""
        address = ("calls", message["t"]) if "call" in message else ("answer", message["n"])
        if type(message) is not dict or address not in self._expected:
            raise ValueError("nobody waits for it")
        return address

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending, contextlib.suppress(BrokenPipeError):
            service.send(self.requests, message)

    def _reply(self, call: dict[str, Any]) -> None:
        before, self._own.call = self._own.call, call.get("c")
        changed: Copied | None = None
        if self._own.before is None:
            # A thread for calls of the program, which has no request of its own.
            changed = self._own.before = {}
        try:
            answer = self._called(call)
        except BaseException:
            # A malformed call, or the end of the tests. In a thread nobody else would notice.
            self.ended = True
            raise
        finally:
            self._own.call = before
            if changed is not None:
                self._own.before = None
                self.originals.keep(changed)
        self._send({**answer, "c": call.get("c"), "k": self.kept.changed(self._write)})

    def _called(self, call: dict[str, Any]) -> dict[str, Any]:
        self.kept.hear(call.get("k"), self._read_value)
        args, kwargs = (self._read_value(call.get(name)) for name in ("args", "kwargs"))
        if type(args) is not list or type(kwargs) is not dict:
            raise plain.PlainError("no arguments")
        what = call["call"]
        if type(what) is str:
            # The method's object as it is now comes with its result.
            method = self._method(what, args)

            def called(*args: Any, **kwargs: Any) -> Any:
                return [method(*args, **kwargs), args[0]]

        elif type(what) is int and 0 <= what < len(self._functions):
            called = self._functions[what]
        elif type(what) is list and len(what) == 2:
            called = self.lent.operation(*what)
        else:
            raise plain.PlainError("no such function")
        try:
            return {"r": self._write(called(*args, **kwargs))}
        except Exception as error:
            self._own.raised = error
            self.hidden |= bool(args[type(what) is str :] or kwargs) and exceptions.fails(error)
            return {"x": type(error).__name__, "m": self._write([str(part) for part in error.args])}

    def _method(self, name: str, args: list[Any]) -> Callable[..., Any]:
        """Return a public method of an object of the tests, which is the first of `args`."""
        found = signatures.member(args[0], name) if args and id(args[0]) in self._numbers else None
        if found is None:
            raise plain.PlainError("no such method")
        return found

    def _write(self, value: Any) -> Any:
        keep = self._make(self).handle
        try:
            return plain.encode(value, keep, self._write_other, whole=True)
        except plain.TooLarge:
            self.too_large = True
            return plain.encode(value, keep, self._write_other)

    def _number(self, value: Any) -> int:
        with self._numbering:
            number = self._numbers.setdefault(id(value), len(self._ours))
            if number == len(self._ours):
                self._ours.append(value)
        return number

    def _known(self, number: Any, file: bool) -> Any:
        """Return an object of the tests, or a file in memory, that the program may change."""
        if type(number) is not int or not 0 <= number < len(self._ours):
            raise plain.PlainError("no such object")
        found = self._ours[number]
        if is_own(found) is file or (file and found.closed):
            raise plain.PlainError("another kind of object")
        if self._own.before is not None:
            self.originals.copy(found, self._own.before)
        return found

    def _function(self, value: Any) -> int:
        with self._numbering:
            number = next((n for n, known in enumerate(self._functions) if known == value), len(self._functions))
            if number == len(self._functions):
                self._functions.append(value)
        return number

    def _write_other(self, value: Any, encoder: Any, depth: int) -> Any:
        kind = type(value)
        if kind in (int, str, float, list, tuple, dict, bool):
            return None
        if value is NotImplemented:
            return ["G", "builtins", "NotImplemented"]
        handle = self._make(self).handle(value)
        if handle is None and id(value) in self._handles:
            handle = self._handles[id(value)]
        if handle is not None:
            return ["o", kind.__name__, handle, None]
        if is_lent(value) or kind in (ReturnedMock, MockBefore):
            return ["W", self.lent.number(value), way(value)]
        if isinstance(value, Exception):
            self._errors[kind.__name__] = kind
            return [
                "exception",
                kind.__name__,
                encoder.any(list(value.args), depth + 1),
                encoder.any(vars(value), depth + 1),
            ]
        if is_own(value):
            return encoder.refer(self._number(value), value, signatures.methods(kind))
        if kind in (io.StringIO, io.BytesIO) and not value.closed:
            return ["S", self._number(value), *library_types.contents(value)]
        own = library_types.write(value, encoder, depth)
        if own is not None:
            return own
        if not callable(value) or (isinstance(value, type) and plain.is_known_type(value)):
            return None
        module, name = getattr(value, "__module__", None), getattr(value, "__name__", "")
        if module in _SHARED and getattr(importlib.import_module(module), name, None) is value:
            return ["G", module, name]
        if signatures.is_plain_class(value):
            if issubclass(value, Exception):
                self._errors[name] = value
            return ["K", self._function(value), name, signatures.methods(value), signatures.base(value)]
        if not isinstance(value, types.FunctionType):
            return ["F", self._function(value), name or "function", None, None]
        told = encoder.any(signatures.told(value), depth + 1)
        return ["F", self._function(value), name or "function", signatures.parameters(value), told]

    def _read(self, data: Any, **made: Any) -> Any:
        maker = self._make(self, **made)
        try:
            return plain.decode(data, maker.object, service.array, lambda *tagged: self._read_other(maker, *tagged))
        except plain.TooLarge:
            self.too_large = True
            raise

    def _read_value(self, data: Any) -> Any:
        return self._read(data, chained=False)

    def _read_other(self, maker: Any, tag: str, rest: list[Any], decoder: Any, depth: int) -> Any:
        """Read what only objects and functions of the tests are written as, and iterators."""
        if tag == "g":
            kind, handle = rest
            if type(kind) is not str or type(handle) is not int:
                raise plain.PlainError("malformed iterator")
            return maker.stream(kind, handle)
        if tag == "X":
            return self._exception_value(*rest)
        if tag == "F" and type(rest[0]) is int and 0 <= rest[0] < len(self._functions):
            return self._functions[rest[0]]
        if tag == "W":
            return self.lent.returned(rest[0])
        if tag in library_types.TAGS:
            found = library_types.read(tag, rest, decoder, depth)
            if tag == "namespace":
                vars(found).update({name: uncallable(name, value) for name, value in vars(found).items()})
            return found
        if tag == "j":
            return self._known(rest[0], file=False)
        if tag == "S":
            number, held, position = rest
            return library_types.filled(self._known(number, file=True), held, position, decoder)
        if tag != "J":
            raise plain.PlainError("malformed plain data")
        objects, value = rest
        for number, _, attributes, _ in objects:
            ours = self._known(number, file=False)
            read = {name: decoder.any(part, depth) for name, part in attributes if type(name) is str}
            # Methods of the tests' own classes stay theirs.
            vars(ours).update({name: part for name, part in read.items() if not signatures.is_fixed(type(ours), name)})
        return decoder.any(value, depth)

    def _exception_value(self, handle: Any, told: Any) -> BaseException:
        """Return an exception that the program has returned, always the same one."""
        if type(handle) is not int or type(told) is not dict:
            raise plain.PlainError("malformed exception")
        if handle not in self.known:
            self.known[handle] = exceptions.made(told, self.exceptions)
            self._handles[id(self.known[handle])] = handle
        found: BaseException = self.known[handle]
        return found

    def _exception(self, answer: dict[str, Any]) -> BaseException:
        """Return an exception of the types that the tests know, by name."""
        names = [name for name in _list(answer["x"]) if type(name) is str]
        raised, self._own.raised = self._own.raised, None
        self.hidden &= "AssertionError" not in names
        if "StopIteration" in names or "StopAsyncIteration" in names:
            # StopIteration would silently end a map() in the test; PEP 479 does the same for generators.
            return RuntimeError("the program raised StopIteration")
        if raised is not None and names[:1] == [type(raised).__name__]:
            return raised
        return exceptions.made(answer, {**self._errors, **self.exceptions})


def _list(value: Any) -> list[Any]:
    return value if type(value) is list else []
