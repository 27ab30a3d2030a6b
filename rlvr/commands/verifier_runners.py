"""Runners for a verifier and its variants with strict and lenient extraction, whose pass@k are reported together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rlvr.tasks.mixture import RoutedVerifier
from rlvr.types import Verifier
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import allows


def with_extraction(verifier: Verifier, mode: str) -> Verifier | None:
    """Return the verifier with another mode of extraction; None where it lacks the mode, or uses it already.

    That of a mixture has the packs whose verifiers have another mode, and judges no problems of others.
    """
    if isinstance(verifier, RoutedVerifier):
        made = {pack: with_extraction(part, mode) for pack, part in verifier.components.items()}
        packs = {pack: part for pack, part in made.items() if part is not None}
        return RoutedVerifier(packs) if packs else None
    if not dataclasses.is_dataclass(verifier) or getattr(verifier, "extract", mode) == mode:
        return None
    if not allows(verifier, "extract", mode):
        return None
    try:
        other: Verifier = dataclasses.replace(verifier, extract=mode)
    except (TypeError, ValueError):  # a user's verifier whose field `extract` means something else
        return None
    return other


@contextmanager
def open_runners(
    verifier: Verifier,
    selector: Verifier | None = None,
    *,
    workers: int,
    timeout: float,
    error_budget: float | None = None,
) -> Iterator[dict[str, Runner]]:
    """Open the runners of a verifier and of its lenient and strict variants, where it has them, and of a selector.

    The keys ("verifier", "lenient", "strict", "selector") are parameters of `evaluate`. `error_budget` limits the
    verifier itself, not its variants.
    """
    with ExitStack() as stack:
        runners = {
            "verifier": stack.enter_context(
                Runner(verifier, workers=workers, timeout=timeout, error_budget=error_budget)
            )
        }
        for mode in ("lenient", "strict"):
            variant = with_extraction(verifier, mode)
            if variant is not None:
                runners[mode] = stack.enter_context(Runner(variant, workers=workers, timeout=timeout))
        if selector is not None:
            runners["selector"] = stack.enter_context(Runner(selector, workers=workers, timeout=timeout))
        yield runners
