"""`rlvr list`: verifiers, task packs, environments and recipes, a line each; `rlvr list packs`: those of one kind;
`rlvr list NAME`: one of them in full."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.core.printable import describe_type, printable
from rlvr.core.registry import ENVIRONMENTS, TASKS, VERIFIERS, Registry, did_you_mean

from .arguments import Positional, parse

# By kind of registry: the word for an entry, and a command that uses one.
USES = {
    "verifier": ("verifier", "rlvr grade FILE.jsonl --verifier {name}"),
    "task": ("task pack", "rlvr eval --model M --task {name}"),
    "environment": ("environment", "rlvr train RECIPE --run.environment {name}"),
}
OPTION_FLAGS = {"verifier": "--verifier-option", "task": "--task-option", "environment": "--run.environment-option"}


@dataclass(frozen=True)
class ListArgs:
    """List verifiers, task packs, environments and recipes, a line each, or those of one kind; with a name show its
    docstring, options and types."""

    name: Positional[str | None] = None
    """verifiers, packs, environments or recipes; or one of them to show: a name of the list, or module:attribute."""
    options: bool = False
    """Show the options of each verifier, pack and environment too."""


def main(argv: Sequence[str]) -> int:
    args = parse(ListArgs, argv, prog="rlvr list")
    sections = {
        "verifiers": lambda: list_entries(VERIFIERS, args.options),
        "packs": lambda: list_entries(TASKS, args.options),
        "environments": lambda: list_entries(ENVIRONMENTS, args.options),
        "recipes": lambda: [(file.stem, recipe_docstring(file).split("\n")[0].strip()) for file in recipe_files()],
    }
    for kind in sections if args.name is None else {args.name} & sections.keys():
        print_section(kind, sections[kind]())
    # The pack of the package `verifiers` has the name of a kind.
    if args.name is not None and (args.name not in sections or args.name in known_names()):
        print(printable("\n\n".join(describe(args.name))))
    return 0


def known_names() -> set[str]:
    registered = {name for registry in (VERIFIERS, TASKS, ENVIRONMENTS) for name in registry.names()}
    return registered | {file.stem for file in recipe_files()}


def list_entries(registry: Registry, with_options: bool) -> list[tuple[str, str]]:
    """Return name and summary of each entry, with its options as name=default."""
    rows = []
    for name in registry.names():
        text = registry.summary(name)
        if with_options:
            options = registry.options(name).values()
            shown = (p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in options)
            text = f"{text} [{', '.join(shown)}]"
        rows.append((name, text))
    return rows


def describe(name: str) -> list[str]:
    """Return a text for each verifier, pack, environment and recipe of this name.

    What a "module:attribute" is, is seen from its parameters, and from whether it is a generator function. Raises
    LookupError with the nearest names where there is none.
    """
    registries = (VERIFIERS, TASKS, ENVIRONMENTS)
    if members := [registry for registry in registries if registry.has_member(name)]:
        return [entry(registry, name) for registry in members]
    if ":" in name:
        made = VERIFIERS.get(name)
        call = made.__call__ if inspect.isclass(made) else made
        kind = (
            ENVIRONMENTS if inspect.isgeneratorfunction(call) else VERIFIERS if positional_parameters(made) else TASKS
        )
        return [entry(kind, name)]
    found = [entry(registry, name) for registry in registries if name in registry.names()]
    found += [recipe_entry(file) for file in recipe_files() if file.stem == name]
    if not found:
        raise LookupError(
            f"no verifier, task pack, environment or recipe {name!r}; {did_you_mean(name, known_names())}"
        )
    return found


def positional_parameters(made: Any) -> list[str]:
    """Return the positional parameters of a function, or of a class's call: a verifier has two, a pack none."""
    call = made.__call__ if inspect.isclass(made) else made
    parameters = inspect.signature(call).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def entry(registry: Registry, name: str) -> str:
    """Return name, place, docstring and options of a verifier, a pack or an environment, and how it is used."""
    made = registry.get(name)
    options = [
        (key, describe_type(hint), "needed" if default is inspect.Parameter.empty else f"default {default!r}")
        for key, (hint, default) in registry.typed_options(name).items()
    ]
    widths = [max((len(row[i]) for row in options), default=0) for i in (0, 1)]
    lines = [f"    {key:{widths[0]}}  {hint:{widths[1]}}  {default}" for key, hint, default in options]
    kind, use = USES[registry.kind]
    given = f" {OPTION_FLAGS[registry.kind]} {options[0][0]}=VALUE" if options else ""
    given = " --data PATH" if options and options[0][0] == "data" else given
    return "\n".join(
        [f"{name} ({kind}, {locate(made)})", "", indent(documentation(made)), ""]
        + (["  options", *lines, ""] if lines else ["  no options", ""])
        + [f"  {use.format(name=name)}{given}"]
    )


def documentation(made: Any) -> str:
    """Return the docstring of a function or class; "" without one, and for the one that every dataclass gets."""
    text = inspect.getdoc(made) or ""
    return "" if text.startswith(f"{getattr(made, '__name__', '?')}(") else text


def locate(made: Any) -> str:
    """Return file and line of a definition, or its module if the file is not known."""
    made = inspect.unwrap(made)
    try:
        return f"{inspect.getsourcefile(made)} line {inspect.getsourcelines(made)[1]}"
    except (OSError, TypeError):
        return str(getattr(made, "__module__", "built in"))


def recipe_entry(file: Path) -> str:
    """Return name, place and docstring of a recipe, read without running it."""
    command = recipe_command(file)
    return "\n".join(
        [
            f"{file.stem} (recipe, {file})",
            "",
            indent(recipe_docstring(file)),
            "",
            f"  rlvr {command} {file.stem} --help lists its settings",
        ]
    )


def recipe_command(file: Path) -> str:
    """Return the command that runs a recipe, read without running it."""
    text = file.read_text("utf-8")
    return "rm" if "CONFIG = RewardConfig(" in text else "pipeline" if "CONFIG = PipelineConfig(" in text else "train"


def indent(text: str) -> str:
    return textwrap.indent(text, "  ") or "  (no docstring)"


def recipe_files() -> list[Path]:
    folders = importlib.import_module("rlvr.recipes").__path__
    return sorted(file for folder in folders for file in Path(folder).glob("*.py") if file.stem != "__init__")


def recipe_docstring(file: Path) -> str:
    """Return the docstring of a recipe, read without running it."""
    return ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""


def print_section(title: str, rows: Iterable[tuple[str, str]]) -> None:
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    print(title)
    for name, text in rows:
        print(f"  {name:{width}}  {text}".rstrip())
