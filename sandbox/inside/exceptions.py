"""Exceptions of a program in test code: objects of the tests' own types, made of plain data."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rlvr.sandbox.inside import plain
from rlvr.sandbox.inside.standins import uncallable

_MAX_NAMES = 20
_MAX_CAUSES, _MAX_PARTS = 5, 100


class RaisedByProgram(Exception):
    """An exception of a type that the program defined, with the text that it had there."""

    _text: str | None = None

    def __str__(self) -> str:
        return super().__str__() if self._text is None else self._text


def types(
    names: Iterable[str], bases: Callable[[str], list[str]], make: Callable[..., Any]
) -> dict[str, type[Exception]]:
    """Return types for those names of the program that the tests catch.

    `bases` asks for the names of a type and of its bases; `make` for an exception that the tests create. Types that
    are attributes of classes have their dotted names and the last part of these.
    """
    above = {name: bases(name)[:_MAX_NAMES] for name in names}
    found: dict[str, type[Exception]] = {}
    # The most general types first.
    for name in sorted(above, key=lambda name: len(above[name])):
        known = [found[base] for base in above[name][1:] if base in found]

        def created(self: Any, *args: Any, name: str = name, **kwargs: Any) -> None:
            like = make(name, *args, **kwargs)
            if isinstance(like, Exception):
                self.args = like.args
                vars(self).update(vars(like))

        found[name] = _type(name.rpartition(".")[2], known, above[name], {"__init__": created})
    # The program tells the types of what it raises without the classes that they are attributes of.
    return {**{name.rpartition(".")[2]: kind for name, kind in found.items()}, **found}


def made(told: dict[str, Any], known: dict[str, type[Exception]], depth: int = 0) -> BaseException:
    """Return an exception as the program's side has told it (service.py)."""
    names = [name for name in _list(told.get("x"))[:_MAX_NAMES] if type(name) is str]
    known = {**_of_library(names, _list(told.get("q"))), **known}
    args = _list(plain.decode(told.get("m", ["l", []])))
    if names[:1] == ["SystemExit"]:
        # It ends the tests, which then have failed, unless they expect it.
        return SystemExit(*args)
    caught = [known[name] for name in names if name in known]
    parts = [made(part, known, depth + 1) for part in _list(told.get("g"))[:_MAX_PARTS] if depth < _MAX_CAUSES]
    error: BaseException | None = None
    raised = [part for part in parts if isinstance(part, Exception)]
    if raised and "ExceptionGroup" in names:
        error = ExceptionGroup(str(args[0] if args else ""), raised)
    if error is None and (not names or _builtin(names[:1])):
        error = _plain(_builtin(names), args)
    if error is None:
        name = names[0] if names else "RaisedByProgram"
        kind = caught[0] if caught and caught[0].__name__ == name else _type(name, caught[:1], names, {})
        error = kind.__new__(kind, *args)
        error.args = tuple(args)
    _fill(error, told)
    if type(told.get("e")) is dict and depth < _MAX_CAUSES:
        error.__cause__ = made(told["e"], known, depth + 1)
    return error


def _of_library(names: list[str], modules: list[Any]) -> dict[str, type[Exception]]:
    """Return those of the standard library's exceptions, by name, whose modules the tests have imported."""
    found: dict[str, type[Exception]] = {}
    for name, module in zip(names, modules):
        imported = type(module) is str and module.partition(".")[0] in sys.stdlib_module_names
        kind = vars(sys.modules[module]).get(name) if imported and module in sys.modules else None
        ours = module in ("builtins", "__main__") or name == "SkipTest"
        if isinstance(kind, type) and issubclass(kind, Exception) and not ours:
            found[name] = kind
    return found


def _fill(error: BaseException, told: dict[str, Any]) -> None:
    """Give an exception the text and the attributes that it has in the program."""
    text, attributes = plain.decode(told.get("s")), plain.decode(told.get("d"))
    if type(attributes) is dict:
        named = {name: value for name, value in attributes.items() if type(name) is str}
        vars(error).update({name: uncallable(name, value) for name, value in named.items()})
    if isinstance(error, RaisedByProgram) and type(text) is str:
        error._text = text


def _type(name: str, known: list[type[Exception]], above: list[str], body: dict[str, Any]) -> type[Exception]:
    builtin = _builtin(above)
    bases = [*known, *([] if known else [RaisedByProgram]), *([builtin] if builtin else [])]
    try:
        return type(name, tuple(bases), body)
    except TypeError:
        # Builtin exceptions of different layouts.
        return type(name, tuple(bases[:1]), body)


def _builtin(names: list[str]) -> type[Exception] | None:
    for name in names:
        found = getattr(builtins, name, None)
        if isinstance(found, type) and issubclass(found, Exception) and found is not Exception:
            return found
    return None


def _plain(kind: type[Exception] | None, args: list[Any]) -> Exception | None:
    if kind is None:
        return None
    try:
        return kind(*args)
    except (TypeError, ValueError):
        # UnicodeDecodeError and others take arguments of fixed types.
        return None


def told(error: BaseException | None) -> tuple[str, list[str]]:
    """Return name and arguments of an exception of the tests, as the program gets them."""
    return ("", []) if error is None else (type(error).__name__, [str(part) for part in error.args])


def fails(error: BaseException) -> bool:
    """Whether an exception is that of an assert of the tests."""
    trace = error.__traceback__ if isinstance(error, AssertionError) else None
    while trace is not None and trace.tb_frame.f_code.co_filename != "test.py":
        trace = trace.tb_next
    return trace is not None


def _list(value: Any) -> list[Any]:
    return value if type(value) is list else []
