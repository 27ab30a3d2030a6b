"""`rlvr completion bash|zsh|tcsh`: a script that completes commands, recipes and flags, made by tyro."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from rlvr.algo.algorithms import ALGORITHMS
from rlvr.commands.arguments import parse
from rlvr.commands.list import recipe_command, recipe_files
from rlvr.commands.settings import Settings, value_of, values_of
from rlvr.commands.train import COMMAND_OF
from rlvr.config import SAMPLERS, Config, MonitorConfig, make_algo
from rlvr.config.pipeline import PipelineConfig
from rlvr.config.reward_model import RewardConfig
from rlvr.config.settings import settings_of

# The dataclass of a command's flags, where they do not depend on a recipe.
ARGUMENTS = {
    "audit": "rlvr.commands.audit:AuditArgs",
    "compare": "rlvr.commands.compare:CompareArgs",
    "doctor": "rlvr.commands.doctor:DoctorArgs",
    "eval": "rlvr.commands.eval:EvalArgs",
    "export": "rlvr.commands.export:ExportArgs",
    "grade": "rlvr.commands.grade:GradeArgs",
    "list": "rlvr.commands.list:ListArgs",
    "merge": "rlvr.commands.merge:MergeArgs",
    "profile": "rlvr.commands.profile:ProfileArgs",
    "push": "rlvr.commands.export:PushArgs",
    "regrade": "rlvr.commands.regrade.command:RegradeArgs",
    "report": "rlvr.commands.report.page:ReportArgs",
    "serve": "rlvr.commands.serve:ServeArgs",
    "watch": "rlvr.commands.watch.screen:WatchArgs",
}
WITH_RECIPE = ("train", "sft", "show-prompt", "verify-resume", "rm", "pipeline")
# Configs that together have every group and setting.
CHOICES = [
    *(Config(algo=make_algo(name), monitor=MonitorConfig("none")) for name in ALGORITHMS),
    *(Config(sampler=kind()) for kind in SAMPLERS.values()),
]


@dataclass(frozen=True)
class CompletionArgs:
    """Print a script that completes commands, recipes and flags in a shell, e.g. `rlvr completion bash >>
    ~/.local/share/bash-completion/completions/rlvr`."""

    shell: Positional[Literal["bash", "zsh", "tcsh"]]
    """The shell that is to read the script."""


def main(argv: Sequence[str]) -> int:
    """Run `rlvr completion SHELL`."""
    args = parse(CompletionArgs, argv, prog="rlvr completion", description=CompletionArgs.__doc__ or "")
    print(script(args.shell), end="")
    return 0


def script(shell: str) -> str:
    """Return the completion script for a shell."""
    # A flag of a recipe is --algo.kl-coef, not --recipe.algo.kl-coef.
    flat = (tyro.conf.OmitSubcommandPrefixes,)
    printed = io.StringIO()
    commands = [*(subcommand(name, arguments(place)) for name, place in ARGUMENTS.items())]
    commands += [subcommand(name, recipe_arguments(name)) for name in WITH_RECIPE]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(printed):
        tyro.cli(union(commands), args=["--tyro-print-completion", shell], prog="rlvr", config=flat)
    return printed.getvalue()


def subcommand(name: str, kind: Any) -> Any:
    """Return a type as a subcommand of this name."""
    return Annotated[kind, tyro.conf.subcommand(name, prefix_name=False)]


def arguments(place: str) -> type:
    """Return the flags of a command, by the place of their dataclass (`module:name`)."""
    module, _, name = place.partition(":")
    kind = getattr(importlib.import_module(module), name)
    return Settings(kind, values_of(kind)).view()[0]


def recipe_arguments(command: str) -> Any:
    """Return the recipes that a command runs, as its subcommands, each with the flags that any choice brings."""
    kind = next((kind for kind, known in COMMAND_OF.items() if known == command), Config)
    fields: list[tuple[str, Any, Any]] = []
    if kind is PipelineConfig:
        values = values_of(kind)
        fields = [(s.name, s.raw, field(default=values[s.name])) for s in settings_of(kind)]
        return with_recipe(command, kind, fields)
    for name, hints in flags_by_group(kind).items():
        made = make_dataclass(
            name, [(n, hint, field(default=value)) for n, (hint, value) in hints.items()], frozen=True
        )
        fields.append((name, made, field(default=made())))
    if command == "verify-resume":
        fields.append(("kill_after", int | None, field(default=None)))
    return with_recipe(command, kind, fields)


def with_recipe(command: str, kind: type, fields: Sequence[tuple[str, Any, Any]]) -> Any:
    """Return the recipes of a kind as subcommands with these fields."""
    flags = make_dataclass("Flags", fields, frozen=True)
    names = [path.stem for path in recipe_files() if recipe_command(path) == COMMAND_OF[kind]]
    if len(names) == 1:  # tyro takes a choice of one for none
        choice: Any = Annotated[Literal[tuple(names)], tyro.conf.Positional]
        return make_dataclass(command, [("recipe", choice), *fields])
    return make_dataclass(command, [("recipe", union([subcommand(name, flags) for name in names]))])


def flags_by_group(kind: type) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return type and default of every flag of a kind of recipe, by group and name."""
    groups: dict[str, dict[str, tuple[Any, Any]]] = {}
    for config in CHOICES if kind is Config else [RewardConfig()]:
        settings = Settings(kind, values_of(kind, config))
        for entry in settings.entries:
            hint, value = settings.annotated(entry), value_of(settings.values, entry)
            groups.setdefault(entry.group or entry.setting.name, {})[entry.setting.name] = (hint, value)
    return groups


def union(kinds: Sequence[Any]) -> Any:
    """Return the union of types."""
    return functools.reduce(operator.or_, kinds)
