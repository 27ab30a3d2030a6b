"""The API: a page for each package, which mkdocstrings fills."""

from __future__ import annotations

import ast
import inspect
import json
import pkgutil
import sys
from types import ModuleType

import rlvr

from .markdown import first_line, page, table

# Commands and recipes have pages of their own; the others are run, and not imported.
LEFT_OUT = ("rlvr.commands", "rlvr.recipes", "rlvr.__main__", "rlvr.verifiers.reasoning_gym.inside")

# Not found by searches: the fields of its classes are settings, which have pages of their own.
UNSEARCHED = ("rlvr.config",)
FRONT = "---\nsearch:\n  exclude: true\n---"


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
    found = {f"api/{name}.md": package_page(own) for name, own in modules().items()}
    rows = [[f"[{name}]({name}.md)", first_line(sys.modules[name])] for name in modules()]
    text = (
        "What can be imported, by package. Names that begin with an underscore are left out; everything else has types."
    )
    return found | {"api/index.md": page("API", text, table(["package", "holds"], rows))}


def package_page(own: list[str]) -> str:
    """Return the page of a package: what is defined in it, then its modules."""
    package, *others = own
    names = ", ".join(map(json.dumps, defined_in(sys.modules[package])))
    first = f"::: {package}\n    options:\n      heading_level: 1\n      members: [{names}]"
    front = [FRONT] if package in UNSEARCHED else []
    return "\n\n".join([*front, first, *(f"::: {module}" for module in others)]) + "\n"


def defined_in(module: ModuleType) -> list[str]:
    """Return the public names that a module defines itself; what it imports is on the page of its own module."""
    found = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append(node.target.id)
        elif isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [name for name in found if not name.startswith("_")]
