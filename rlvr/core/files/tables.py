"""Tables that are text files beside the modules which read them."""

from __future__ import annotations

import re
from pathlib import Path


def read_sections(path: Path) -> dict[str, list[str]]:
    """Return the lines of a file by section. A section begins at its name in brackets; `# ` begins a comment."""
    sections: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        if name := re.fullmatch(r"\[([\w, ]+)\]", line):
            found = sections.setdefault(name[1], [])
        elif line and not line.startswith("# "):
            found.append(line)
    return sections


def read_words(path: Path) -> dict[str, frozenset[str]]:
    """Return the words of a file by section, as `read_sections` finds them."""
    return {name: frozenset(" ".join(lines).split()) for name, lines in read_sections(path).items()}


def read_patterns(path: Path, **given: str) -> dict[str, str]:
    """Return the regular expression of each section of a file. Its lines are alternatives.

    An indented line goes on with the one before it. {NAME} stands for the pattern of the section NAME before it,
    or for one of the `given` ones.
    """
    found = given
    for name, lines in read_sections(path).items():
        text = "\n".join(lines).replace("\n  ", "").replace("\n", "|")
        found[name] = re.sub(r"\{([A-Z][A-Z_]+)\}", lambda match: found[match[1]], text)
    return found
