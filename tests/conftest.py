"""Shared fixtures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bad_files import lay_out
from tests.helpers.files import DataSets, begin_with_long_tests, mark_slow

NAMED = os.environ.get("RLVR_DATA", "")


def pytest_configure() -> None:
    """Refuse a folder of data that is not there, before any test reads excerpts in its place."""
    if NAMED and not Path(NAMED).is_dir():
        raise pytest.UsageError(f"RLVR_DATA={NAMED}: no such folder; name one or unset it")


def pytest_report_header() -> str:
    """Say which data sets are read."""
    return f"data sets: {NAMED or 'excerpts in tests/golden/data'}"


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark the tests of slow_tests.txt. Of those that are left each of several processes begins with long ones."""
    mark_slow(items)
    yield
    if hasattr(config, "workerinput"):
        items[:] = begin_with_long_tests(items, config.workerinput["workercount"])


@pytest.fixture(scope="session")
def rlvr_data() -> DataSets:
    """The data sets of the folder that RLVR_DATA names; without it, the excerpts in tests/golden/data."""
    return DataSets(Path(NAMED) if NAMED else None)


def torch_settings() -> dict[str, object]:
    """What a program can change of torch's operations in this process; the defaults where it is not imported yet."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):
        return {"matmuls in float32": "highest", "dtype": "torch.float32", "gradients": True}
    return {
        "matmuls in float32": torch._C._get_float32_matmul_precision(),
        "dtype": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }


@pytest.fixture(autouse=True)
def torch_stays_as_it_was() -> Iterator[None]:
    """Fail a test that leaves torch's settings changed: those after it in its process would compute otherwise."""
    before = torch_settings()
    yield
    after = torch_settings()
    assert {name: after[name] for name in before} == before


@pytest.fixture(autouse=True)
def imports_are_forgotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a test imports from temporary folders: the next test's may have the same names."""
    modules, path = {*sys.modules}, [*sys.path]
    yield
    sys.path[:] = path
    folder = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(folder):
            del sys.modules[name]


@pytest.fixture
def bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of tests/bad_files.py, as the current one."""
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Computes on one thread: two threads that compute at once must not change the number of threads of each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
