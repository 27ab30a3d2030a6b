"""The share of verdicts that may be errors before a run stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rlvr.types import UNSCORED, RunError, Verdict


class VerifierErrors(RunError):
    """Too many verdicts are errors of the verifier or of the data for the rewards to mean anything."""


class ErrorBudget:
    """The share of verdicts that may have no score (error or bad_reference).

    `check` raises VerifierErrors when the share over all verdicts so far exceeds `share`. It waits for `min_verdicts`
    verdicts, so that one bad item of a small first batch does not stop a run, unless all verdicts so far are errors.
    """

    def __init__(self, share: float, *, min_verdicts: int = 100) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"error budget {share}: expected a share in [0, 1]")
        self.share = share
        self.min_verdicts = min_verdicts
        self.num_verdicts = 0
        self.num_errors = 0
        self.reasons: Counter[str] = Counter()

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Count verdicts."""
        for verdict in verdicts:
            self.num_verdicts += 1
            if verdict.status in UNSCORED:
                self.num_errors += 1
                self.reasons[verdict.reason] += 1

    def check(self) -> None:
        """Raise VerifierErrors when the budget is exceeded."""
        if self.num_errors <= self.share * self.num_verdicts:
            return
        if self.num_verdicts < self.min_verdicts and self.num_errors < self.num_verdicts:
            return
        reason, count = self.reasons.most_common(1)[0]
        raise VerifierErrors(
            f"{reason} ({count} times, the most frequent); {self.num_errors} of {self.num_verdicts} verdicts have no "
            f"score (error or bad_reference), above the budget of {self.share:.1%}"
        )
