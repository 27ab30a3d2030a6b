"""Running verifiers over many completions: in order, within deadlines, without losing the run to one bad input.

`Runner` and its errors are imported on first use, since the process pool is slow to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr.verifiers.runner.processes import PoolError
    from rlvr.verifiers.runner.runner import ErrorBudget, Runner, VerifierErrors, runs_in_pool

_LATER = {
    "ErrorBudget": "budget",
    "PoolError": "server",
    "Runner": "runner",
    "VerifierErrors": "budget",
    "runs_in_pool": "runner",
}

__all__ = ["ErrorBudget", "PoolError", "Runner", "VerifierErrors", "runs_in_pool"]


def __getattr__(name: str) -> Any:
    """Return a name of `_LATER`, imported now."""
    if name in _LATER:
        return getattr(importlib.import_module(f"rlvr.verifiers.runner.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
