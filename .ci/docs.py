#!/usr/bin/env python
"""Write the API reference, a page for each module of rlvr, to a folder (default build/docs). Warnings are errors."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import typing
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pdoc.doc
import pdoc.render
from pdoc.doc_types import safe_eval_type

import rlvr

# The first runs the command line when it is imported; the text of the second runs in the sandbox alone.
NOT_IMPORTED = ("rlvr.__main__", "rlvr.verifiers.reasoning_gym.inside")


def modules() -> list[ModuleType]:
    """Import all modules but those that nothing may import."""
    names = [module.name for module in pkgutil.walk_packages(rlvr.__path__, "rlvr.")]
    return [rlvr, *(importlib.import_module(name) for name in names if name not in NOT_IMPORTED)]


def read_inherited_hints(value: type) -> dict[str, Any]:
    """Return the types of the fields that a class has from classes of other modules, each read in its own module."""
    own = value.__annotations__ if "__annotations__" in vars(value) else {}
    bases = [base for base in reversed(value.__mro__) if base.__module__ not in (value.__module__, "builtins")]
    return {
        name: safe_eval_type(hint, vars(sys.modules[base.__module__]), None, sys.modules[base.__module__], name)
        for base in bases
        for name, hint in vars(base).get("__annotations__", {}).items()
        if name not in own
    }


def page(module: ModuleType) -> pdoc.doc.Module:
    """Return what there is to say about a module, with the names in it that are imported when they are first used."""
    for name in getattr(module, "__all__", ()):
        vars(module).setdefault(name, getattr(module, name))
    for value in vars(module).values():
        if isinstance(value, type) and "_field_defaults" in vars(value) and value.__module__ == module.__name__:
            # A NamedTuple's constructor does not know its module's names, and pdoc could not resolve its annotations.
            value.__new__.__annotations__ = typing.get_type_hints(value)
        if isinstance(value, type) and "__dataclass_fields__" in vars(value) and value.__module__ == module.__name__:
            # Neither does a dataclass's constructor know the names of a base class's module.
            written = getattr(vars(value).get("__init__"), "__annotations__", {})
            written |= {name: hint for name, hint in read_inherited_hints(value).items() if name in written}
    return pdoc.doc.Module(module)


def main() -> None:
    """Write the pages, the index and the search index. Exit with code 1 where pdoc warns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/docs"))
    folder = parser.parse_args().folder
    pdoc.render.configure(docformat="markdown", footer_text=f"rlvr {rlvr.__version__}", show_source=False)
    imported = modules()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pages = {module.__name__: page(module) for module in imported}
        texts = {f"{name.replace('.', '/')}.html": pdoc.render.html_module(page, pages) for name, page in pages.items()}
        texts |= {"index.html": pdoc.render.html_index(pages), "search.js": pdoc.render.search_index(pages)}
    if caught:
        sys.exit("\n".join(f"error: {warning.message}" for warning in caught))
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{folder / 'index.html'}: {len(pages)} modules")


if __name__ == "__main__":
    main()
