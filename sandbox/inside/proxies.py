"""Run test code with proxies for the objects of a program in another sandbox.

Values that the program returns are decoded into exact builtin types. Instances of its classes are proxies that compare
by identity, so that the program's `__eq__` never decides a test, unless the tests ask for that (TestJob.objects). Any
other object that it returns is a `Handle`, which has no methods: the test expects a value there, and the program's code
must not answer for it. What a call returned can be called, awaited and iterated over: that gives values again.
"""

from __future__ import annotations

import builtins
import operator
import types
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from rlvr.sandbox.inside import awaiting, chains, exceptions, members, operations
from rlvr.sandbox.inside.link import Link
from rlvr.sandbox.inside.originals import is_own, same_class
from rlvr.sandbox.inside.standins import METHODS_OF_VALUES, uncallable

# What functions have, beside what these classes have themselves.
_OF_FUNCTIONS = ("__name__", "__qualname__", "__wrapped__", "__annotations__", "__defaults__")


def _link(proxy: Any) -> Link:
    return object.__getattribute__(proxy, "_link")


def _on(proxy: Any) -> dict[str, Any]:
    return object.__getattribute__(proxy, "_on")


def _ask(proxy: Any, do: str, *args: Any, **made: Any) -> Any:
    return _link(proxy).ask(do, _on(proxy), args, **made)


def asked(proxy: Any, question: str, *args: Any, **made: Any) -> Any:
    """Return what the program's side says of an object, by one of OPERATIONS. `made`: as for Link.ask."""
    return _ask(proxy, question, *args, **made)


def handle_of(proxy: Any) -> int | None:
    """Return the number of a program's object; None for a name that has not been looked up."""
    known = _on(proxy).get("object")
    return None if known is None else known[2]


def _of_type(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"the program returned no {kind.__name__}")
    return value


class Handle:
    """A program's object where the test expects a value. Equal only to itself.

    It can be passed back to the program, and its attributes can be read; those that are not plain data are handles too.
    It has no callable methods, items, length, order or text: the program's code would compute them, and could learn
    from the arguments what is expected. Its truth value came with it: the program could as well have returned a bool.
    """

    __slots__ = ("_link", "_on", "_returned", "_value")

    def __init__(self, link: Link, on: dict[str, Any], returned: bool = False) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_on", on)
        object.__setattr__(self, "_returned", returned)
        # Whether a value is expected of what is awaited, entered or iterated over.
        object.__setattr__(self, "_value", False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _OF_FUNCTIONS:
            raise AttributeError(name)
        found = _ask(self, "get", name, chained=_is_chained(_link(self), name))
        if not isinstance(found, Handle):
            # A type must not answer for a method either.
            return uncallable(name, found)
        if name in METHODS_OF_VALUES:
            # As a method of a value that the test expects it must not be callable, whatever it is elsewhere.
            return Handle(_link(found), _on(found))
        return Member(found, name) if _link(self).objects and type(found) is Handle else found

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "set", name, value)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # A decorated method of a class of the tests.
        is_function = _on(self).get("object", ("", ""))[1] == "function"
        return types.MethodType(self, instance) if instance is not None and is_function else self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not object.__getattribute__(self, "_returned"):
            raise TypeError("an object of the program is not callable here")
        return _link(self).ask("call", _on(self), args, kwargs, returned=True, chained=False)

    def __bool__(self) -> bool:
        return _of_type(bool, _on(self)["object"][3])

    def __repr__(self) -> str:
        return "<object of the program>"

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from awaiting.awaited(_link(self), _on(self), "await", chained=_gives_objects(self)))

    async def __aiter__(self) -> AsyncIterator[Any]:
        items = _ask(self, "aiter", returned=True)
        chained = _is_chained(_link(self), chains.ITERATED)
        while found := _of_type(list, await awaiting.Started(_link(self), _on(items), "anext", chained=chained)):
            yield found[0]

    def __enter__(self) -> Any:
        return _ask(self, "enter", returned=True, chained=_gives_objects(self))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        return _ask(self, "exit", *exceptions.told(error)) is True and _may_suppress(self, error)

    async def __aenter__(self) -> Any:
        return await awaiting.Started(_link(self), _on(self), "aenter", chained=_gives_objects(self))

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        suppressed = await awaiting.Started(_link(self), _on(self), "aexit", *exceptions.told(error))
        return suppressed is True and _may_suppress(self, error)

    def __copy__(self) -> Any:
        return _ask(self, "copy", instance=isinstance(self, Instance))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        found = memo[id(self)] = _ask(self, "deepcopy", instance=isinstance(self, Instance))
        return found

    def __hash__(self) -> int:
        return _of_type(int, _ask(self, "hash")) if _link(self).objects else hash(_identity(self))


def _may_suppress(proxy: Any, error: BaseException | None) -> bool:
    """Never a failure of a test itself, and none where the tests do not ask for that."""
    return _link(proxy).objects and isinstance(error, Exception) and not isinstance(error, AssertionError)


def _gives_objects(proxy: Any) -> bool:
    """Whether objects in what is awaited or entered may be those that the tests know."""
    return isinstance(proxy, Instance) or not object.__getattribute__(proxy, "_value")


def _identity(proxy: Any) -> Any:
    """Return what two proxies of one object have in common."""
    known = _on(proxy).get("object")
    return id(proxy) if known is None else (id(_link(proxy)), known[2])


class Member(Handle):
    """Attribute of an Instance, such as a method; can be called."""

    __slots__ = ("_name",)

    def __init__(self, found: Handle, name: str) -> None:
        super().__init__(_link(found), _on(found))
        object.__setattr__(self, "_name", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, link = object.__getattribute__(self, "_name"), _link(self)
        # `p.scale(2).area()`: a new object whose methods the tests call.
        made = {"instance": True} if name in link.chained else {"returned": True, "chained": _is_chained(link, name)}
        return link.ask("call", _on(self), args, kwargs, **made)


def _is_chained(link: Link, name: str) -> bool:
    """Whether the tests use results of this name as objects (chains.py)."""
    return link.objects or name in link.chained or chains.ANY in link.chained


class Stream(Handle):
    """An iterator of the program: its items are values."""

    __slots__ = ("_items", "_taken")

    def __init__(self, link: Link, on: dict[str, Any]) -> None:
        super().__init__(link, on)
        object.__setattr__(self, "_items", deque())
        object.__setattr__(self, "_taken", 0)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        items = object.__getattribute__(self, "_items")
        if not items:
            taken = object.__getattribute__(self, "_taken") + 1
            object.__setattr__(self, "_taken", taken)
            chained = _is_chained(_link(self), chains.ITERATED)
            items.extend(_of_type(list, _ask(self, "next", taken, returned=True, chained=chained)))
        if not items:
            raise StopIteration
        return items.popleft()

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return Member(found, name) if name in ("send", "throw", "close") and type(found) is Handle else found


class Instance(Handle):
    """Instance of a program's class, created by the test. Its operators run the program's code: they are tested."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        found = _ask(self, "get", name, chained=_is_chained(_link(self), name))
        return Member(found, name) if type(found) is Handle else _held(self, "get", name, found)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        chained = _is_chained(_link(self), "__call__")
        return _link(self).ask("call", _on(self), args, kwargs, returned=True, chained=chained)

    def __len__(self) -> int:
        return _of_type(int, _ask(self, "len"))

    def __iter__(self) -> Iterator[Any]:
        found = _ask(self, "iter", returned=True)
        return found if isinstance(found, Stream) else iter(self.__next__, Handle)

    def __next__(self) -> Any:
        chained = _is_chained(_link(self), chains.ITERATED)
        found = _of_type(list, _ask(self, "next", 0, returned=True, chained=chained))
        if not found:
            raise StopIteration
        return found[0]

    def __reversed__(self) -> Any:
        return iter(_ask(self, "reversed", returned=True))

    def __getitem__(self, key: Any) -> Any:
        found = _ask(self, "item", key, returned=True, chained=_is_chained(_link(self), chains.ITEM))
        return _held(self, "item", key, found)

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        _ask(self, "delitem", key)

    def __format__(self, form: str) -> str:
        return _of_type(str, _ask(self, "format", form))


def _held(proxy: Any, do: str, key: Any, value: Any) -> Any:
    held = _link(proxy).held
    return value if held is None else held.keep(_on(proxy), do, key, value)


class Derived(Instance):
    """Result of an operator on an Instance. Other than one it is never equal to plain data."""

    __slots__ = ()


class Named(Handle):
    """Global name of the program: a function or class to call, or a value, which every other operation fetches.

    A dotted name is called in the program only if it is a method of a class.
    """

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        link = _link(self)
        first, *path = _on(self)["name"].split(".")
        # Without arguments the program learns nothing: `f.cache_clear()`.
        told = args or kwargs or (path and path[-1] in METHODS_OF_VALUES)
        if path and first not in link.classes and told:
            found = _ask(Named(link, {"name": first}), "self")
            for name in path:
                found = getattr(found, name)
            return found(*args, **kwargs)
        name = _on(self)["name"].rpartition(".")[2]
        made = {"instance": True} if name in link.classes else {"returned": True, "chained": _is_chained(link, name)}
        return link.ask("call", _on(self), args, kwargs, **made)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            return _ask(self, "get", name)
        path = f"{_on(self)['name']}.{name}"
        if path in _link(self).exceptions:
            return _link(self).exceptions[path]
        if _link(self).objects and _on(self)["name"] in _link(self).classes:
            # At once, so that `is` holds between members of an enumeration.
            return _ask(self, "get", name, returned=True)
        return Named(_link(self), {"name": path})

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        _ask(self, "delitem", key)

    def __eq__(self, other: object) -> bool:
        return self is other or bool(_ask(self, "self") == other)

    def __hash__(self) -> int:
        return hash(_ask(self, "self")) if _link(self).objects else object.__hash__(self)

    def __instancecheck__(self, value: Any) -> bool:
        known = isinstance(value, Handle) or is_own(value) or _link(self).registers
        return _link(self).objects and known and _of_type(bool, _ask(self, "isinstance", value))

    def __subclasscheck__(self, value: Any) -> bool:
        return _link(self).objects and _of_type(bool, _ask(self, "issubclass", value))


def _of_instance(do: str, kind: type) -> Callable[..., Any]:
    return lambda self, *args: _of_type(kind, _ask(self, do, *args))


def _of_enumeration(name: str) -> Callable[..., Any]:
    """The length, members or a member by its name of an enumeration, as of a dict that the program returned."""
    operate = vars(operator).get(f"__{name}__") or getattr(builtins, name)

    def operation(self: Named, *args: Any) -> Any:
        found = _value_of(self)
        if type(found) is not Handle:
            return operate(found, *args)
        members = _of_type(dict, _ask(self, "members", returned=True))
        return operate(members if name in ("getitem", "len") else list(members.values()), *args)

    return operation


def _of_value(name: str) -> Callable[..., Any]:
    """An operation on the value of a global name, done here."""
    operate = vars(operator).get(f"__{name}__") or getattr(builtins, name)
    return lambda self, *args: operate(_value_of(self), *args)


def _value_of(proxy: Named) -> Any:
    """Return the value of a global name, in which an object is one only where the tests use it as such."""
    chained = _is_chained(_link(proxy), _on(proxy)["name"].rpartition(".")[2])
    return _ask(proxy, "self", chained=chained)


def _compare(name: str) -> Callable[[Any, Any], Any]:
    """A comparison of the program's, where the tests ask for one and neither operand stands for a value."""

    def compare(self: Any, other: Any) -> Any:
        known = isinstance(other, Handle)
        # Equality with a value is never asked: the program would learn the value, and say yes.
        own = isinstance(self, Instance) and not isinstance(self, Derived) and name not in ("eq", "ne")
        if known:
            made = isinstance(self, Instance) or isinstance(other, Instance)
            own = made or (_is_of_class(self) and _is_of_class(other))
        if type(other) is Named:
            return NotImplemented
        if _link(self).objects and own:
            return _of_type(bool, _ask(self, f"op {name}", other))
        if name in ("eq", "ne") and not known and is_own(other):
            same = same_class(other, _on(self).get("object", ("", ""))[1], lambda: _ask(self, "attributes"))
            return same if name == "eq" else not same
        same = self is other or (known and _identity(self) == _identity(other))
        return same if name == "eq" else not same if name == "ne" else NotImplemented

    return compare


def _is_of_class(proxy: Any) -> bool:
    """Whether an object is, by its name, of a class that the tests use."""
    return _on(proxy).get("object", ("", ""))[1] in _link(proxy).classes


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *args: _ask(self, f"op {name}", *args, derived=True)


def _of_function(name: str) -> property:
    return property(lambda self: _ask(self, "get", name))


members.give(Handle, _ask, lambda proxy: _link(proxy).objects and _is_of_class(proxy))
for _kept in (Handle, Member, Stream, Instance, Derived, Named):
    for _name in ("__doc__", "__module__"):
        setattr(_kept, _name, _of_function(_name))
for _name, _kind in (("str", str), ("repr", str), ("float", float), ("int", int), ("contains", bool), ("truth", bool)):
    setattr(Instance, f"__{'bool' if _name == 'truth' else _name}__", _of_instance(_name, _kind))
for _name in ("abs", "round"):
    setattr(Instance, f"__{_name}__", lambda self, *args, name=_name: _ask(self, name, *args, derived=True))
for _name in ("neg", "pos", "invert", *(p + n for n in operations.OPERATORS for p in ("", "r", "i"))):
    setattr(Instance, f"__{_name}__", _operator(_name))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Handle, f"__{_name}__", _compare(_name))
for _name in ("ne", "lt", "le", "gt", "ge", "neg", "pos", "invert", *operations.OPERATORS):
    setattr(Named, f"__{_name}__", _of_value(_name))
for _name in ("contains", "getitem", "iter", "len", "reversed"):
    setattr(Named, f"__{_name}__", _of_enumeration(_name))
for _name in ("str", "repr", "bool", "float", "int", "abs", "round", "format"):
    setattr(Named, f"__{_name}__", _of_value(_name))
for _name in operations.OPERATORS:
    _operate = getattr(operator, f"__{_name}__")
    setattr(Named, f"__r{_name}__", lambda self, left, operate=_operate: operate(left, _value_of(self)))
