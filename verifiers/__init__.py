"""Verifiers, one file or folder for each registered name, and `runner/`, which runs them over many completions.

Nothing is imported before it is used: a worker process that runs one verifier starts without the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .math import MathVerifier, verify_math, verify_math_async, verify_math_batch
    from .runner import ErrorBudget, PoolError, Runner, VerifierErrors
    from .runner.base import check_references, verify_one

# The registered names. Each is registered by the module of the same name, which is imported when it is asked for.
BUILT_IN = tuple(
    "choice combine countdown exact format identities instructions json_schema language_consistency length llm_judge "
    "math piecewise proof reasoning_gym regex repetition smt unit_tests verifiers_task".split()
)
# Other public names, and the module that defines each.
_DEFINED_IN = {
    **dict.fromkeys(("MathVerifier", "verify_math", "verify_math_async", "verify_math_batch"), "math"),
    **dict.fromkeys(("ErrorBudget", "PoolError", "Runner", "VerifierErrors"), "runner"),
    **dict.fromkeys(("check_references", "verify_one"), "runner.base"),
}

__all__ = [
    "BUILT_IN",
    "ErrorBudget",
    "MathVerifier",
    "PoolError",
    "Runner",
    "VerifierErrors",
    "check_references",
    "verify_math",
    "verify_math_async",
    "verify_math_batch",
    "verify_one",
]


def __getattr__(name: str) -> Any:
    """Import a module of BUILT_IN, or a public name, when it is first used."""
    if name in BUILT_IN:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _DEFINED_IN:
        return getattr(importlib.import_module(f"{__name__}.{_DEFINED_IN[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
