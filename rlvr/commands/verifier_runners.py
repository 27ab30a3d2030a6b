"""Runners for a verifier and its variants with strict and lenient extraction, whose pass@k are reported together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Verifier
from rlvr.tasks.mixture import RoutedVerifier
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import allows

# The modes that look for an answer; the others of `exact` and `regex` read the text as it is, boxes or not.
_LOOKING = ("strict", "marked", "lenient")


def with_extraction(verifier: Verifier, mode: str) -> Verifier | None:
    """Return the verifier with another mode of extraction; None where it lacks the mode, uses it already, or compares
    the text as it is.

    That of a mixture has the packs whose verifiers have another mode, and judges no problems of others.
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


def check_there(verifier: Verifier) -> None:
    """Raise ValueError, with the verifier's own line, where something that it or a part of it needs is missing."""
    traits = VerifierTraits.of(verifier)
    if traits.missing is not None and (line := traits.missing()):
        raise ValueError(line)
    for part in traits.components.values():
        check_there(part)


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
    verifier itself, not its variants. Raises ValueError where something that they need is missing.
    """
    for needed in (verifier, selector):
        if needed is not None:
            check_there(needed)
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
