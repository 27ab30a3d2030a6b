"""Tables that are text files beside the modules which read them."""

from __future__ import annotations

from pathlib import Path


def read_sections(path: Path) -> dict[str, list[str]]:
    """Return the lines of a file by section. A section begins at its name in brackets; `# ` begins a comment."""
    sections: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            found = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("# "):
            found.append(line)
    return sections


def read_words(path: Path) -> dict[str, frozenset[str]]:
    """Return the words of a file by section, as `read_sections` finds them."""
    return {name: frozenset(" ".join(lines).split()) for name, lines in read_sections(path).items()}
