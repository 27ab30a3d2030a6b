"""Verifiers and their runner.

Nothing is imported before it is used: a worker process of one verifier starts without the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlvr.verifiers import (
        choice,
        combine,
        countdown,
        exact,
        format,
        identities,
        instructions,
        json_schema,
        language_consistency,
        length,
        llm_judge,
        math,
        piecewise,
        proof,
        reasoning_gym,
        regex,
        repetition,
        smt,
        unit_tests,
        verifiers_task,
    )
    from rlvr.verifiers.math import MathVerifier, verify_math, verify_math_async, verify_math_batch
    from rlvr.verifiers.runner import ErrorBudget, PoolError, Runner, VerifierErrors
    from rlvr.verifiers.runner.base import check_references, verify_one

# The registered names; the module of the same name registers each.
BUILT_IN = (
    "choice",
    "combine",
    "countdown",
    "exact",
    "format",
    "identities",
    "instructions",
    "json_schema",
    "language_consistency",
    "length",
    "llm_judge",
    "math",
    "piecewise",
    "proof",
    "reasoning_gym",
    "regex",
    "repetition",
    "smt",
    "unit_tests",
    "verifiers_task",
)
_LATER = {
    "ErrorBudget": "runner",
    "MathVerifier": "math",
    "PoolError": "runner",
    "Runner": "runner",
    "VerifierErrors": "runner",
    "check_references": "runner.base",
    "verify_math": "math",
    "verify_math_async": "math",
    "verify_math_batch": "math",
    "verify_one": "runner.base",
}

__all__ = [
    "ErrorBudget",
    "MathVerifier",
    "PoolError",
    "Runner",
    "VerifierErrors",
    "check_references",
    "choice",
    "combine",
    "countdown",
    "exact",
    "format",
    "identities",
    "instructions",
    "json_schema",
    "language_consistency",
    "length",
    "llm_judge",
    "math",
    "piecewise",
    "proof",
    "reasoning_gym",
    "regex",
    "repetition",
    "smt",
    "unit_tests",
    "verifiers_task",
    "verify_math",
    "verify_math_async",
    "verify_math_batch",
    "verify_one",
]


def __getattr__(name: str) -> Any:
    """Return a module of BUILT_IN, or a name of `_LATER`, imported now."""
    if name in BUILT_IN:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LATER:
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
