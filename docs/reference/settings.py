"""Settings: a page for each group of `Config`, and one each for reward models and pipelines."""

from __future__ import annotations

import functools
import typing
from dataclasses import MISSING, fields
from typing import Any

from rlvr.config import SAMPLERS, Config
from rlvr.config.pipeline import PipelineConfig
from rlvr.config.reward_model import RewardConfig
from rlvr.config.settings import RESUMABLE, Group, Setting, help_texts, settings_of
from rlvr.core.printable import describe_type
from rlvr.core.registry import did_you_mean

from .markdown import first_line, page, plain, table

INTRODUCTION = """
Every setting of a run is a field of a dataclass: `steps` of `rlvr.config.RunConfig` is `--run.steps` on the command
line, and `RunConfig(steps=...)` in a recipe. `rlvr train RECIPE --help` shows those that a recipe reads, with its
values; `--help-all` shows all. A flag that would have no effect is refused.

Three flags choose the class of a group, and are read first: `--algo NAME`, `--sampler NAME`, `--monitor VERIFIER`.

What stands under a setting:

| mark | says |
|---|---|
| default | that of the class; recipes have their own |
| read | when the setting acts: always, or only with another setting |
| resume | a resumed run may have another value; all other settings must stay as they were |
| advanced | only `--help-all` shows it |
"""


@functools.cache
def groups() -> dict[str, tuple[type, ...]]:
    """Return the classes of each group of a run, by its name."""
    found: dict[str, tuple[type, ...]] = {}
    for name, hint in typing.get_type_hints(Config).items():
        kinds = [
            kind for kind in typing.get_args(hint) or (hint,) if isinstance(kind, type) and issubclass(kind, Group)
        ]
        found[name] = tuple(kinds)
    return found | {"sampler": tuple(SAMPLERS.values())}


@functools.cache
def places() -> dict[str, str]:
    """Return the page of each setting, by its name on the command line; a run's before a reward model's."""
    found = {}
    for name, kinds in reward_groups().items():
        found |= {flag(name, setting): "reference/settings/rm.md" for kind in kinds for setting in settings_of(kind)}
    for name, kinds in groups().items():
        found |= {flag(name, s): f"reference/settings/{name}.md" for kind in kinds for s in settings_of(kind)}
    return found


def page_of_setting(name: str, where: str) -> str:
    """Return the page of a setting: `run.steps`. Raises LookupError for one that does not exist, named in `where`."""
    if name not in places():
        raise LookupError(f"docs/{where}: no setting --{name}; {did_you_mean(name, places())}")
    return places()[name]


def reward_groups() -> dict[str, tuple[type, ...]]:
    """Return the groups of `rlvr rm` by name."""
    return {name: (kind,) for name, kind in typing.get_type_hints(RewardConfig).items()}


def flag(group: str, setting: Setting) -> str:
    """Return a setting's name on the command line, without dashes."""
    name = setting.name.replace("_", "-")
    return f"{group}.{name}" if group else name


def pages() -> dict[str, str]:
    """Return a page for each group."""
    found = {}
    rows = []
    for name, kinds in groups().items():
        found[f"settings/{name}.md"] = group_page(name, kinds)
        rows.append([f"[{name}]({name}.md)", first_line(kinds[0]), str(len(all_settings(kinds)))])
    found["settings/rm.md"] = reward_page()
    found["settings/pipeline.md"] = page(
        "Settings of a pipeline",
        first_line(PipelineConfig),
        *(describe("", s, (PipelineConfig,)) for s in settings_of(PipelineConfig)),
    )
    rows += [
        ["[rlvr rm](rm.md)", first_line(RewardConfig), ""],
        ["[rlvr pipeline](pipeline.md)", first_line(PipelineConfig), ""],
    ]
    found["settings/index.md"] = page("Settings", INTRODUCTION, table(["group", "what it holds", "settings"], rows))
    return found


def all_settings(kinds: tuple[type, ...]) -> dict[str, Setting]:
    """Return the settings of several classes by name, those of the first one first."""
    return {setting.name: setting for kind in reversed(kinds) for setting in settings_of(kind)}


def group_page(name: str, kinds: tuple[type, ...]) -> str:
    """Return the page of a group of a run."""
    settings = all_settings(kinds)
    classes = ", ".join(f"`rlvr.config.{kind.__name__}`" for kind in kinds)
    return page(
        f"Settings: {name}",
        plain(first_line(kinds[0])),
        f"In a recipe: {classes}.",
        *(describe(name, setting, kinds) for setting in settings.values()),
    )


def reward_page() -> str:
    """Return the page of `rlvr rm`."""
    parts = []
    for name, kinds in reward_groups().items():
        parts += [f"## {name}", plain(first_line(kinds[0]))]
        own = {setting.name: setting for setting in settings_of(kinds[0])}
        parts += [describe(name, s, kinds, anchor=places()[flag(name, s)].endswith("rm.md")) for s in own.values()]
    return page("Settings of a reward model", first_line(RewardConfig), *parts)


def describe(group: str, setting: Setting, kinds: tuple[type, ...], *, anchor: bool = True) -> str:
    """Return a setting as a section: its type, default and bound, when it is read, its text."""
    having = [kind for kind in kinds if setting.name in {field.name for field in fields(kind)}]
    name = flag(group, setting)
    facts = [describe_type(setting.hint), f"default `{default_of(having[0], setting.name)}`"]
    facts += [str(setting.bound)] if setting.bound else []
    facts += ["read " + " and ".join(used.flags for used in setting.uses)] if setting.uses else []
    facts += (
        [f"only of {', '.join(word for word, kind in SAMPLERS.items() if kind in having)}"]
        if len(having) < len(kinds)
        else []
    )
    facts += ["resume"] if RESUMABLE in setting.marks or getattr(having[0], "MAY_CHANGE", False) else []
    facts += ["advanced"] if setting.advanced else []
    text = help_texts(having[0]).get(setting.name, "")
    mark = f" {{ #{name} }}" if anchor else ""
    return f"### --{name}{mark}\n\n*{plain('; '.join(facts[:1]))}*; {'; '.join(facts[1:])}\n\n{plain(text)}"


def default_of(kind: type, name: str) -> str:
    """Return a field's default in words."""
    (field,) = (field for field in fields(kind) if field.name == name)
    value: Any = field.default
    if value is MISSING:
        value = None if field.default_factory is MISSING else field.default_factory()
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
