"""The verifier `repetition`: how much of a completion repeats itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlvr.core.registry import register
from rlvr.core.types import Problem, Status, Verdict

from .runner.base import accepts_many


@register("repetition")
@dataclass(frozen=True, kw_only=True)
class RepetitionVerifier:
    """Score 1 for a completion that repeats no n-gram of words, and less for each n-gram that it repeats.

    The score is 1 - penalty * (1 - unique / total), over the n-grams of words in lower case. This is the repetition
    penalty of arXiv:2502.03373, shifted so that its maximum is 1. A text of fewer than n words repeats nothing.
    """

    n: int = 3
    penalty: float = 1.0

    isolate: ClassVar[bool] = False  # bounded work

    def __post_init__(self) -> None:
        if self.n < 1 or self.penalty < 0:
            raise ValueError(f"repetition with n {self.n}, penalty {self.penalty}: expected n >= 1 and penalty >= 0")

    open_answers = accepts_many

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        words = completion.lower().split()
        ngrams = list(zip(*(words[start:] for start in range(self.n))))
        repeated = 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
        score = 1 - self.penalty * repeated
        status = Status.CORRECT if score >= 1 else Status.INCORRECT if score <= 0 else Status.PARTIAL
        return Verdict(status, score, f"{repeated:.1%} of the {self.n}-grams repeat", parts={"repeated": repeated})
