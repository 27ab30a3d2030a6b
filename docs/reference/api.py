"""The API: a page for each package, which mkdocstrings fills."""

from __future__ import annotations

import pkgutil

import rlvr

from .markdown import page, table

# Commands and recipes have pages of their own; the others are run, and not imported.
LEFT_OUT = ("rlvr.commands", "rlvr.recipes", "rlvr.__main__", "rlvr.verifiers.reasoning_gym.inside")


def modules() -> dict[str, list[str]]:
    """Return the modules of each package, itself first."""
    found: dict[str, list[str]] = {"rlvr": ["rlvr"]}
    for module in pkgutil.walk_packages(rlvr.__path__, "rlvr."):
        if module.name.startswith(LEFT_OUT):
            continue
        package = module.name if module.ispkg else module.name.rpartition(".")[0]
        found.setdefault(package, []).append(module.name)
    return found


def pages() -> dict[str, str]:
    """Return an index and the page of each package."""
    found = {f"api/{name}.md": page(name, *(f"::: {module}" for module in own)) for name, own in modules().items()}
    rows = [[f"[{name}]({name}.md)", f"{len(own)}"] for name, own in modules().items()]
    text = (
        "What can be imported, by package. Names that begin with an underscore are left out; everything else has types."
    )
    return found | {"api/index.md": page("API", text, table(["package", "modules"], rows))}
