"""Folders of the repository, and JSONL files."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
EXCERPTS = GOLDEN / "data"


@dataclass(frozen=True)
class DataSets:
    """Files of data sets by name, such as "gsm8k/test.jsonl": the whole ones of a folder, or excerpts of them."""

    folder: Path | None = None

    def __call__(self, name: str) -> Path:
        """Return the path of a file; an excerpt where the folder lacks the file or none was given."""
        path = EXCERPTS / name if self.folder is None else self.folder / name
        return path if path.exists() else EXCERPTS / name

    def whole(self, name: str) -> bool:
        """Whether a file is the whole data set, so that its published size can be checked."""
        return self(name).parent != (EXCERPTS / name).parent


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def fenced(path: Path, language: str = "python") -> list[str]:
    """Return the fenced blocks of a language in a Markdown file."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
