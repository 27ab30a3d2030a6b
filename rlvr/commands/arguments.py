"""Read a command line into a dataclass, say in one line what is wrong with it, and print its help.

A field is a flag: `--name`, in a group of settings `--group.name`. Also:

| written | is |
|---|---|
| `--algo.kl_coef 0.1`, `--algo.kl-coef=0.1` | the same flag |
| `--eval.k 1 8` | a list: all words up to the next flag |
| `--run.task-option a=1 b=2` | options, each key=value; the flag may be repeated |
| `--run.overwrite`, `--run.overwrite true` | a switch that is turned on |
| `--run.no-overwrite`, `--no-run.overwrite`, `--run.overwrite=false` | a switch that is turned off |
| `--verifier-option a=1 -- FILE` | after `--` there are no flags |
| `--algo ppo`, `--sampler vllm`, `--monitor math` | a selector, read first: which settings there are depends on it |

Which flags exist depends on the values (`Flags`): each group has the settings of its class.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import re
import shutil
import textwrap
import types
import typing
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from rlvr.algo.algorithms import ALGORITHMS
from rlvr.config import SAMPLERS, CriticConfig, MonitorConfig, TeacherConfig
from rlvr.config.settings import (
    Group,
    Setting,
    Used,
    carry,
    check_classes,
    check_fields,
    check_values,
    help_texts,
    settings_of,
)
from rlvr.core.files.tables import read_sections
from rlvr.core.printable import describe_type
from rlvr.core.registry import did_you_mean

T = TypeVar("T")
Values = dict[str, Any]  # of a dataclass's fields, by name
Variants = Mapping[str, Mapping[str, Any]]  # by a selector's word: groups, by name
LeftOut = Mapping[str, Collection[str]]  # settings that a command does not read, by group

POSITIONAL = "positional"
Positional = Annotated[T, POSITIONAL]  # the type of a field that is an argument without a flag
HELP = {"-h", "--help", "--help-all"}
SWITCHES = {"true": True, "false": False}  # what may follow a boolean flag
MOST_SUGGESTIONS = 3  # flags that an error suggests
# Groups that are suggested last where several have a setting of the same name.
LATER_GROUPS = ("eval", "sft", "critic", "teacher", "monitor", "sampler")
# What other trainers call a setting.
NAMES_ELSEWHERE = dict(map(str.split, read_sections(Path(__file__).with_name("elsewhere.txt"))["settings"]))


def parse(
    kind: type[T],
    argv: Sequence[str],
    *,
    prog: str,
    description: str = "",
    default: T | None = None,
    variants: Variants | None = None,
) -> T:
    """Return a dataclass filled from the command line.

    ValueError with one line for a flag that does not exist or does not fit, for a value outside its bounds, and for a
    setting that nothing would read. `--help` and `--help-all` print and exit. variants: groups that a selector's word
    brings (`VARIANTS` of a recipe).
    """
    if default is not None:
        check_classes(default)
    before = values_of(kind, default)
    values, left = choose_classes(before, argv, variants, not_read_by(kind))
    flags = Flags(kind, values)
    if asked := HELP & set(left):
        with contextlib.suppress(ValueError):  # help comes also where a flag is missing or does not fit
            filled = flags.fill(flags.read([token for token in left if token not in HELP]))
            flags = Flags(kind, values_of(kind, filled))
        print("\n".join(describe_flags(flags, prog, description, everything="--help-all" in asked)))
        raise SystemExit(0)
    check_kl_place(before, values, left)
    try:
        config: T = flags.fill(flags.read(left))
        check_fields(config, "--")
    except ValueError as error:
        raise ValueError(f"{prog}: {error}") from None
    check_values(config)
    check_effect(config, values)
    return config


# Which flags there are


@dataclass(frozen=True)
class Flag:
    """A flag that exists: its group ("" for none), its setting, and whether it is the group's selector."""

    group: str
    setting: Setting
    selects: bool = False

    @property
    def name(self) -> str:
        """Return the name without the two dashes."""
        name = self.setting.name.replace("_", "-")
        return self.group if self.selects else f"{self.group}.{name}" if self.group else name

    @property
    def positional(self) -> bool:
        return POSITIONAL in self.setting.marks

    @property
    def label(self) -> str:
        """Return how messages name it: `--run.steps`, or `TASK` without a flag."""
        return self.name.upper() if self.positional else f"--{self.name}"

    @property
    def hint(self) -> Any:
        """Return the type; of a selector the words that it knows."""
        words = tuple(SELECTORS[self.group].words) if self.selects else ()
        return Literal[words] if words else self.setting.hint

    @property
    def switches(self) -> bool:
        return self.hint in (bool, bool | None)

    @property
    def takes(self) -> float:
        if typing.get_origin(self.hint) is not tuple:
            return 1
        kinds = typing.get_args(self.hint)
        return float("inf") if Ellipsis in kinds else len(kinds)

    def value(self, words: Sequence[str]) -> Any:
        """Return words of the command line as a value of the flag's type."""
        if not words and self.takes == 1:
            raise ValueError(f"{self.label} needs a value: {describe_type(self.hint)}")
        try:
            return convert(words, self.hint)
        except (ValueError, LookupError):
            given = " ".join(word or repr(word) for word in words)
            raise ValueError(f"{self.label} {given}: expected {describe_type(self.hint)}") from None


def convert(words: Sequence[str], hint: Any) -> Any:
    """Return words as a value of a type. Raises ValueError or LookupError if they are not one."""
    origin, kinds = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        kinds = kinds[:1] * len(words) if Ellipsis in kinds else kinds
        return tuple(convert([word], kind) for word, kind in zip(words, kinds, strict=True))
    (word,) = words
    if origin is Literal:
        return {str(kind): kind for kind in kinds}[word]
    if origin not in (typing.Union, types.UnionType):
        return hint(word)
    if word == "None" and type(None) in kinds:
        return None
    for kind in kinds[:-1]:
        with contextlib.suppress(ValueError, LookupError):
            return convert(words, kind)
    return convert(words, next(kind for kind in reversed(kinds) if kind is not type(None)))


def values_of(kind: Any, default: Any = None) -> Values:
    """Return the values that a dataclass's fields have before the command line: an instance's, else the defaults."""
    if default is not None:
        return {field.name: getattr(default, field.name) for field in dataclasses.fields(kind)}
    given: Values = {}
    for field in dataclasses.fields(kind):
        if field.default is not MISSING:
            given[field.name] = field.default
        elif field.default_factory is not MISSING:
            given[field.name] = field.default_factory()
    return given


class Flags:
    """The flags of a dataclass whose fields have these values (those that must be given have none)."""

    def __init__(self, kind: Any, values: Values) -> None:
        self.kind, self.values = kind, values
        self.all = {flag.name: flag for flag in self._list()}
        self.known = {name: flag for name, flag in self.all.items() if not flag.positional}
        self.required = {name for name, f in self.all.items() if not f.group and f.setting.name not in values}

    def _list(self) -> Iterator[Flag]:
        own = {setting.name: setting for setting in settings_of(self.kind)}
        for name in own:
            value = self.values.get(name)
            if isinstance(value, Group):
                selector = SELECTORS.get(name)
                for setting in settings_of(type(value)):
                    if setting.name not in not_read_by(self.kind).get(name, ()):
                        yield Flag(name, setting, selector is not None and setting.name == selector.field)
            elif name in SELECTORS:
                yield Flag(name, Setting(SELECTORS[name].field, str | None), selects=True)
            elif name not in GROUPS_OF_ALGORITHMS:
                yield Flag("", own[name])

    def read(self, argv: Sequence[str]) -> dict[str, Any]:
        """Return what a command line gives, by the names of `all`.

        If a flag is given twice, the last one counts, so that a script may append flags to a command line. A list may
        not be given twice; options (key=value) add up.
        """
        given: dict[str, Any] = {}
        lists: dict[str, str] = {}
        extra: list[tuple[str, str]] = []  # words that no flag takes, each with the switch before it
        words, switch = deque(argv), ""
        while words:
            token = words.popleft()
            if token == "--":  # what follows are arguments without a flag
                extra += [(word, "") for word in words]
                break
            if not is_flag(token):
                extra.append((token, switch))
                switch = ""
                continue
            flag, on = self.find(token)
            taken = [token.partition("=")[2]] if "=" in token else []
            if flag.switches:
                given[flag.name], switch = on is read_switch(flag, token, taken, words), token
                continue
            switch, options = "", flag.setting.name.endswith("option")
            while words and len(taken) < flag.takes and words[0] != "--" and not is_flag(words[0]):
                if options and taken and "=" not in words[0]:
                    break
                taken.append(words.popleft())
            value, text = flag.value(taken), " ".join([token, *taken[int("=" in token) :]])
            if flag.takes > 1 and not options and lists.setdefault(flag.name, text) is not text:
                advice = f"give all its values after one: {flag.label} A B"
                raise ValueError(f"{flag.label} is given twice, {lists[flag.name]} and {text}; {advice}")
            given[flag.name] = (*given.get(flag.name, ()), *value) if options else value
        return given | self._place(deque(extra))

    def _place(self, words: deque[tuple[str, str]]) -> dict[str, Any]:
        given = {}
        for name, flag in self.all.items():
            if not flag.positional:
                continue
            if taken := [words.popleft()[0] for _ in range(int(min(len(words), flag.takes)))]:
                given[name] = flag.value(taken)
        for word, switch in words:
            follows = f"{switch} takes no value but true or false, and {word!r} follows it"
            raise ValueError(follows if switch else f"unexpected argument {word!r}")
        return given

    def find(self, token: str) -> tuple[Flag, bool]:
        """Return the flag that a token names, and False where it turns a switch off. ValueError for none."""
        name = flag_name(token)
        if name in self.known:
            return self.known[name], True
        group, _, leaf = name.rpartition(".")
        for positive in (f"{group}.{leaf.removeprefix('no-')}".lstrip("."), name.removeprefix("no-")):
            if positive in self.known and self.known[positive].switches:
                return self.known[positive], False
        group, _, leaf = name.partition(".")
        setting = leaf.removeprefix("no-").replace("-", "_") or (SELECTORS[group].field if group in SELECTORS else "")
        if setting in not_read_by(self.kind).get(group, ()):
            raise ValueError(f"--{name} would have no effect: this command does not read it")
        if group in self.values and (choice := find_choice(group, leaf)):
            raise ValueError(f"--{name} exists with {choice}")
        raise ValueError(f"no flag {token.partition('=')[0]}; {nearest(name, self.known, self.unread)}")

    def fill(self, given: Mapping[str, Any]) -> Any:
        """Return the dataclass with what is given. ValueError where something is missing that must be given."""
        if lacking := [self.all[name].label for name in self.required - given.keys()]:
            lacking.sort(key=lambda label: (label.startswith("--"), label))
            raise ValueError(f"{' and '.join(lacking)} must be given")
        values = dict(self.values)
        for name, value in given.items():
            flag = self.all[name]
            changed = {flag.setting.name: value}
            values |= {flag.group: dataclasses.replace(values[flag.group], **changed)} if flag.group else changed
        return self.kind(**values)

    @functools.cached_property
    def unread(self) -> dict[str, Used]:
        """The flags that nothing reads under the present values, each with the condition under which it is read."""
        if self.required:
            return {}
        config = self.fill({})
        found = {name: flag.setting.find_unmet(config) for name, flag in self.known.items()}
        return {name: used for name, used in found.items() if used is not None}

    def list_shown(self, *, everything: bool = False) -> list[Flag]:
        """Return the flags that `--help` shows: those that are read, without advanced ones. With `everything`: all."""
        flags = self.known.values()
        return [f for f in flags if everything or (f.name not in self.unread and not f.setting.advanced)]


GROUPS_OF_ALGORITHMS = ("critic", "teacher")  # groups that an algorithm brings


def read_switch(flag: Flag, token: str, taken: Sequence[str], words: deque[str]) -> bool:
    """Return what follows a switch: the value after its equals sign, or `true` or `false` as the next word."""
    if not taken and words and words[0].lower() in SWITCHES:
        return SWITCHES[words.popleft().lower()]
    if taken and taken[0].lower() not in SWITCHES:
        raise ValueError(f"{token}: expected {flag.label}, or {flag.label} false")
    return not taken or SWITCHES[taken[0].lower()]


def is_flag(token: str) -> bool:
    """Return whether a token of a command line is a flag: it begins with a dash and is not a negative number."""
    return token.startswith("-") and len(token) > 1 and not re.fullmatch(r"-(\d.*|\.\d.*|inf|nan)|--", token)


def flag_name(token: str) -> str:
    """Return the name of a flag without its dashes and value, `_` replaced by `-`."""
    return token.removeprefix("--").partition("=")[0].replace("_", "-")


# Selectors: flags that choose the class of a group


def choose_algo(values: Values, word: str) -> Values:
    """Return the values with the settings of another algorithm; those that both have are kept."""
    critic = (values["critic"] or CriticConfig()) if ALGORITHMS[word].critic else None
    teacher = (values["teacher"] or TeacherConfig()) if ALGORITHMS[word].teachers else None
    return values | {"algo": values["algo"].for_algorithm(word), "critic": critic, "teacher": teacher}


def choose_sampler(values: Values, word: str) -> Values:
    """Return the values with the settings of another sampler; those that both have are kept."""
    return values | {"sampler": carry(values["sampler"], SAMPLERS[word])}


def choose_monitor(values: Values, word: str) -> Values:
    """Return the values with a monitor of this verifier, or without one."""
    if word.lower() == "none":
        return values | {"monitor": None}
    own = {"verifier": word, "verifier_option": ()}
    return values | {"monitor": dataclasses.replace(values["monitor"] or MonitorConfig(word), **own)}


@dataclass(frozen=True)
class Selector:
    """A flag that chooses the class of a group: the group's field that holds the word, what a word does, the words."""

    field: str
    choose: Callable[[Values, str], Values]
    words: Collection[str] = ()


SELECTORS = {
    "algo": Selector("name", choose_algo, ALGORITHMS),
    "sampler": Selector("name", choose_sampler, SAMPLERS),
    "monitor": Selector("verifier", choose_monitor),
}


def take_option(flags: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """Return the value of an option (`--id X`, `--id=X`) and the other flags.

    Raises ValueError where it has no value, and where it is given twice.
    """
    values, rest, left = list[str](), list[str](), list(flags)
    while left:
        flag = left.pop(0)
        if flag == option:
            if not left or is_flag(left[0]):
                raise ValueError(f"{option}: expected a value")
            values.append(left.pop(0))
        elif flag.startswith(f"{option}="):
            values.append(flag.partition("=")[2])
        else:
            rest.append(flag)
    if len(values) > 1:
        raise ValueError(f"{option} is given twice, {option} {values[0]} and {option} {values[1]}; leave one out")
    return (values[0] if values else None), rest


def choose_classes(
    values: Values, argv: Sequence[str], variants: Variants | None = None, left_out: LeftOut = MappingProxyType({})
) -> tuple[Values, list[str]]:
    """Return the values under the selectors of a command line, and the flags that are left.

    A word that is not the recipe's own also brings what the recipe holds for it (`variants`). Selectors of groups that
    are left out are not read.
    """
    left = list(argv)
    for group, selector in SELECTORS.items():
        if group not in values or selector.field in left_out.get(group, ()):
            continue
        word, left = take_option(left, f"--{group}")
        if word is None or word == getattr(values[group], selector.field, None):
            continue
        if selector.words and word not in selector.words:
            advice = did_you_mean(word.lower(), selector.words)
            listed = "" if advice.startswith("known") else f" (one of {', '.join(selector.words)})"
            raise ValueError(f"--{group} {word!r}; {advice}{listed}")
        values = selector.choose(values, word) | dict((variants or {}).get(word, {}))
    return values, left


def find_choice(group: str, leaf: str) -> str | None:
    """Return the selector with which a setting exists (`--sampler vllm`); None for one that none brings."""

    def has(kind: type) -> bool:
        return any(s.name.replace("_", "-") == leaf for s in settings_of(kind)) and leaf not in ("name", "verifier")

    if group == "monitor" and has(MonitorConfig):
        return "--monitor NAME"
    if group == "critic" and has(CriticConfig):
        return f"--algo {' or '.join(row.name for row in ALGORITHMS.values() if row.critic)}"
    if group == "teacher" and has(TeacherConfig):
        return f"--algo {' or '.join(row.name for row in ALGORITHMS.values() if row.teachers)}"
    engines = [word for word, kind in SAMPLERS.items() if group == "sampler" and has(kind)]
    return f"--sampler {' or '.join(engines)}" if engines else None


# What a command line cannot be


def not_read_by(kind: type) -> LeftOut:
    """Return the settings of shared groups that a command leaves out, by group: `NOT_READ` of its dataclass."""
    return getattr(kind, "NOT_READ", {})


def check_kl_place(before: Values, values: Values, argv: Sequence[str]) -> None:
    """Raise ValueError where another algorithm would move the recipe's KL term, and no flag says its weight there."""
    if "algo" not in values or "algo.kl-coef" in {flag_name(token) for token in argv if is_flag(token)}:
        return
    old, new = before["algo"], values["algo"]
    if new.kl_coef and new.kl_place != old.kl_place:
        raise ValueError(
            f"--algo {new.name}: the recipe's algo.kl_coef {old.kl_coef} is in the {old.kl_place}, and {new.name} has "
            f"its KL term in the {new.kl_place}; set --algo.kl-coef too (0: none)"
        )


def check_effect(config: Any, before: Values) -> None:
    """Raise ValueError for the first setting that the command line changed and that nothing reads.

    `before`: the values under its selectors, without its other flags. A recipe itself may hold settings of no effect.
    """
    flags = Flags(type(config), values_of(type(config), config))
    for name, used in flags.unread.items():
        setting, value = flags.known[name].setting, value_of(flags.values, flags.known[name])
        if value != value_of(before, flags.known[name]):
            name = f"{flags.known[name].group}.{setting.name}".lstrip(".")
            raise ValueError(f"{name} {value} would have no effect: it is read only {used.flags}; leave it out")


def value_of(values: Values, flag: Flag) -> Any:
    """Return the value of a flag's setting; None where its group does not exist."""
    return getattr(values[flag.group], flag.setting.name, None) if flag.group else values.get(flag.setting.name)


def nearest(name: str, known: Iterable[str], unread: Collection[str] = ()) -> str:
    """Return the end of an error message: the flags that an unknown one was probably meant to be."""
    names, name = list(known), name.strip("-").lower()
    if group := [flag for flag in names if flag.startswith(f"{name}.")]:
        return f"it is a group of flags: --{', --'.join(group)}"
    leaf, leaves = name.rpartition(".")[2], {flag: flag.rpartition(".")[2] for flag in names}

    def with_leaf(*wanted: str) -> list[str]:
        order = {word: place for place, word in enumerate(wanted)}
        found = [flag for flag in names if leaves[flag] in order]
        return sorted(found, key=lambda f: (order[leaves[f]], f != name, f.partition(".")[0] in LATER_GROUPS))

    found = (
        [flag for flag in with_leaf(leaf) if flag not in unread]
        or [flag for flag in names if flag == NAMES_ELSEWHERE.get(name)]
        or with_leaf(leaf)
        or difflib.get_close_matches(name, names, n=MOST_SUGGESTIONS, cutoff=0.75)
        or with_leaf(*difflib.get_close_matches(leaf, {*leaves.values()}, n=MOST_SUGGESTIONS, cutoff=0.7))
        or with_leaf(*sorted(other for other in leaves.values() if leaf and other.startswith(leaf)))
    )
    if not found:
        return "none is spelt like it, see --help"
    first, *others = (f"--{flag}" for flag in found[:MOST_SUGGESTIONS])
    return f"did you mean {first}?" + (f" (or {', '.join(others)})" if others else "")


# Help


def describe_flags(flags: Flags, prog: str, description: str, *, everything: bool = False) -> list[str]:
    """Return the lines of `--help`: the settings that are read, by group; with `everything` all settings."""
    width = min(shutil.get_terminal_size().columns, 120)
    wrap = functools.partial(textwrap.fill, width=width, break_on_hyphens=False, break_long_words=False)
    positional = [flag for flag in flags.all.values() if flag.positional]
    shown, unread = [*positional, *flags.list_shown(everything=everything)], flags.unread
    lines = [" ".join(["usage:", prog, *(flag.label for flag in positional), "[flags]"]), ""]
    lines += [inspect.cleandoc(description or flags.kind.__doc__ or ""), ""]
    for group in dict.fromkeys(flag.group for flag in shown):
        holder = flags.values.get(group)
        summary = " ".join((type(holder).__doc__ or "").split()) if isinstance(holder, Group) else ""
        lines.append(wrap(f"{group or 'arguments'}: {summary}".removesuffix(": ")))
        for flag in [flag for flag in shown if flag.group == group]:
            lines += describe_flag(flags, flag, wrap)
        brought: dict[str, list[str]] = {}
        for flag in flags.known.values():
            if flag.group == group and flag not in shown and not flag.setting.advanced:
                brought.setdefault(unread[flag.name].flags, []).append(flag.setting.name.replace("_", "-"))
        lines += [*(f"  {choice}: {', '.join(names)}" for choice, names in brought.items()), ""]
    if more := len(flags.all) - len(shown):
        lines.append(
            f"{more} settings are not shown, advanced ones and those that nothing reads: --help-all shows them too."
        )
    return lines


def describe_flag(flags: Flags, flag: Flag, wrap: Callable[..., str]) -> list[str]:
    """Return the lines of one flag: what it takes, its default, and its text."""
    holder = flags.values.get(flag.group)
    kind = type(holder) if isinstance(holder, Group) else MonitorConfig if flag.selects else flags.kind
    text = help_texts(kind).get(flag.setting.name, "")
    text += f" Only {flags.unread[flag.name].flags}." if flag.name in flags.unread else ""
    value = value_of(flags.values, flag)
    shown = " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
    group, dot, leaf = flag.name.rpartition(".")
    takes = f", --{group}{dot}no-{leaf}" if flag.switches else f" {describe_type(flag.hint)}"
    default = "" if flag.name in flags.required else f" (default: {shown})"
    return [f"  {flag.label}{takes}{default}", wrap(text, initial_indent=" " * 6, subsequent_indent=" " * 6)]
