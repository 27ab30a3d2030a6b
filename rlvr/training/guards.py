"""What a guard raises, on all processes alike, where a run gets worse."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr.core.types import RunError


class GuardStop(RunError):
    """A guard has ended the run, after a checkpoint."""


@dataclass
class RollBack(Exception):
    """A guard asks for a rollback; see rlvr.training.rollback.

    step: the last one that is done. kind: the guard, in one word; reason: why, in words. newest: the last step whose
    checkpoint may be gone back to, if not the one before `step`.
    """

    step: int
    kind: str
    reason: str
    newest: int | None = None
