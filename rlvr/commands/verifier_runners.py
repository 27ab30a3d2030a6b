"""Runners for a verifier and its variants with strict and lenient extraction. Their pass@k are reported together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Verifier
from rlvr.tasks.mixture import RoutedVerifier
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import allows

# Modes that look for an answer. The other modes of `exact` and `regex` compare the text as it is.
_LOOKING = ("strict", "marked", "lenient")


def with_extraction(verifier: Verifier, mode: str) -> Verifier | None:
    """Return the verifier with another mode of extraction.

    None where it lacks the mode, has it already, or compares the text as it is. A mixture's variant holds only the
    packs whose verifiers have the mode, and judges no problems of the others.
    """
    if isinstance(verifier, RoutedVerifier):
        made = {pack: with_extraction(part, mode) for pack, part in verifier.components.items()}
        packs = {pack: part for pack, part in made.items() if part is not None}
        return RoutedVerifier(packs) if packs else None
    current = getattr(verifier, "extract", mode)
    if not dataclasses.is_dataclass(verifier) or current == mode or current not in _LOOKING:
        return None
    if not allows(verifier, "extract", mode):
        return None
    try:
        other: Verifier = dataclasses.replace(verifier, extract=mode)
    except (TypeError, ValueError):  # a user's verifier whose field `extract` means something else
        return None
    return other


def check_requirements(verifier: Verifier) -> None:
    """Raise ValueError, with the verifier's own line, where something that it or a component needs is missing."""
    traits = VerifierTraits.of(verifier)
    if traits.find_missing is not None and (line := traits.find_missing()):
        raise ValueError(line)
    for part in traits.components.values():
        check_requirements(part)


@contextmanager
def open_runners(
    verifier: Verifier,
    selector: Verifier | None = None,
    *,
    workers: int,
    timeout: float,
    error_budget: float | None = None,
) -> Iterator[dict[str, Runner]]:
    """Open runners for a verifier, for its lenient and strict variants if it has them, and for a selector.

    The keys ("verifier", "lenient", "strict", "selector") are parameters of `evaluate`. error_budget: of the verifier
    itself, not of its variants. Raises ValueError where something that they need is missing.
    """
    for needed in (verifier, selector):
        if needed is not None:
            check_requirements(needed)
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
