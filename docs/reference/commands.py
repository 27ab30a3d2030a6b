"""Commands: each with its flags, read from the parser that the command itself uses."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io

from rlvr.commands.arguments import Flag, Flags, value_of, values_of
from rlvr.commands.cli import COMMANDS, GROUPS
from rlvr.commands.completion import WITH_RECIPE, arguments_of
from rlvr.config.settings import help_texts
from rlvr.core.printable import describe_type

from .markdown import code, page, plain, table

OF_A_RECIPE = {
    "rm": "[Settings of a reward model](settings/rm.md)",
    "pipeline": "[Settings of a pipeline](settings/pipeline.md)",
}
INTRODUCTION = """
`rlvr COMMAND --help` prints what stands here. Input that cannot be used gives one line on standard error and exit
code 2, before anything is written. A run that a signal ends has exit code 130 (Ctrl-C) or 143 (SIGTERM).
"""


def pages() -> dict[str, str]:
    """Return the page of all commands."""
    parts = [INTRODUCTION]
    for title, commands in GROUPS.items():
        parts.append(
            table([title, ""], ([f"[rlvr {name}](#rlvr-{name})", text] for name, (_, _, text) in commands.items()))
        )
    parts += [section(name) for name in COMMANDS]
    return {"commands.md": page("Commands", *parts)}


def section(name: str) -> str:
    """Return a command's section."""
    title = f"## rlvr {name} {{ #rlvr-{name} }}"
    if name in WITH_RECIPE:
        settings = OF_A_RECIPE.get(name, "[Settings of a run](settings/index.md)")
        return "\n\n".join([title, code(help_of(name)), f"Its flags are the settings of the recipe: {settings}."])
    kind = arguments_of(name)
    flags = Flags(kind, values_of(kind))
    positional = " ".join(flag.label for flag in flags.all.values() if flag.positional)
    usage = code(f"rlvr {name} {positional} [flags]".replace("  ", " "))
    rows = [row(flags, flag) for flag in flags.all.values()]
    return "\n\n".join([title, usage, plain(inspect.getdoc(kind) or ""), table(["flag", "takes", "default", ""], rows)])


def row(flags: Flags, flag: Flag) -> list[str]:
    """Return a flag as a row: what it takes, its default and bound, its text."""
    value = value_of(flags.values, flag)
    shown = " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
    takes = "" if flag.hint is bool else describe_type(flag.hint)
    takes += f", {flag.setting.bound}" if flag.setting.bound else ""
    default = "" if flag.name in flags.required else f"`{shown}`"
    return [f"**{flag.label}**", takes, default, plain(help_texts(flags.kind).get(flag.setting.name, ""))]


def help_of(name: str) -> str:
    """Return what a command that runs recipes prints when it is asked for help."""
    module, function, _ = COMMANDS[name]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        getattr(importlib.import_module(f"rlvr.commands.{module}"), function)(["--help"])
    return printed.getvalue()
