"""The verifier `length`: how long a completion is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlvr.core.registry import register
from rlvr.core.types import Problem, Status, Verdict

from .runner.base import accepts_many, check_choices

COUNTS = {
    "characters": len,
    "words": lambda text: len(text.split()),
    "lines": lambda text: sum(1 for line in text.splitlines() if line.strip()),
}


@register("length")
@dataclass(frozen=True, kw_only=True)
class LengthVerifier:
    """Whether the completion has from min to max characters, words or lines (that are not blank).

    graded: below min the score is count / min; above max it falls from 1 at max to 0 at twice max.
    """

    min: int = 0
    max: int | None = None
    unit: Literal["characters", "words", "lines"] = "words"
    graded: bool = False

    isolate: ClassVar[bool] = False  # bounded work

    def __post_init__(self) -> None:
        check_choices(self)
        if self.min < 0 or (self.max is not None and self.max < max(self.min, 1)):
            raise ValueError(f"length from {self.min} to {self.max}: expected 0 <= min <= max and max above 0")

    open_answers = accepts_many

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        count = COUNTS[self.unit](completion)
        reason = f"{count} {self.unit}"
        if count < self.min:
            score = count / self.min
        elif self.max is not None and count > self.max:
            score = max(0.0, 2 - count / self.max)
        else:
            return Verdict(Status.CORRECT, 1.0, reason)
        if not self.graded or score == 0:
            return Verdict(Status.INCORRECT, 0.0, reason)
        return Verdict(Status.PARTIAL, score, reason)
