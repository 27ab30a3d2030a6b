"""Shared fixtures."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.bad_files import lay_out
from tests.helpers.files import DataSets

NAMED = os.environ.get("RLVR_DATA", "")


def pytest_configure() -> None:
    """Refuse a folder of data that is not there, before any test reads excerpts in its place."""
    if NAMED and not Path(NAMED).is_dir():
        raise pytest.UsageError(f"RLVR_DATA={NAMED}: no such folder; name one or unset it")


def pytest_report_header() -> str:
    """Say which data sets are read."""
    return f"data sets: {NAMED or 'excerpts in tests/golden/data'}"


@pytest.fixture(scope="session")
def rlvr_data() -> DataSets:
    """The data sets of the folder that RLVR_DATA names; without it, the excerpts in tests/golden/data."""
    return DataSets(Path(NAMED) if NAMED else None)


@pytest.fixture
def bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of tests/bad_files.py, as the current one; what importing from it changes is put back."""
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path
