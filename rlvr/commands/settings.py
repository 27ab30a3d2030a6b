"""The settings that exist for a config under the choices made, as flags: what tyro parses, and what `--help` shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from rlvr.commands.choices import SELECTORS, Values, brought_by
from rlvr.commands.flags import check_renamed, flag_name, is_flag, is_positional
from rlvr.config import MonitorConfig
from rlvr.config.settings import Group, Setting, Used, documented, settings_of

MISSING = dataclasses.MISSING


def values_of(kind: type, default: Any = None) -> Values:
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


NotRead = Mapping[str, Collection[str]]  # names of settings, by group


@dataclasses.dataclass(frozen=True)
class Entry:
    """A flag that exists: its group ("" for none), its setting, and whether it is the group's selector."""

    group: str
    setting: Setting
    selects: bool = False

    @property
    def flag(self) -> str:
        """Return the name without the two dashes."""
        name = self.setting.name.replace("_", "-")
        return self.group if self.selects else f"{self.group}.{name}" if self.group else name

    @property
    def hint(self) -> Any:
        """Return the type; of a selector the words that it knows."""
        words = tuple(SELECTORS[self.group].words) if self.selects else ()
        return Literal[words] if words else self.setting.hint


class Settings:
    """The settings that exist for a config with these values, and the dataclass that tyro parses them into."""

    def __init__(self, kind: type, values: Values) -> None:
        self.kind, self.values = kind, values
        self.entries = list(self._entries())

    def _entries(self) -> Iterator[Entry]:
        left_out = not_read_by(self.kind)
        for name in self.values | {s.name: None for s in settings_of(self.kind)}:
            value = self.values.get(name)
            if isinstance(value, Group):
                selector = SELECTORS.get(name)
                for setting in settings_of(type(value)):
                    if setting.name not in left_out.get(name, ()):
                        yield Entry(name, setting, selector is not None and setting.name == selector.field)
            elif name in SELECTORS:
                yield Entry(name, Setting(SELECTORS[name].field, str | None, str | None), selects=True)
            elif name not in GROUPS_OF_ALGORITHMS:
                yield Entry("", next(s for s in settings_of(self.kind) if s.name == name))

    def flags(self) -> dict[str, Any]:
        """Return the type of each flag by its name without the dashes (`run.steps`)."""
        return {entry.flag: entry.hint for entry in self.entries if not is_positional(entry.setting.raw)}

    def config(self, parsed: Any = None) -> Any:
        """Return the config of the values, with what tyro parsed."""
        values = dict(self.values)
        for name, value in values.items() if parsed is not None else ():
            part = getattr(parsed, name, None)
            if isinstance(value, Group):
                given = {f.name: getattr(part, f.name, getattr(value, f.name)) for f in init_fields(value)}
                values[name] = type(value)(**given)
        if parsed is not None:
            values |= {e.setting.name: getattr(parsed, e.setting.name) for e in self.entries if not e.group}
        return self.kind(**values)

    def view(self, shown: Iterable[Entry] | None = None) -> tuple[type, Any]:
        """Return a dataclass for tyro with these flags (all unless given), and its default where one can be made."""
        entries = list(self.entries if shown is None else shown)
        fields: list[tuple[str, Any, Any]] = []
        for name in dict.fromkeys(entry.group or entry.setting.name for entry in entries):
            own = [entry for entry in entries if (entry.group or entry.setting.name) == name]
            value = self.values.get(name, MISSING)
            if isinstance(value, Group):
                made = self._group_view(name, value, own)
                fields.append((name, made, dataclasses.field(default=made())))
            else:
                fields.append((name, self.annotated(own[0]), dataclasses.field(default=value)))
        made = dataclasses.make_dataclass(self.kind.__name__, fields, frozen=True, kw_only=True)
        made.__doc__ = " "
        required = any(field.default is MISSING for field in dataclasses.fields(made))
        return made, None if required else made()

    def _group_view(self, name: str, group: Group, entries: Sequence[Entry]) -> type:
        fields = [
            (e.setting.name, self.annotated(e), dataclasses.field(default=getattr(group, e.setting.name)))
            for e in entries
        ]
        made = dataclasses.make_dataclass(type(group).__name__, fields, frozen=True)
        made.__doc__ = "\n\n".join([" ".join((type(group).__doc__ or "").split()), *self._with_lines(name, entries)])
        return made

    def _with_lines(self, name: str, entries: Sequence[Entry]) -> list[str]:
        """Return a line for each choice that brings settings which are not shown: the flags, and the names."""
        brought: dict[str, list[str]] = {}
        for entry in self.entries:
            if entry.group == name and entry not in entries and entry.setting.used and not entry.setting.advanced:
                brought.setdefault(entry.setting.used.flags, []).append(entry.setting.name.replace("_", "-"))
        return [f"{flags}: {', '.join(names)}" for flags, names in brought.items()]

    def annotated(self, entry: Entry) -> Any:
        """Return the type of a flag with its help, as tyro takes it."""
        import tyro

        value = self.values.get(entry.group)
        holder = type(value) if isinstance(value, Group) else MonitorConfig if entry.selects else self.kind
        text = documented(holder).get(entry.setting.name, "")
        used = entry.setting.used
        if used is not None and entry.flag in self.unread():
            text = f"{text} Only {used.flags}."
        if entry.selects:
            return Annotated[entry.hint, tyro.conf.arg(name=entry.group, prefix_name=False, help=text)]
        return Annotated[entry.setting.raw, tyro.conf.arg(help=text)]

    def unread(self) -> dict[str, Used]:
        """Return the settings that nothing reads under the present values, by flag, with what would."""
        if {field.name for field in init_fields(self.kind)} - self.values.keys():
            return {}  # as long as something is missing that must be given
        config = self.config()
        uses = {entry.flag: entry.setting.used for entry in self.entries}
        return {flag: used for flag, used in uses.items() if used is not None and not used.when(config)}

    def shown(self, *, everything: bool = False) -> list[Entry]:
        """Return the flags that `--help` shows: those that are read, without advanced ones. With `everything`: all."""
        unread = self.unread()
        return [e for e in self.entries if everything or (e.flag not in unread and not e.setting.advanced)]


GROUPS_OF_ALGORITHMS = ("critic",)  # groups that an algorithm brings


def init_fields(value: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields that a dataclass's constructor takes."""
    return [field for field in dataclasses.fields(value) if field.init]


def check_effect(config: Any, before: Values) -> None:
    """Raise ValueError for the first setting that the command line changed and that nothing reads.

    `before`: the values under its choices, without its other flags. A recipe itself may hold settings of no effect.
    """
    settings = Settings(type(config), values_of(type(config), config))
    unread = settings.unread()
    for entry in settings.entries:
        value = value_of(settings.values, entry)
        if entry.flag in unread and value != value_of(before, entry):
            name = f"{entry.group}.{entry.setting.name}".lstrip(".")
            raise ValueError(
                f"{name} {value} would have no effect: it is read only {unread[entry.flag].flags}; leave it out"
            )


def value_of(values: Values, entry: Entry) -> Any:
    """Return the value of a flag's setting."""
    if not entry.group:
        return values.get(entry.setting.name)
    group = values[entry.group]
    return None if group is None else getattr(group, entry.setting.name)


def check_earlier_names(argv: Sequence[str], settings: Settings, prog: str) -> None:
    """Raise ValueError for the first flag of an earlier version, with what it is called now."""
    selectors = [group for group in SELECTORS if group in settings.values]
    check_renamed(argv, [*settings.flags(), *selectors], prog, brought_by)


def not_read_by(kind: type) -> NotRead:
    """Return the settings of shared groups that a command leaves out: its dataclass's `NOT_READ`, where it has one."""
    return getattr(kind, "NOT_READ", {})


def check_not_read(kind: type, argv: Sequence[str], prog: str) -> None:
    """Raise ValueError for the first flag that is a setting of other commands and that this one does not read."""
    left_out = not_read_by(kind)
    for token in argv:
        group, _, leaf = flag_name(token).partition(".") if is_flag(token) else ("", "", "")
        name = leaf.removeprefix("no-").replace("-", "_")
        if group in left_out and (name or SELECTORS[group].field) in left_out[group]:
            raise ValueError(f"{prog}: --{flag_name(token)} would have no effect: this command does not read it")


def check_absent(argv: Sequence[str], settings: Settings, prog: str) -> None:
    """Raise ValueError for the first flag that only another choice of algorithm, sampler or monitor brings."""
    known = settings.flags()
    for token in argv:
        name = flag_name(token) if is_flag(token) else ""
        if name in known or name.partition(".")[0] not in settings.values:
            continue
        if choice := brought_by(name):
            raise ValueError(f"{prog}: --{name} exists with {choice}")
