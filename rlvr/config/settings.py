"""How a setting is declared: a field of a frozen dataclass, with everything about it beside the field.

    min_lr_ratio: Annotated[float, SHARE, ADVANCED, WITH_DECAY] = 0.1

The text under the field is its `--help`. The marks within `Annotated[type, ...]`, in any order:

| mark | says |
|---|---|
| a `Bound` | which numbers are allowed |
| `ADVANCED` | only `--help-all` shows it |
| a `Used` (several: all must hold) | when the setting is read; otherwise the command line refuses to change it |
| a function from the setting's name to a `Used` | the same, for a mark that many settings share |
| `Words` | the words that a text may be, read from a table |
| `RESUMABLE` | a resumed run may have another value (below) |

A setting is RESUMABLE where it changes nothing that a step computes, up to rounding and to verdicts that a time limit
cuts off: where results are written, when they are saved, speed and memory, limits that end a run, what is measured and
shown. (One exception: where optim.schedule decays and optim.decay_steps is 0, the learning rate of the steps to come
depends on run.steps.)

Standard library only.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

MOST = 10**9  # of anything that is counted; a larger number is a mistake
ADVANCED = "advanced"
RESUMABLE = "resumable"
Rules = list[tuple[bool, str]]  # conditions, each with the line that says why it does not hold


@dataclass(frozen=True)
class Bound:
    """Finite numbers from `least` to `most`. above: `least` itself is not allowed. or_zero: 0 is allowed too."""

    least: float
    most: float
    above: bool = False
    or_zero: bool = False

    def holds(self, value: float) -> bool:
        if self.or_zero and value == 0:
            return True
        return (value > self.least if self.above else value >= self.least) and value <= self.most

    def __str__(self) -> str:
        least = f"above {self.least:,} and up to" if self.above else f"from {self.least:,} to"
        return f"{'0 or ' if self.or_zero else ''}{least} {self.most:,}"


COUNT = Bound(1, MOST)
COUNT_OR_NONE = Bound(0, MOST)
TWO_OR_MORE = Bound(2, MOST)
SHARE = Bound(0, 1)
POSITIVE_SHARE = Bound(0, 1, above=True)
POSITIVE = Bound(0, MOST, above=True)
WEIGHT = Bound(0, MOST)
SCORE = Bound(-MOST, MOST)
CORRELATION = Bound(-1, 1)
LEARNING_RATE = Bound(0, 1)
ADAM_DECAY = Bound(0, 1 - 1e-9)  # AdamW divides by 1 - beta
SECONDS = Bound(0, 10**6, above=True)  # threading accepts no more than some centuries
WORKERS = Bound(1, 1024)
WORKERS_OR_CORES = Bound(0, 1024)
# Below, logits divided by it leave float32; above, every token is as likely as any other.
TEMPERATURE = Bound(0.001, 1000)
GREEDY_OR_TEMPERATURE = Bound(0.001, 1000, or_zero=True)
SEED = Bound(-(2**63), 2**63 - 1)  # the range that torch accepts


@dataclass(frozen=True)
class Used:
    """A condition under which a setting is read. flags: what makes it true, in words ("with --x")."""

    when: Callable[[Any], bool]
    flags: str


@dataclass(frozen=True)
class Words:
    """The words that a text may be. `list_words` reads a table, so that rows that are added later count."""

    list_words: Callable[[], tuple[str, ...]]


@dataclass(frozen=True)
class Setting:
    """A field of a dataclass: its name, its bare type, and its marks."""

    name: str
    hint: Any
    bound: Bound | None = None
    uses: tuple[Used, ...] = ()
    advanced: bool = False
    marks: tuple[Any, ...] = ()

    def find_unmet(self, config: Any) -> Used | None:
        """Return the first condition that does not hold, so that nothing reads the setting; None if all hold."""
        return next((used for used in self.uses if not used.when(config)), None)


class Group:
    """The base of all groups of settings."""

    USES: ClassVar[Mapping[str, Used]] = {}  # conditions of settings that a base class declares, by name
    MAY_CHANGE: ClassVar[bool] = False  # whether all settings of the group are RESUMABLE

    def rules(self, at: str) -> Rules:
        """Return checks across fields. at: prefix for names in messages."""
        return []

    def check(self, at: str = "") -> None:
        """Raise ValueError with one line for the first setting that cannot work."""
        check_fields(self, at)
        require(self.rules(at))


def require(rules: Rules) -> None:
    for holds, message in rules:
        if not holds:
            raise ValueError(message)


def check_groups(config: Any) -> None:
    """Raise ValueError for the first setting of any group that cannot work: classes first, then values, then rules."""
    check_classes(config)
    check_values(config)
    for name, group in groups_of(config):
        require(group.rules(f"{name}."))


def check_classes(config: Any) -> None:
    """Raise ValueError for the first group that is not an instance of a class for it."""
    for name, hint in typing.get_type_hints(type(config)).items():
        kinds = [kind for kind in typing.get_args(hint) or (hint,) if isinstance(kind, type)]
        if any(issubclass(kind, Group) for kind in kinds):
            value = getattr(config, name)
            words = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            require(
                [(isinstance(value, tuple(kinds)), f"{name} is {value!r:.80}; expected {words}, with their settings")]
            )


def check_values(config: Any) -> None:
    """Raise ValueError for the first value of any group that its field does not allow."""
    for name, group in groups_of(config):
        check_fields(group, f"{name}.")


def check_fields(holder: Any, at: str = "") -> None:
    """Raise ValueError for the first number outside its bounds, value of another type, or word that is unknown."""
    for setting in settings_of(type(holder)):
        name, value = at + spell(setting.name, at), getattr(holder, setting.name)
        if setting.bound is not None:
            message = explain_bound(name, value, setting.bound)
            require([(message is None, message or "")])
        hint = setting.hint
        written = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
        require([(fits(value, hint), f"{name} {value!r:.80}: expected {written}")])
        if typing.get_origin(setting.hint) is typing.Literal:
            words = typing.get_args(setting.hint)
            require([(value in words, f"{name} {value!r}: expected one of {', '.join(map(str, words))}")])


def explain_bound(name: str, value: Any, bound: Bound) -> str | None:
    """Return the line that says why a setting (a number, several, or None) does not fit; None where it does."""
    for number in value if isinstance(value, tuple | list) else [value]:
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            return f"{name} {number!r:.80}: expected a number"
        if isinstance(number, float) and not math.isfinite(number):
            return f"{name} {number}: expected a finite number {bound}"
        if not bound.holds(number):
            return f"{name} {number!r:.80}: expected a number {bound}"
    return None


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has a type. A list passes as a tuple, an int as a float; the words of Literal are not
    compared."""
    origin, kinds = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, kind) for kind in kinds)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        expected = kinds[:1] * len(value) if Ellipsis in kinds else kinds
        return len(value) == len(expected) and all(map(fits, value, expected))
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def spell(name: str, at: str) -> str:
    """Return a setting's name as the messages of its group write it: with dashes where it is a flag."""
    return name.replace("_", "-") if at.startswith("--") else name


def groups_of(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each group that a config has."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Group):
            yield field.name, value


def resumable_settings(config: Any) -> set[tuple[str, str]]:
    """Return the settings that may change where a run is resumed, by group and name."""
    return {
        (name, setting.name)
        for name, group in groups_of(config)
        for setting in settings_of(type(group))
        if group.MAY_CHANGE or RESUMABLE in setting.marks
    }


def settings_of(kind: Any) -> tuple[Setting, ...]:
    """Return the settings of a dataclass: its own first, then inherited ones."""
    hints = typing.get_type_hints(kind, include_extras=True)
    own = inspect.get_annotations(kind)
    fields = sorted(dataclasses.fields(kind), key=lambda field: field.name not in own)
    uses = kind.USES if issubclass(kind, Group) else {}
    return tuple(read_setting(field.name, hints[field.name], uses.get(field.name)) for field in fields)


def read_setting(name: str, hint: Any, used: Used | None = None) -> Setting:
    """Return the setting that an annotated field declares. used: when it is read, unless its own marks say so."""
    given = () if used is None else (used,)
    if typing.get_origin(hint) is not typing.Annotated:
        return Setting(name, hint, uses=given)
    bare, *marks = typing.get_args(hint)
    uses = tuple(mark if isinstance(mark, Used) else mark(name) for mark in marks if isinstance(mark, Used) or
                 inspect.isfunction(mark))  # fmt: skip
    words = next((mark for mark in marks if isinstance(mark, Words)), None)
    bound = next((mark for mark in marks if isinstance(mark, Bound)), None)
    bare = bare if words is None else typing.Literal[words.list_words()]
    return Setting(name, bare, bound, uses or given, ADVANCED in marks, tuple(marks))


def carry(group: Any, kind: type, **changes: Any) -> Any:
    """Return a group of another class with the settings that both have; `changes` replace some."""
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    shared = {f.name: getattr(group, f.name) for f in dataclasses.fields(group) if f.init and f.name in names}
    return kind(**(shared | changes))


def help_texts(kind: type) -> dict[str, str]:
    """Return the text under each field of a dataclass, those of its bases included, in one line each."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base) and base.__module__ != "builtins":
            texts |= read_texts(base)
    return texts


@functools.cache
def read_texts(kind: type) -> dict[str, str]:
    """Return the texts under the fields that a class declares itself, read from its source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for statement, following in itertools.pairwise(definition.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            value = following.value if isinstance(following, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                texts[statement.target.id] = " ".join(value.value.split())
    return texts
