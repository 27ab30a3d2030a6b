"""Runners of a verifier and of its forms with other extraction, for numbers side by side. Part of the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rlvr.types import Verifier
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import allows


def with_extraction(verifier: Verifier, mode: str) -> Verifier | None:
    """The same verifier with another way of extracting the answer; None where it lacks this one, or has it already."""
    if not dataclasses.is_dataclass(verifier) or getattr(verifier, "extract", mode) == mode:
        return None
    if not allows(verifier, "extract", mode):
        return None
    try:
        other: Verifier = dataclasses.replace(verifier, extract=mode)
    except (TypeError, ValueError):  # a verifier of one's own that means something else by it
        return None
    return other


@contextmanager
def judges(
    verifier: Verifier, *, workers: int, timeout: float, error_budget: float | None = None
) -> Iterator[dict[str, Runner]]:
    """Runners by the names of `evaluate`'s parameters: the verifier, and its lenient and strict forms where there are.

    The error budget is that of the verifier itself.
    """
    with ExitStack() as stack:
        runners = {
            "verifier": stack.enter_context(
                Runner(verifier, workers=workers, timeout=timeout, error_budget=error_budget)
            )
        }
        for mode in ("lenient", "strict"):
            form = with_extraction(verifier, mode)
            if form is not None:
                runners[mode] = stack.enter_context(Runner(form, workers=workers, timeout=timeout))
        yield runners
