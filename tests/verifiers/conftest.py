"""A user's module of misbehaving verifiers, which several test files share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.files import read_program

SOURCE = read_program("user_verifiers")


@pytest.fixture(scope="module")
def poison(tmp_path_factory):
    """A user's module with verifiers that misbehave."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "user_verifiers.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("user_verifiers")
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def verifier() -> Iterator[UnitTests]:
    """The verifier of programs, with one slot and three seconds a run."""
    made = UnitTests(timeout=3, slots=1)
    yield made
    made.close()
