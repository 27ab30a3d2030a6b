"""Tables of this verifier that are text files beside its modules."""

from __future__ import annotations

from pathlib import Path


def read_sections(path: Path) -> dict[str, list[str]]:
    """Return the lines of a file by section. A section begins at its name in brackets; `#` begins a comment."""
    sections: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            found = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            found.append(line)
    return sections
