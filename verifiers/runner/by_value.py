"""Pickling for a process that cannot import the script, notebook or function in which something is defined.

A function or class that the other process can import is pickled by name, as in plain pickle. Other functions are
pickled as their code with the globals that it names, other classes as their bases and attributes, as cloudpickle does
(github.com/cloudpipe/cloudpickle). Values of globals and closures are copied when the pickle is made. `pickle.loads`
reads it, in the same version of Python.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import functools
import importlib
import importlib.util
import io
import itertools
import marshal
import operator
import os
import pickle
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_GLOBAL_NAMES = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"}
# Made anew with each class.
_OWN_ATTRIBUTES = {"__dict__", "__weakref__", "__slots__", "__module__", "__qualname__", "_abc_impl"}
_BUILT = ("__orig_bases__", "__slots__")  # a class must be created with these
_Cached = type(functools.lru_cache(lambda: None))
# Types of the interpreter that have another name, or none, in `builtins`: {type: its name in `types`}.
_UNNAMED = {kind: name for name in types.__all__ if isinstance(kind := getattr(types, name), type)}
_UNNAMED = {kind: name for kind, name in _UNNAMED.items() if getattr(builtins, kind.__name__, None) is not kind}
_SENTINELS = {id(value): name for name, value in vars(dataclasses).items() if not isinstance(value, (type, str))}

# State of this process: a number for each class that it has sent; whether modules can be imported; the namespaces and
# classes that it has received.
_numbers: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
_count = itertools.count()
_found: dict[str, tuple[types.ModuleType, bool]] = {}
_namespaces: dict[str, dict[str, Any]] = {}
_classes: dict[str, type] = {}


def dumps(value: Any) -> bytes:
    """Pickle `value`. Raise what pickle raises for open files, locks, generators and the like."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def importable(name: str) -> bool:
    """Whether a fresh process with this one's sys.path finds the module `name` where this process has it from."""
    module = sys.modules.get(name)
    if module is None or name in ("__main__", "__mp_main__"):
        return False
    known = _found.get(name)
    if known is None or known[0] is not module:
        known = _found[name] = (module, _find(name, module))
    return known[1]


def _find(name: str, module: types.ModuleType) -> bool:
    if name in sys.builtin_module_names:
        return True
    above = name.rpartition(".")[0]
    if above and not importable(above):
        return False
    path = getattr(sys.modules[above], "__path__", None) if above else None
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    spec = next((found for finder in finders if (found := finder.find_spec(name, path))), None)
    if spec is None:
        return False
    file = getattr(module, "__file__", None)
    return file is None or not spec.has_location or os.path.realpath(file) == os.path.realpath(str(spec.origin))


def _has_name(value: Any) -> bool:
    """Whether a function, class or type variable can be imported by its name."""
    try:
        name = getattr(value, "__qualname__", value.__name__)
        held = operator.attrgetter(name)(sys.modules[value.__module__])
    except (AttributeError, KeyError, TypeError):
        return False
    return held is value and importable(value.__module__)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is types.FunctionType:
            return NotImplemented if _has_name(value) else _function(value, None)
        if isinstance(value, type):
            if value in _UNNAMED:
                return getattr, (types, _UNNAMED[value])
            return NotImplemented if value.__module__ == "builtins" or _has_name(value) else _class(value)
        if kind is _Cached:
            return NotImplemented if _has_name(value) else _function(value.__wrapped__, value.cache_parameters())
        if id(value) in _SENTINELS and kind.__module__ == "dataclasses":
            return getattr, (dataclasses, _SENTINELS[id(value)])
        if isinstance(value, types.ModuleType):
            return _module(value)
        reduce = _REDUCERS.get(kind)
        return NotImplemented if reduce is None else reduce(value)


def _module(module: types.ModuleType) -> Any:
    if not importable(module.__name__):
        raise pickle.PicklingError(f"the module {module.__name__} cannot be imported by another process")
    return importlib.import_module, (module.__name__,)


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    types.CodeType: lambda found: (marshal.loads, (marshal.dumps(found),)),
    staticmethod: lambda found: (staticmethod, (found.__func__,)),
    classmethod: lambda found: (classmethod, (found.__func__,)),
    property: lambda found: (property, (found.fget, found.fset, found.fdel, found.__doc__)),
    functools.cached_property: lambda found: (_cached_property, (found.func, found.attrname)),
    typing.TypeVar: lambda found: NotImplemented if _has_name(found) else _type_variable(found),
    types.MappingProxyType: lambda found: (types.MappingProxyType, (dict(found),)),
}


def _type_variable(found: typing.TypeVar) -> Any:
    settings = (found.__bound__, found.__covariant__, found.__contravariant__)
    return _make_type_variable, (found.__name__, found.__constraints__, *settings)


def _make_type_variable(name: str, constraints: tuple[Any, ...], bound: Any, co: bool, contra: bool) -> Any:
    return typing.TypeVar(name, *constraints, bound=bound, covariant=co, contravariant=contra)


def _cached_property(function: Callable[[Any], Any], name: str) -> functools.cached_property[Any]:
    made = functools.cached_property(function)
    made.__set_name__(object, name)
    return made


# Functions


def _function(function: types.FunctionType, cache: dict[str, Any] | None) -> Any:
    """Reduce a function to itself without what it refers to, then that, since it may refer to itself.

    `cache`: the settings of its lru_cache.
    """
    code, module = function.__code__, function.__module__ or "__main__"
    home = function.__globals__
    shared = module in sys.modules and home is vars(sys.modules[module]) and importable(module)
    used = {} if shared else {name: home[name] for name in sorted(set(_names(code))) if name in home}
    state = {
        "modules": list(_submodules(code, used)),
        "globals": used,
        "cells": [_content(cell) for cell in function.__closure__ or ()],
        "attributes": {
            "__defaults__": function.__defaults__,
            "__kwdefaults__": function.__kwdefaults__,
            "__qualname__": function.__qualname__,
            "__module__": function.__module__,
            "__doc__": function.__doc__,
            "__dict__": {name: held for name, held in vars(function).items() if name != "__wrapped__" or not cache},
            "__annotations__": function.__annotations__,
        },
    }
    made = (marshal.dumps(code), function.__name__, module, shared, len(code.co_freevars), cache)
    return _make_function, made, state, None, None, _fill_function


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the globals that the code names, functions defined in it included."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname in _GLOBAL_NAMES)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _submodules(code: types.CodeType, used: dict[str, Any]) -> Iterator[types.ModuleType]:
    """Yield the submodules that the code reaches by attribute: `xml.dom.minidom` after `import xml`."""
    packages = tuple(f"{held.__name__}." for held in used.values() if isinstance(held, types.ModuleType))
    attributes = set(_attributes(code)) if packages else set()
    for name in sorted(sys.modules):
        for package in packages:
            below = name.removeprefix(package)
            if below != name and attributes.issuperset(below.split(".")) and importable(name):
                yield sys.modules[name]


def _attributes(code: types.CodeType) -> Iterator[str]:
    """Yield every name in the code, functions defined in it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _attributes(constant)


def _content(cell: types.CellType) -> tuple[Any, ...]:
    """Return the content of a closure's cell in a tuple; an empty one where it has none yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _make_function(
    code: bytes, name: str, module: str, shared: bool, cells: int, cache: dict[str, Any] | None
) -> Callable[..., Any]:
    home = vars(importlib.import_module(module)) if shared else _namespace(module)
    closure = tuple(types.CellType() for _ in range(cells))
    made = types.FunctionType(marshal.loads(code), home, name, None, closure)
    return made if cache is None else functools.lru_cache(**cache)(made)


def _namespace(module: str) -> dict[str, Any]:
    """Return the globals of a module that this process cannot import, as far as they were sent."""
    return _namespaces.setdefault(module, {"__name__": module, "__builtins__": builtins})


def _fill_function(function: Any, state: dict[str, Any]) -> None:
    inner = function.__wrapped__ if type(function) is _Cached else function
    inner.__globals__.update(state["globals"])
    for cell, content in zip(inner.__closure__ or (), state["cells"]):
        if content:
            cell.cell_contents = content[0]
    for name, held in state["attributes"].items():
        setattr(inner, name, held)
    if inner is not function:
        functools.update_wrapper(function, inner)


# Classes


def _class(kind: type) -> Any:
    """Reduce a class to its skeleton, then its attributes, since its methods may refer to it."""
    number = _numbers.setdefault(kind, f"{os.getpid()}.{next(_count)}")
    named = (kind.__name__, kind.__module__, kind.__qualname__)
    if issubclass(kind, enum.Enum):
        members = {name: member.value for name, member in kind.__members__.items()}
        kept = {
            name: held
            for name, held in vars(kind).items()
            if name not in members and getattr(held, "__module__", None) == kind.__module__
        }
        return _make_class, (number, type(kind), kind.__bases__, named, members), kept, None, None, _fill_class
    held = vars(kind)
    built = {name: held[name] for name in _BUILT if name in held}
    slots = (types.MemberDescriptorType, types.GetSetDescriptorType)
    kept = {name: value for name, value in held.items() if name not in _OWN_ATTRIBUTES and not isinstance(value, slots)}
    return _make_class, (number, type(kind), kind.__bases__, named, built), kept, None, None, _fill_class


def _make_class(
    number: str, meta: type, bases: tuple[type, ...], named: tuple[str, str, str], built: dict[str, Any]
) -> type:
    """Return the class of this number: the same one each time, so that its objects have one type."""
    if number not in _classes:
        name, module, qualname = named
        attributes = {"__module__": module, "__qualname__": qualname, **built}

        def body(namespace: Any) -> None:
            for key, value in attributes.items():  # one by one: an enumeration's namespace watches each
                namespace[key] = value

        _classes[number] = types.new_class(name, bases, {"metaclass": meta}, body)
    return _classes[number]


def _fill_class(kind: type, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(kind, name, value)
