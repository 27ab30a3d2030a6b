"""Names for verifiers, task packs and environments.

There are three ways to name one: a registered name, `"module:attribute"`, and an entry point of an installed package in
the group `rlvr.verifiers` (or `rlvr.tasks`, `rlvr.environments`). A registered name may have members: "name:member".
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.metadata
import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, TypeVar

from .printable import convert, kind_of
from .tracebacks import describe_raised, raised_at
from .types import RunError, Task

T = TypeVar("T", bound=Callable[..., Any])

_EXAMPLES = {"verifier": "mine:shouting", "task": "mine:squares", "environment": "mine:higher_lower"}


MADE_WITH = "_rlvr_options"  # attribute of an instance: the options that it was made with
LIKENESS_MARGIN = 0.15  # names that are so much less similar than the best match are not suggested


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the most similar names, or all."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if near:
        likeness = [difflib.SequenceMatcher(None, other, name).ratio() for other in near]
        near = [other for other, ratio in zip(near, likeness) if ratio > max(likeness) - LIKENESS_MARGIN]
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(names)}" if names else "none is registered"


def load(what: Callable[[], Any], where: str) -> Any:
    """Call `what`, which imports a user's module, and return its result.

    An exception in the module (a syntax error, a failing import) becomes a LookupError in one line with file and line.
    """
    try:
        return what()
    # An import may run anything, sys.exit too.
    except (Exception, SystemExit) as error:
        place = raised_at(error)
        if isinstance(error, ModuleNotFoundError) and place is None:
            raise LookupError(
                f"{where}: no module {error.name!r} in this folder or among the installed packages"
            ) from error
        if isinstance(error, SyntaxError):
            place = (error.filename or "", error.lineno or 0)
        raise LookupError(f"{where}: {describe_raised(error, place)}") from error


def _call_maker(make: Callable[[], Any], where: str) -> Any:
    """Return what a maker makes. A failure in a user's maker becomes a LookupError, as in `load`.

    ValueError, LookupError, OSError and RunError pass, since they are messages for the user.
    """
    try:
        return make()
    # A constructor may run anything, sys.exit too.
    except (Exception, SystemExit) as error:
        expected = isinstance(error, (ValueError, LookupError, OSError, RunError))
        if expected and not isinstance(error, (KeyError, IndexError)):
            raise
        raise LookupError(f"{where}: {describe_raised(error, raised_at(error))}") from error


def key_values(items: Sequence[str], what: str) -> dict[str, str]:
    """Return `key=value` strings as a dictionary. ValueError for one without key or `=`, or a key given twice."""
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ValueError(f"{what} {item!r}: expected key=value")
        if key in pairs:
            raise ValueError(f"{what} {item!r}: {key} is given twice (before as {pairs[key]!r})")
        pairs[key] = value
    return pairs


class Registry:
    """A table of named makers.

    A maker is a function or a class; its keyword-only parameters are its options. kind: the word in error messages.
    builtins: the package of the built-in makers. They register when the package is imported, or lazily if its BUILT_IN
    lists them: BUILT_IN maps a name to the module that registers it (a plain list of names: modules of these names).
    """

    def __init__(self, kind: str, builtins: str) -> None:
        self.kind = kind
        self.builtins = builtins
        self._entries: dict[str, Callable[..., Any]] = {}
        self._members: dict[str, str] = {}

    def register(self, name: str, *, member: str = "") -> Callable[[T], T]:
        """Decorator: register under `name`. Raises ValueError for a name that another object has.

        member: an option whose value may follow the name, as in "name:value". The same definition registered again (a
        module that is run and imported, a notebook cell run twice) replaces the former one.
        """
        if not name or ":" in name:
            raise ValueError(f"{self.kind} name {name!r}: a name is not empty and has no colon")

        def add(made: T) -> T:
            known = self.builtins not in sys.modules or getattr(made, "__module__", "") == self._lazy_modules().get(
                name
            )
            held = self._entries.get(name) or (None if known else self._built_in(name))
            if held is not None and not _replaces(made, held):
                raise ValueError(
                    f"{self.kind} {name!r} is registered twice: by {_where(held)} and by {_where(made)}; rename one"
                )
            self._entries[name] = made
            self._members[name] = member
            return made

        return add

    def names(self) -> list[str]:
        """Return all names, sorted: registered ones and entry points of installed packages."""
        return sorted(
            {*self._lazy_modules(), *self._entries, *(point.name for point in entry_points(group=self.builtins))}
        )

    def get(self, spec: str) -> Callable[..., Any]:
        """Return the maker that `spec` names. Raises LookupError with the most similar names."""
        if ":" in spec:
            return self._bind_member(spec) if self.has_member(spec) else self._import(spec)
        if made := self._built_in(spec) or self._entries.get(spec):
            return made
        for point in entry_points(group=self.builtins):
            if point.name == spec:
                return self.register(spec)(load(point.load, f"{self.kind} {spec!r} ({point.value})"))
        example = _EXAMPLES.get(self.kind, "mine:name")
        module = spec.removesuffix(".py")
        if module.isidentifier() and os.path.isfile(f"{module}.py"):
            member = example.partition(":")[2]
            raise LookupError(
                f"no {self.kind} {spec!r}; for what {module}.py defines write its name too, as in {module}:{member}"
            )
        if self.kind == "task" and spec.endswith((".jsonl", ".json", ".parquet")):
            raise LookupError(f"no task {spec!r}; for a file name the task jsonl, and the file as its data")
        raise LookupError(
            f"no {self.kind} {spec!r}; {did_you_mean(spec, self.names())} (or module:attribute, such as {example})"
        )

    def summary(self, name: str) -> str:
        text = inspect.getdoc(self.get(name)) or ""
        return text.split("\n")[0].strip()

    def options(self, spec: str) -> dict[str, inspect.Parameter]:
        return _options(self.get(spec))

    def typed_options(self, spec: str) -> dict[str, tuple[Any, Any]]:
        """Return (type, default) of a maker's options by name; Parameter.empty for a required one."""
        made = self.get(spec)
        hints = _hints_of(made)
        return {name: (hints.get(name, str), p.default) for name, p in _options(made).items()}

    def check_options(self, spec: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return `options` with strings converted to the annotated types. Raises LookupError or ValueError."""
        made = self.get(spec)
        known = _options(made)
        checked = _convert_options(made, options, f"{self.kind} {spec!r}")
        lacking = [name for name, p in known.items() if p.default is p.empty and name not in checked]
        if lacking:
            raise ValueError(f"{self.kind} {spec!r} needs {' and '.join(map(_how_to_give, lacking))}")
        return checked

    def _lazy_modules(self) -> dict[str, str]:
        """Return the module that registers each built-in name."""
        names = getattr(importlib.import_module(self.builtins), "BUILT_IN", ())
        places = names if isinstance(names, Mapping) else {name: name for name in names}
        return {name: f"{self.builtins}.{place}" for name, place in places.items()}

    def _built_in(self, name: str) -> Callable[..., Any] | None:
        if module := self._lazy_modules().get(name):
            importlib.import_module(module)
            return self._entries[name]
        return None

    def has_member(self, spec: str) -> bool:
        """Return whether `spec` is "name:member" of a maker with members. The member need not exist."""
        name, colon, _ = spec.partition(":")
        if colon and name not in self._entries:
            self._built_in(name)
        return bool(colon and self._members.get(name))

    def _bind_member(self, spec: str) -> Callable[..., Any]:
        name, _, value = spec.partition(":")
        return _with_option(self._entries[name], self._members[name], value)

    def _import(self, spec: str) -> Callable[..., Any]:
        module_name, _, attribute = spec.partition(":")
        if module_name.endswith(".py") or not all(part.isidentifier() for part in module_name.split(".")):
            raise LookupError(
                f"{self.kind} {spec!r}: {module_name!r} is no module's name; expected module:attribute, as in "
                "mine:check for check in mine.py of this folder"
            )
        module = load(functools.partial(importlib.import_module, module_name), f"{self.kind} {spec!r}")
        try:
            made = functools.reduce(getattr, attribute.split("."), module)
        except AttributeError as error:
            known = [name for name in vars(module) if not name.startswith("_")]
            raise LookupError(
                f"{self.kind} {spec!r}: {module_name} has no {attribute!r}; {did_you_mean(attribute, known)}"
            ) from error
        if not callable(made):
            raise LookupError(f"{self.kind} {spec!r} is {kind_of(made)}; expected a function or a class")
        return typing.cast(Callable[..., Any], made)


def _with_option(made: Callable[..., Any], option: str, value: str) -> Callable[..., Any]:
    """Return the maker with one option set; the others stay options."""

    @functools.wraps(made)
    def with_value(**options: Any) -> Any:
        return made(**{option: value}, **options)

    signature = inspect.signature(made)
    left = [p for name, p in signature.parameters.items() if name != option]
    with_value.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    return with_value


def _replaces(made: Callable[..., Any], held: Callable[..., Any]) -> bool:
    """Return whether `made` is `held` defined again: the same name in the same module or file.

    In a notebook or at a prompt, where each cell is another file, the last definition counts.
    """
    one, other = inspect.unwrap(made), inspect.unwrap(held)
    modules = {getattr(one, "__module__", None), getattr(other, "__module__", None)}
    if modules == {"__main__"} and not os.path.isfile(getattr(sys.modules["__main__"], "__file__", "")):
        return True
    same_name = getattr(one, "__qualname__", repr(one)) == getattr(other, "__qualname__", repr(other))
    return same_name and (len(modules) == 1 or _file(one) == _file(other) is not None)


def _file(made: Callable[..., Any]) -> str | None:
    try:
        return inspect.getfile(made)
    except (TypeError, OSError):
        return None


def _where(made: Callable[..., Any]) -> str:
    return f"{getattr(made, '__module__', '?')}.{getattr(made, '__qualname__', repr(made))}"


def with_options(held: Any, options: Mapping[str, str], whose: str) -> Any:
    """Return a pack's verifier or environment with other values of some options.

    held: a function, a partial one, an instance of a dataclass, or another one of `make_verifier`. whose: its name in
    messages. Raises LookupError or ValueError as `check_options`, and if it has no options that could be changed.
    """
    made = _maker(held)
    if not _options(made):
        raise LookupError(f"{whose} has no options; name another one")
    changes = _convert_options(made, options, whose)
    if dataclasses.is_dataclass(held):
        return dataclasses.replace(held, **changes)  # type: ignore[type-var]
    if not inspect.isclass(made):
        bound = held.keywords if isinstance(held, functools.partial) else {}
        return functools.partial(made, **{**bound, **changes})
    if not hasattr(held, MADE_WITH):
        raise LookupError(f"{whose} was not made by its name, so that its options cannot be changed; name it")
    return _make_instance(made, {**getattr(held, MADE_WITH), **changes})


def has_option(held: Any, name: str) -> bool:
    """Return whether `with_options` can change an option of this name."""
    return name.replace("-", "_") in _options(_maker(held))


def _maker(held: Any) -> Any:
    """Return the class or function that an object was made with."""
    if isinstance(held, functools.partial):
        return held.func
    return held if inspect.isroutine(held) else type(held)


def _make_instance(kind: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Return an instance that remembers its options, as a dataclass does anyway."""
    instance = kind(**options)
    if not dataclasses.is_dataclass(instance):
        with contextlib.suppress(AttributeError):  # of __slots__
            setattr(instance, MADE_WITH, dict(options))
    return instance


def _hints_of(made: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a maker's options; those of a dataclass are read where each of its bases is defined."""
    if inspect.isclass(made) and not dataclasses.is_dataclass(made):
        return typing.get_type_hints(made.__init__)
    return typing.get_type_hints(made)


def _convert_options(made: Callable[..., Any], options: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Return options by name with strings converted to the annotated types."""
    known = _options(made)
    hints = _hints_of(made) if options else {}
    found = {}
    for name, value in options.items():
        key = name.replace("-", "_")
        if key not in known:
            raise LookupError(f"{whose} has no option {name!r}; {did_you_mean(key, known)}")
        found[key] = convert(value, hints.get(key, str), f"{whose}, option {name}")
        if key.startswith("num_") and isinstance(found[key], int) and found[key] < 0:
            raise ValueError(f"{whose}, option {name}: {found[key]}; expected a number of at least 0")
    return found


def _takes(made: Callable[..., Any], *positional: str) -> bool:
    """Return whether `made` can be called with these arguments and its options. True without a signature."""
    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):
        return True
    options = [name for name, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    try:
        signature.bind(*positional, **dict.fromkeys(options))
    except TypeError:
        return False
    return True


def _options(made: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    try:
        parameters = inspect.signature(made).parameters
    except ValueError:  # a few functions of C have none
        return {}
    return {name: p for name, p in parameters.items() if p.kind is keyword_only}


def _how_to_give(option: str) -> str:
    if option == "data":
        return "data: a file or a folder (train: --run.data PATH; eval, profile, audit: --data PATH)"
    return f"the option {option} ({option}=VALUE)"


VERIFIERS = Registry("verifier", "rlvr.verifiers")
TASKS = Registry("task", "rlvr.tasks")
ENVIRONMENTS = Registry("environment", "rlvr.environments")
register_task = TASKS.register
register_environment = ENVIRONMENTS.register


def register(name: str, *, isolate: bool | None = None) -> Callable[[T], T]:
    """Decorator: give a verifier a name (see Registry.register).

    A verifier runs in worker processes, which are killed when a completion takes too long. With `isolate=False` it runs
    in the caller's process: faster, and calls share state, but nothing stops it when it hangs. The value is stored as
    the attribute `isolate`.
    """
    add = VERIFIERS.register(name)

    def declare(made: T) -> T:
        if isolate is not None:
            made.isolate = isolate  # type: ignore[attr-defined]
        return add(made)

    return declare


def make_verifier(spec: str, **options: Any) -> Any:
    """Make the verifier that `spec` names: an instance of a class, or a functools.partial of a function."""
    made = VERIFIERS.get(spec)
    checked = VERIFIERS.check_options(spec, options)
    if not inspect.isclass(made) and not _takes(made, "problem", "completion"):
        raise LookupError(
            f"verifier {spec!r} has the parameters {inspect.signature(made)}; expected (problem, completion), of which "
            "it judges one completion at a time"
        )
    if inspect.isclass(made):
        return _call_maker(lambda: _make_instance(made, checked), f"verifier {spec!r}")
    return functools.partial(made, **checked) if checked else made


def make_task(spec: str, **options: Any) -> Any:
    """Make the task pack that `spec` names. Raises LookupError if the result is not a Task."""
    made = TASKS.get(spec)
    checked = TASKS.check_options(spec, options)
    if not _takes(made):
        raise LookupError(f"task {spec!r} has parameters that are no options; expected keyword-only ones (after a *)")
    task = _call_maker(lambda: made(**checked), f"task {spec!r}")
    if not isinstance(task, Task):
        raise LookupError(f"task {spec!r} gave {kind_of(task)}; expected a function that returns a Task")
    return task


def make_environment(spec: str, **options: Any) -> Any:
    """Make the environment that `spec` names: an instance of a class, or a functools.partial of a generator function.

    Raises LookupError for what cannot be called with (problem, rng).
    """
    made = ENVIRONMENTS.get(spec)
    checked = ENVIRONMENTS.check_options(spec, options)
    environment = functools.partial(made, **checked) if checked else made
    if inspect.isclass(made):
        environment = _call_maker(lambda: _make_instance(made, checked), f"environment {spec!r}")
    if not callable(environment) or not _takes(environment, "problem", "rng"):
        raise LookupError(f"environment {spec!r} cannot be called with (problem, rng); expected these parameters")
    return environment
