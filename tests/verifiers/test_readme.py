"""verifiers/README.md: its table names what there is, and its traits are declared."""

from __future__ import annotations

import re
from dataclasses import fields

from rlvr.core.registry import VERIFIERS
from rlvr.core.traits import VerifierTraits
from tests.helpers.files import ROOT

FOLDER = ROOT / "verifiers"
README = (FOLDER / "README.md").read_text()


def test_every_verifier_and_folder_is_named():
    """The tables are complete, and name nothing that is not there."""
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`([\w/.]+)`", " ".join(row.split("|")[1] for row in rows)))
    folders = {f"{path.name}/" for path in FOLDER.iterdir() if (path / "__init__.py").exists()}
    ours = {name for name in VERIFIERS.names() if VERIFIERS.get(name).__module__.startswith("rlvr.verifiers")}
    assert ours | folders == named


def test_traits_that_it_names_are_declared():
    """Those of a verifier's own; the components of `combine` are left to rlvr/core/types.py."""
    page = (ROOT / "docs" / "how-to" / "verifier.md").read_text()
    listed = re.search(r"Optional attributes \((.*?)\)\s+are\s+declared", page, re.DOTALL)
    named = re.findall(r"`(\w+)`", listed[1])
    assert named == [item.name for item in fields(VerifierTraits)][: len(named)]
    assert len(named) == 9
