"""The device of these tests, and the table of what they measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers.gpu import tolerate_warnings

MEASURED = pytest.StashKey[list[tuple[str, str]]]()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """CUDA; where there is none the CPU stands in, with a smaller work."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """CUDA, or the test is skipped."""
    if device.type != "cuda":
        pytest.skip("torch finds no CUDA GPU here")
    return device


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Adds a row to the table at the end: what was measured, and its value."""
    return lambda what, value: request.config.stash.setdefault(MEASURED, []).append((what, value))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a GPU let the warnings of others pass, and begin with what needs all of its memory: vLLM may keep some."""
    if torch.cuda.is_available():
        tolerate_warnings([item for item in items if item.path.is_relative_to(Path(__file__).parent)])
        items.sort(key=lambda item: item.path.name != "test_large.py")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    rows = config.stash.get(MEASURED, [])
    if rows:
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        terminalreporter.section(f"measured on {name}")
        width = max(len(what) for what, _ in rows)
        for what, value in rows:
            terminalreporter.write_line(f"{what:{width}}  {value}")
