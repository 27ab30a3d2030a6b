"""Objects of the tests that cannot be copied, and that the program may use where they are: mocks, queues, coroutines.

The program reaches what is listed here and nothing else: of mocks the names that the tests configure or look at, but
none of the methods and attributes by which they are configured and looked at; of other objects their public methods.
"""

from __future__ import annotations

import ast
import importlib
import operator
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from rlvr.sandbox.inside.analysis import FUNCTIONS, is_test_name
from rlvr.sandbox.inside.operations import next_items
from rlvr.sandbox.inside.plain import PlainError

_LOCK = "acquire release locked"
_CONDITION = f"{_LOCK} wait wait_for notify notify_all"
_EVENT = "set clear is_set wait"
_QUEUE = "put get put_nowait get_nowait qsize empty full task_done join maxsize"
# Public names of the types whose objects are lent, by the first of their bases that is listed.
_NAMES: dict[tuple[str, str], frozenset[str]] = {
    kind: frozenset(names.split())
    for kind, names in {
        ("asyncio.queues", "Queue"): _QUEUE,
        ("asyncio.locks", "Event"): _EVENT,
        ("asyncio.locks", "Lock"): _LOCK,
        ("asyncio.locks", "Condition"): _CONDITION,
        ("asyncio.locks", "Semaphore"): _LOCK,
        ("asyncio.locks", "Barrier"): "wait reset abort parties n_waiting broken",
        ("_asyncio", "Future"): "done result exception set_result set_exception cancel cancelled",
        ("asyncio.futures", "Future"): "done result exception set_result set_exception cancel cancelled",
        ("queue", "Queue"): _QUEUE,
        ("_queue", "SimpleQueue"): "put get put_nowait get_nowait qsize empty",
        ("threading", "Event"): _EVENT,
        ("threading", "Condition"): _CONDITION,
        ("threading", "Semaphore"): _LOCK,
        ("threading", "Barrier"): "wait reset abort parties n_waiting broken",
        ("_thread", "lock"): _LOCK,
        ("_thread", "RLock"): _LOCK,
        ("unittest.mock", "_SentinelObject"): "",
        ("builtins", "generator"): "send throw close",
        ("builtins", "async_generator"): "",
        ("contextlib", "_GeneratorContextManager"): "",
        ("contextlib", "_AsyncGeneratorContextManager"): "",
    }.items()
}
_PLAIN = (type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set)
_MOCK = ("unittest.mock", "NonCallableMock")


def is_mock(value: Any) -> bool:
    """Whether a value is one of unittest's mocks."""
    return any((base.__module__, base.__name__) == _MOCK for base in type(value).__mro__)


def is_lent(value: Any) -> bool:
    """Whether a value is an object that the program uses where it is."""
    plain = type(value) in (types.CoroutineType, object) or _is_iterator(value)
    return plain or is_mock(value) or _public(type(value)) is not None


def _is_iterator(value: Any) -> bool:
    return type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator)


def way(value: Any) -> str:
    """Return how the program uses an object: it awaits it, or takes items of it, or calls its methods."""
    if type(value) is types.CoroutineType:
        return "await"
    return "anext" if type(value) is types.AsyncGeneratorType else "next" if _is_iterator(value) else ""


def _public(kind: type) -> frozenset[str] | None:
    keys = ((base.__module__, base.__name__) for base in kind.__mro__)
    return next((_NAMES[key] for key in keys if key in _NAMES), None)


def _checked(value: Any, name: Any) -> str:
    """Return the name of an attribute that the program may read, or set where it is a mock's."""
    if type(name) is not str or name.startswith("_") or not name.isidentifier():
        raise PlainError("no public name")
    if is_mock(value):
        own = dir(importlib.import_module("unittest.mock").AsyncMock)
        if name in own or name == "method_calls" or name.startswith("assert"):
            raise AttributeError(name)
    elif name not in (_public(type(value)) or ()):
        raise AttributeError(name)
    return name


def _run(value: Any) -> Any:
    """Return the result of an awaitable that the program awaits in a loop that it runs itself."""
    asyncio = importlib.import_module("asyncio")
    if asyncio.events._get_running_loop() is not None:
        raise RuntimeError("the tests are running an event loop already")

    async def result() -> Any:
        return await value

    return asyncio.run(result())


async def _anext(value: Any) -> list[Any]:
    try:
        return [await value.__anext__()]
    except StopAsyncIteration:
        return []


def _raised(error: Any = None) -> tuple[Any, Any, Any]:
    """Return what a context is left with, for an exception of the program or none."""
    found = error if isinstance(error, Exception) else None
    return None if found is None else type(found), found, None


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "get": lambda value, name: getattr(value, _checked(value, name)),
    "call": lambda value, *args, **kwargs: value(*args, **kwargs),
    "run": _run,
    "list": list,
    "next": next_items,
    "anext": _anext,
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value, *error: type(value).__exit__(value, *_raised(*error)),
    "aenter": lambda value: type(value).__aenter__(value),
    "aexit": lambda value, *error: type(value).__aexit__(value, *_raised(*error)),
    "item": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "contains": operator.contains,
    **{kind.__name__: kind for kind in (len, bool, str, repr, int, float)},
}


class ReturnedMock:
    """A mock that the program returns. It equals that mock; methods of it would answer for a value."""

    def __init__(self, mock: Any) -> None:
        self._mock = mock

    def __eq__(self, other: object) -> bool:
        return other is self._mock or (isinstance(other, (ReturnedMock, MockBefore)) and other._mock is self._mock)

    def __hash__(self) -> int:
        return id(self._mock)


class MockBefore:
    """A mock with the attributes that it had before the program set some, for what a test expects."""

    def __init__(self, mock: Any, former: dict[str, tuple[Any, Any]]) -> None:
        self._mock, self._former = mock, former

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._mock, name)
        former, now = self._former.get(name, (found, found))
        # The tests may have set it since.
        return former if found is now else found

    def __eq__(self, other: object) -> bool:
        return bool(self._mock == (other._mock if isinstance(other, MockBefore) else other))

    def __hash__(self) -> int:
        return hash(self._mock)


class Lent:
    """The objects that are lent, by number."""

    def __init__(self) -> None:
        # Whether the program's results may be mocks themselves.
        self.whole = False
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        # Attributes of mocks that the program has set, by id: their former values and its own.
        self._former: dict[int, dict[str, tuple[Any, Any]]] = {}

    def before(self, value: Any) -> Any:
        """Return a mock as it was before the program set attributes of it; anything else is itself."""
        former = self._former.get(id(value)) if self._former else None
        return value if former is None else MockBefore(value, former)

    def _set(self, value: Any, name: Any, to: Any) -> None:
        # An object of the program would answer for the calls that the tests count.
        if not is_mock(value) or type(to) not in _PLAIN:
            raise AttributeError(name)
        former = getattr(value, _checked(value, name), None)
        setattr(value, name, to)
        known = self._former.setdefault(id(value), {})
        known[name] = (known[name][0] if name in known and known[name][1] is former else former, to)

    def number(self, value: Any) -> int:
        """Return the number of an object."""
        if isinstance(value, (ReturnedMock, MockBefore)):
            value = value._mock
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        return number

    def object(self, number: Any) -> Any:
        """Return an object that was lent. Raises PlainError for a number that none has."""
        if type(number) is not int or not 0 <= number < len(self._objects):
            raise PlainError("no such object")
        return self._objects[number]

    def returned(self, number: Any) -> Any:
        """Return what stands for an object in a value of the program."""
        found = self.object(number)
        return ReturnedMock(found) if is_mock(found) and not self.whole else found

    def operation(self, number: Any, do: Any) -> Callable[..., Any]:
        """Return a function that does an operation on an object."""
        found = self.object(number)
        if do == "set":
            return lambda name, to: self._set(found, name, to)
        if do not in _OPERATIONS or (do != "run" and type(found) is types.CoroutineType):
            raise PlainError("no such operation")
        if do == "call" and not is_mock(found):
            raise TypeError("not callable")
        return lambda *args, **kwargs: _OPERATIONS[do](found, *args, **kwargs)


def compares_identities(tree: ast.AST) -> bool:
    """Whether test code asks whether two objects are the same."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            if not any(isinstance(side, ast.Constant) for side in (node.left, *node.comparators)):
                return True
        elif isinstance(node, ast.Attribute) and node.attr in ("assertIs", "assertIsNot"):
            return True
    return False


_RUN = frozenset(
    "setup_module teardown_module setup_function teardown_function setUpModule tearDownModule load_tests".split()
)
# Not `__eq__`: objects that equal everything stand for anything.
_PLAIN_METHODS = frozenset("__init__ __repr__ __str__".split())


def shown(tree: ast.Module) -> list[str]:
    """Return the functions and classes of test code that the program finds as globals, where it has none of the name.

    They tell nothing of what is expected: functions that the tests never use, and classes that only hold values.
    """
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.decorator_list]
    return [*(node.name for node in classes if _only_holds(node)), *unused_functions(tree)]


def unused_functions(tree: ast.Module) -> list[str]:
    """Return the names of functions that nothing in test code uses, or only others of them."""
    left = [node for node in tree.body if isinstance(node, FUNCTIONS) and not node.decorator_list]
    left = [node for node in left if not is_test_name(node.name) and node.name not in _RUN]
    while left:
        inside = {id(part) for function in left for part in ast.walk(function)}
        used = {word for part in ast.walk(tree) if id(part) not in inside for word in _words(part)}
        kept = [function for function in left if function.name not in used]
        if len(kept) == len(left):
            break
        left = kept
    return [function.name for function in left]


def _words(node: ast.AST) -> list[str]:
    """Return the names in a node, those in a text too: a function may be looked up by it."""
    if isinstance(node, ast.Constant):
        return re.findall(r"\w+", node.value) if isinstance(node.value, str) else []
    return [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []


def _only_holds(node: ast.ClassDef) -> bool:
    """Whether a class has no methods but those that keep and show what it is given."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            if statement.name not in _PLAIN_METHODS or (statement.name == "__init__" and not _keeps(statement)):
                return False
        elif not isinstance(statement, (ast.Pass, ast.Expr, ast.AnnAssign)):
            return False
    return not node.keywords and all(isinstance(base, ast.Name) and base.id == "object" for base in node.bases)


def _keeps(function: ast.FunctionDef) -> bool:
    """Whether `__init__` reads nothing but its parameters, and has no values of its own but empty ones."""
    own = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    for part in (part for statement in function.body for part in ast.walk(statement)):
        if isinstance(part, (ast.Call, ast.Global)) or (isinstance(part, ast.Constant) and part.value):
            return False
        if isinstance(part, ast.Name) and part.id not in own:
            return False
    return True
