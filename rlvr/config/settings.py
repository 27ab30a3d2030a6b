"""A group of settings: a frozen dataclass that checks itself, and what can be written beside a field.

`Annotated[type, ...]` of a field may hold a `Bound`, a `Used` (when the setting is read), `Words` (that a text may be,
from a table) and `ADVANCED` (shown by `--help-all` only). The text under the field is its help.
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

# Bounds of numeric settings, written beside the field: `lr: Annotated[float, LEARNING_RATE] = 1e-6`.
#
# Standard library only.

MOST = 10**9  # of anything that is counted; a larger number is a mistake


@dataclass(frozen=True)
class Bound:
    """Numbers from `least` to `most`, without `least` itself where it is `above`, and 0 with `or_zero`.

    NaN and infinities are in none.
    """

    least: float
    most: float
    above: bool = False
    or_zero: bool = False

    def holds(self, value: float) -> bool:
        """Return whether a number lies within."""
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
# Below, logits divided by it leave float32; above, every token is as likely as any other.
TEMPERATURE = Bound(0.001, 1000)
GREEDY_OR_TEMPERATURE = Bound(0.001, 1000, or_zero=True)
SEED = Bound(-(2**63), 2**63 - 1)  # the range that torch accepts


def check_bounds(settings: Mapping[str, Any], bounds: Mapping[str, Bound], prefix: str = "") -> None:
    """Raise ValueError for the first setting outside its bounds. None, where a setting may be that, has none."""
    for name, bound in bounds.items():
        message = why_out(f"{prefix}{name.replace('_', '-') if prefix else name}", settings[name], bound)
        if message:
            raise ValueError(message)


def why_out(name: str, value: Any, bound: Bound) -> str | None:
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


Rules = list[tuple[bool, str]]  # conditions, each with the line that says why it does not hold
ADVANCED = "advanced"


@dataclasses.dataclass(frozen=True)
class Used:
    """When a setting is read: `when(config)`, and the flags that make it so, in words ("with --x")."""

    when: Callable[[Any], bool]
    flags: str


@dataclasses.dataclass(frozen=True)
class Words:
    """The words that a setting may be: `listed()` reads them from a table, rows that were added later included."""

    listed: Callable[[], tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Setting:
    """A field of a dataclass: its name, its type without annotations, what is annotated, and the type as written."""

    name: str
    hint: Any
    raw: Any
    bound: Bound | None = None
    used: Used | None = None
    advanced: bool = False


class Group:
    """The base of all groups. `rules` are those that a bound cannot express; `at` precedes names in messages."""

    USES: ClassVar[Mapping[str, Used]] = {}  # when settings are read that the group shares with others, by name

    def rules(self, at: str) -> Rules:
        """Return the group's own rules."""
        return []

    def check(self, at: str = "") -> None:
        """Raise ValueError with one line for the first setting that cannot work."""
        self.check_values(at)
        require(self.rules(at))

    def check_values(self, at: str = "") -> None:
        """Raise ValueError for the first number outside its bounds, value of another type, or word that is unknown."""
        for setting in settings_of(self.__class__):
            name, value = at + spelt(setting.name, at), getattr(self, setting.name)
            if setting.bound is not None:
                message = why_out(name, value, setting.bound)
                require([(message is None, message or "")])
            require([(fits(value, setting.hint), f"{name} {value!r:.80}: expected {written(setting.hint)}")])
            if typing.get_origin(setting.hint) is typing.Literal:
                words = typing.get_args(setting.hint)
                require([(value in words, f"{name} {value!r}: expected one of {', '.join(map(str, words))}")])


def require(rules: Rules) -> None:
    """Raise ValueError for the first rule that does not hold."""
    for holds, message in rules:
        if not holds:
            raise ValueError(message)


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


def written(hint: Any) -> str:
    """Return a type as one writes it in Python."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def spelt(name: str, at: str) -> str:
    """Return a setting's name as the messages of its group write it: with dashes where it is a flag."""
    return name.replace("_", "-") if at.startswith("--") else name


def settings_of(kind: Any) -> tuple[Setting, ...]:
    """Return the settings of a dataclass: its own first, then those that it shares with others."""
    hints = typing.get_type_hints(kind, include_extras=True)
    own = inspect.get_annotations(kind)
    fields = sorted(dataclasses.fields(kind), key=lambda field: field.name not in own)
    uses = kind.USES if issubclass(kind, Group) else {}
    return tuple(described(field.name, hints[field.name], uses.get(field.name)) for field in fields)


def described(name: str, hint: Any, used: Used | None = None) -> Setting:
    """Return the setting that an annotated field declares; `used` unless it says so itself."""
    if typing.get_origin(hint) is not typing.Annotated:
        return Setting(name, hint, hint, used=used)
    bare, *marks = typing.get_args(hint)
    bound = next((mark for mark in marks if isinstance(mark, Bound)), None)
    used = next((mark for mark in marks if isinstance(mark, Used)), used)
    words = next((mark for mark in marks if isinstance(mark, Words)), None)
    if words is not None:
        bare = typing.Literal[words.listed()]
        hint = typing.Annotated[bare, *marks]
    return Setting(name, bare, hint, bound, used, ADVANCED in marks)


def check_groups(config: Any) -> None:
    """Raise ValueError for the first setting of any group that cannot work: classes first, then single values."""
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
            words = " or ".join(leaf for kind in kinds for leaf in leaves(kind))
            require(
                [(isinstance(value, tuple(kinds)), f"{name} is {value!r:.80}; expected {words}, with their settings")]
            )


def leaves(kind: type) -> list[str]:
    """Return the names of the classes to use for a class of settings: those at the ends of its subclasses."""
    if kind is type(None):
        return ["None"]
    subclasses: list[type] = kind.__subclasses__()
    return [leaf for subclass in subclasses for leaf in leaves(subclass)] or [kind.__name__]


def check_values(config: Any) -> None:
    """Raise ValueError for the first single value that cannot be, of any group."""
    for name, group in groups_of(config):
        group.check_values(f"{name}.")


def groups_of(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each group that a config has."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Group):
            yield field.name, value


def carry(group: Any, kind: type, **changes: Any) -> Any:
    """Return a group of another class with the settings that both have; `changes` replace some."""
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    shared = {f.name: getattr(group, f.name) for f in dataclasses.fields(group) if f.init and f.name in names}
    return kind(**(shared | changes))


def documented(kind: type) -> dict[str, str]:
    """Return the text under each field of a dataclass, those of its bases included, in one line each."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base) and base.__module__ != "builtins":
            texts |= texts_under_fields(base)
    return texts


@functools.cache
def texts_under_fields(kind: type) -> dict[str, str]:
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
