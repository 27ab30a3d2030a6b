"""Running a verifier over many completions: in order, within deadlines, in worker processes that can be killed.

`Runner` is the front door. `base` calls a verifier once and turns its exceptions into verdicts. `pool` owns the worker
processes: `processes` is the caller's side of them, `worker` is what runs in them. `blame` decides whether a completion
or the verifier is at fault where a worker dies or hangs. Nothing is imported before it is used: the pool loads slowly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .processes import PoolError
    from .runner import ErrorBudget, Runner, VerifierErrors, runs_in_pool

__all__ = ["ErrorBudget", "PoolError", "Runner", "VerifierErrors", "runs_in_pool"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in __all__:
        return getattr(importlib.import_module(f"{__name__}.{'processes' if name == 'PoolError' else 'runner'}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
