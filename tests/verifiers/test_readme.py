"""verifiers/README.md: its example runs as it says, and its tables name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from rlvr.core.registry import VERIFIERS, make_verifier
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Problem, Status
from tests.helpers.files import ROOT, find_blocks

FOLDER = ROOT / "verifiers"
README = (FOLDER / "README.md").read_text()


def _block(language: str) -> str:
    [found] = find_blocks(FOLDER / "README.md", language)
    return found


def test_the_example_prints_what_it_says(tmp_path, monkeypatch):
    """Saved as mine.py and run; it can then be named mine:Bullets."""
    (tmp_path / "mine_bullets.py").write_text(_block("python"))
    command, env = [sys.executable, str(tmp_path / "mine_bullets.py")], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.stdout, done.stderr) == (_block("text"), "")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        starred = make_verifier("mine_bullets:Bullets", mark="*")
        assert starred(Problem("1", "", 1), "* one").status is Status.CORRECT
        assert starred.fast_path(Problem("1", "", 1), "* one").status is Status.CORRECT
        assert starred.fast_path(Problem("1", "", 1), "* one" * 300) is None
        with pytest.raises(ValueError, match="expected the number of bullet points"):
            starred.check_reference("three")
    finally:
        VERIFIERS._entries.pop("bullets", None)


def test_every_verifier_and_folder_is_named():
    """The tables are complete, and name nothing that is not there."""
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`([\w/.]+)`", " ".join(row.split("|")[1] for row in rows)))
    folders = {f"{path.name}/" for path in FOLDER.iterdir() if (path / "__init__.py").exists()}
    ours = {name for name in VERIFIERS.names() if VERIFIERS.get(name).__module__.startswith("rlvr.verifiers")}
    assert ours | folders | {str(status) for status in Status} == named


def test_traits_that_it_names_are_declared():
    """Those of a verifier's own; the components of `combine` are left to rlvr/core/types.py."""
    listed = re.search(r"Optional attributes \((.*?)\) are\s+declared", README, re.DOTALL)
    named = re.findall(r"`(\w+)`", listed[1])
    assert named == [item.name for item in fields(VerifierTraits)][: len(named)]
    assert len(named) == 9
