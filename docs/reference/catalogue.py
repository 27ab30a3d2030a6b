"""Verifiers, task packs, environments and recipes: what is registered, with options and types."""

from __future__ import annotations

import ast
import inspect

from rlvr.commands.list import USES, documentation, recipe_command, recipe_docstring, recipe_files
from rlvr.core.printable import describe_type
from rlvr.core.registry import ENVIRONMENTS, TASKS, VERIFIERS, Registry

from .markdown import page, plain, table

TEXTS = {
    "verifiers": "`rlvr list NAME` prints the same in the terminal. A name of your own is `module:attribute`.",
    "packs": "A task pack holds training and held-out problems and their verifier. Options: `--run.task-option`.",
    "environments": "An environment plays a problem over several turns: `--run.environment`.",
}


def pages() -> dict[str, str]:
    """Return the pages of what is registered."""
    return {
        "verifiers.md": registry_page("Verifiers", VERIFIERS, TEXTS["verifiers"]),
        "packs.md": registry_page("Task packs", TASKS, TEXTS["packs"]),
        "environments.md": registry_page("Environments", ENVIRONMENTS, TEXTS["environments"]),
        "recipes.md": recipes_page(),
    }


def registry_page(title: str, registry: Registry, text: str) -> str:
    """Return the page of a registry: a table of all names, then each with its docstring and options."""
    names = registry.names()
    rows = [[f"[{name}](#{name})", plain(registry.summary(name))] for name in names]
    return page(title, text, table(["name", ""], rows), *(entry(registry, name) for name in names))


def entry(registry: Registry, name: str) -> str:
    """Return a name's section."""
    made = registry.get(name)
    _, use = USES[registry.kind]
    rows = [
        [f"`{key}`", describe_type(hint), "needed" if default is inspect.Parameter.empty else f"`{default!r}`"]
        for key, (hint, default) in registry.typed_options(name).items()
    ]
    options = table(["option", "takes", "default"], rows) if rows else "No options."
    return "\n\n".join([f"## {name} {{ #{name} }}", plain(documentation(made)), f"`{use.format(name=name)}`", options])


def recipes_page() -> str:
    """Return the page of the recipes, read without running them."""
    files = recipe_files()
    rows = [[f"[{file.stem}](#{file.stem})", plain(recipe_docstring(file).split("\n")[0])] for file in files]
    parts = []
    for file in files:
        source = file.read_text("utf-8")
        body = source.replace(ast.get_source_segment(source, ast.parse(source).body[0]) or "", "", 1).strip()
        command = f"`rlvr {recipe_command(file)} {file.stem}`"
        parts.append("\n\n".join([
            f"## {file.stem} {{ #{file.stem} }}", plain(recipe_docstring(file)), command, f"```python\n{body}\n```",
        ]))  # fmt: skip
    text = "A recipe is a short Python file with a `CONFIG`. Every field is a flag; copy one to begin your own."
    return page("Recipes", text, table(["name", ""], rows), *parts)
