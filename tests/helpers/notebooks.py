"""Notebooks, read and run without a kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    """Return a notebook."""
    return json.loads(path.read_text("utf-8"))


def code(path: Path) -> list[str]:
    """Return the texts of its code cells."""
    return ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def run_cells(path: Path) -> dict[str, Any]:
    """Run the code cells in order, as a kernel does, in one namespace; return it."""
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, text in enumerate(code(path)):
        exec(compile(text, f"{path.name}, code cell {number}", "exec"), names)
    return names
