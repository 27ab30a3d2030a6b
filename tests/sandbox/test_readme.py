"""sandbox/README.md: the tables name every file there is."""

from __future__ import annotations

import re

from tests.helpers.files import ROOT

README = ROOT / "sandbox" / "README.md"
INSIDE = ROOT / "sandbox" / "wire" / "README.md"


def test_every_file_is_named():
    """The table of files is complete."""
    named = {name for path in (README, INSIDE) for name in re.findall(r"(\w+\.py)`", path.read_text())}
    files = {path.name for path in (ROOT / "sandbox").rglob("*.py")} - {"__init__.py"}
    assert files <= named, files - named
