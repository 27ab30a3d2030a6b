"""What the program is told of methods and functions of the tests."""

from __future__ import annotations

import importlib
import types
from typing import Any

from rlvr.sandbox.inside.plain import is_known_type

_SCALARS = (str, int, float, bool, type(None))


def methods(kind: type) -> list[str]:
    """Return the names of the public methods of a class of the tests."""
    above = [base for base in kind.__mro__ if base.__module__ == "__main__"]
    named = {name: found for base in above for name, found in vars(base).items()}
    return sorted(n for n, found in named.items() if n[0] != "_" and isinstance(found, types.FunctionType))


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
