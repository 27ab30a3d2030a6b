"""What the program is told of methods and functions of the tests."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any

from rlvr.sandbox.inside.plain import is_known_type

_SCALARS = (str, int, float, bool, type(None))


# Special methods that the program may use of objects of the tests.
_SPECIAL = frozenset(
    f"__{name}__"
    for name in (
        "enter exit aenter aexit aiter anext await iter next reversed len contains getitem setitem delitem call hash "
        "eq ne lt le gt ge bool int float complex index str repr format bytes abs neg pos invert round trunc floor "
        "ceil divmod rdivmod getattr"
    ).split()
) | frozenset(
    f"__{how}{name}__"
    for how in ("", "r", "i")
    for name in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
)
_FUNCTIONS = (types.FunctionType, staticmethod, classmethod)


def methods(kind: Any) -> list[str]:
    """Return the names of what the program may use of objects of a class of the tests.

    Those of public and special methods; ".name" for values of the class, ":name" for properties, with "=name" for those
    that can be set.
    """
    return sorted(_members(kind))


@functools.lru_cache(maxsize=1000)
def _members(kind: Any) -> dict[str, Callable[..., Any]]:
    above = [base for base in reversed(kind.__mro__) if base.__module__ == "__main__"]
    named = {name: found for base in above for name, found in vars(base).items()}
    members: dict[str, Callable[..., Any]] = {}
    for name, found in named.items():
        if isinstance(found, types.FunctionType) and (name[0] != "_" or name in _SPECIAL):
            members[name] = lambda own, *args, name=name, **kwargs: getattr(type(own), name)(own, *args, **kwargs)
        elif name[0] == "_":
            continue
        elif isinstance(found, _FUNCTIONS):
            members[name] = lambda own, *args, name=name, **kwargs: getattr(type(own), name)(*args, **kwargs)
        elif isinstance(found, property):
            members[f":{name}"] = lambda own, name=name: getattr(own, name)
            if found.fset is not None:
                members[f"={name}"] = lambda own, value, name=name: setattr(own, name, value)
        elif not is_fixed(kind, name) or type(found).__name__ == "cached_property":
            members[f".{name}"] = lambda own, name=name: getattr(own, name)
    return members


def member(value: Any, name: str) -> Callable[..., Any] | None:
    """Return the function of an object of the tests for one of the names that `methods` has told, else None."""
    kind: Any = type(value)
    return _members(kind).get(name)


def is_fixed(kind: type, name: str) -> bool:
    """Whether an attribute of a class is a method or a descriptor, which an object cannot replace."""
    found = getattr(kind, name, None)
    return callable(found) or hasattr(type(found), "__get__")


def parameters(function: types.FunctionType) -> list[list[Any]]:
    """Return name, kind and whether there is a default of each parameter."""
    inspect = importlib.import_module("inspect")
    found = inspect.signature(function).parameters.values()
    return [[p.name, int(p.kind), p.default is not p.empty] for p in found]


def told(function: types.FunctionType) -> dict[str, Any]:
    """Return what `functools.wraps` copies of a function, as far as it is plain, and whether it is asynchronous."""
    inspect = importlib.import_module("inspect")
    annotations = {name: kind for name, kind in function.__annotations__.items() if kind is None or _is_known(kind)}
    attributes = {name: value for name, value in vars(function).items() if type(value) in _SCALARS}
    named = {"__doc__": function.__doc__, "__qualname__": function.__qualname__, "__module__": function.__module__}
    found = {**named, "__annotations__": annotations, "async": inspect.iscoroutinefunction(function)}
    return {**attributes, **found}


def _is_known(kind: object) -> bool:
    return isinstance(kind, str) or (isinstance(kind, type) and is_known_type(kind))


def is_plain_class(value: object) -> bool:
    """Whether a value is a class of the tests that the program may have a class for."""
    return type(value) is type and value.__module__ == "__main__"


def base(kind: type) -> str | None:
    """Return the name of the builtin exception that a class of the tests is derived from."""
    found = (base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")
    return next(found) if issubclass(kind, Exception) else None
