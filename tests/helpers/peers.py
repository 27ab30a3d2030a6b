"""Programs that rlvr is adapted to, where they are installed."""

from __future__ import annotations

import importlib.metadata

import pytest


def needs(package: str) -> pytest.MarkDecorator:
    """Skip without the package. Asked of its metadata: a folder of this repository is named `verifiers`, too."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return pytest.mark.skip(reason=f"{package} is not installed")
    return pytest.mark.skipif(False, reason="")


def answered(problem) -> str:
    """Return a right answer to a problem of sums."""
    return f"\\boxed{{{problem.reference}}}"
