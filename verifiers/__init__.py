"""Reward checks and their runner.

Importing this package registers the built-in verifiers and stays cheap: sympy, jsonschema and the process pool are
imported where they are used.
"""

from __future__ import annotations

from typing import Any

from rlvr.verifiers import (
    choice,
    combine,
    countdown,
    exact,
    format,
    instructions,
    json_schema,
    length,
    math,
    regex,
    repetition,
    runner,
    unit_tests,
)
from rlvr.verifiers.math import MathVerifier, verify_math, verify_math_async, verify_math_batch
from rlvr.verifiers.runner.base import check_references, verify_one

_LATER = ("ErrorBudget", "PoolError", "Runner", "VerifierErrors")

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
    "instructions",
    "json_schema",
    "length",
    "math",
    "regex",
    "repetition",
    "unit_tests",
    "verify_math",
    "verify_math_async",
    "verify_math_batch",
    "verify_one",
]


def __getattr__(name: str) -> Any:
    """The runner, imported when it is first asked for."""
    if name in _LATER:
        return getattr(runner, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
