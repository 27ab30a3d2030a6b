"""Shared fixtures."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_files import lay_out

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("RLVR_DATA", REPOSITORY.parent / "shared" / "data"))


@pytest.fixture
def rlvr_data() -> Callable[[str], Path]:
    """Path of a development data file; skips the test where it is absent."""

    def find(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"no {name} in {DATA}; set RLVR_DATA to the development data")
        return DATA / name

    return find


@pytest.fixture
def bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of tests/bad_files.py, as the current one; what importing from it changes is put back."""
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path
