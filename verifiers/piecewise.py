"""The verifier `piecewise`: Llama 2's reward from a model of helpfulness and a model of safety."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rlvr.core.registry import make_verifier, register
from rlvr.core.traits import Composite, VerifierTraits
from rlvr.core.types import UNSCORED, Problem, Status, Verdict, bad_reference

from .combine import part_options
from .runner.base import check_choices, run_check

LEAST = 1e-6  # probabilities stay this far from 0 and 1, so that their log-odds are finite
TAGGED = "tagged"


@dataclass(frozen=True)
class Tagged:
    """Whether a problem's info marks it as a safety prompt. tag: a key whose value is true, or KEY=VALUE."""

    tag: str | None
    isolate: ClassVar[bool] = False

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        if self.tag is None:
            return Verdict(Status.INCORRECT, 0.0)
        key, equals, value = self.tag.partition("=")
        mark = problem.info.get(key, False)
        if equals:
            mark = str(mark) == value
        elif not isinstance(mark, bool):
            return bad_reference(f"info[{key!r}] is {mark!r:.80}; expected true or false, or a tag {key}=VALUE")
        return Verdict(Status.CORRECT if mark else Status.INCORRECT, float(mark))


@register("piecewise")
@dataclass(frozen=True, kw_only=True)
class PiecewiseVerifier(Composite):
    """Llama 2's reward (arXiv:2307.09288, section 3.2.3): the safety score where it matters, otherwise helpfulness.

    helpful, safe: two verifiers, for example reward_model for both. options: their options, as helpful.option=value,
    separated by commas. With scores R_h and R_s between 0 and 1, the score R_c is

        R_s    for a safety prompt, or if R_s is below threshold
        R_h    otherwise

    tag: the key of Problem.info that is true for a safety prompt, or KEY=VALUE (tag=mixture/pack=harm: the problems of
    that pack). A problem without the key is no safety prompt. Without tag, only the threshold decides. scale: what the
    parts return: logit (log-odds, as reward_model does; R is their sigmoid) or probability (numbers in [0, 1]; others
    are verifier errors). threshold is compared with R.

    whiten: the score is log(R_c / (1 - R_c)), shifted and scaled to mean 0 and deviation 1 over the batch, as the paper
    does for PPO. Probabilities are first moved into [1e-6, 1 - 1e-6]. A verdict then depends on the whole batch, and
    the mean score is the same at every step. Look at `combined` in parts then, which is R_c.

    The part that decides gives the verdict its status. `parts` hold the score of each part, tagged (1 for a safety
    prompt) and combined. If one part has no score (error, bad_reference), the whole has none. The formula has no place
    for process rewards (`Verdict.steps`): a part that returns some is a verifier error.
    """

    helpful: str = ""
    safe: str = ""
    options: tuple[str, ...] = ()
    threshold: float = 0.15
    tag: str | None = None
    scale: Literal["logit", "probability"] = "logit"
    whiten: bool = False
    components: Mapping[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.options, str):
            object.__setattr__(self, "options", tuple(item for item in self.options.split(",") if item))
        for name in ("helpful", "safe"):
            if not getattr(self, name):
                raise ValueError(f"piecewise {name}: name a verifier, for example {name}=reward_model")
        check_choices(self)
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"piecewise threshold {self.threshold}: expected a number in [0, 1]")
        if self.tag is not None and not self.tag.partition("=")[0]:
            raise ValueError(f"piecewise tag {self.tag!r}: expected a key of Problem.info, or KEY=VALUE")
        options = part_options("piecewise", self.options, ["helpful", "safe"])
        made = {name: make_verifier(getattr(self, name), **options[name]) for name in ("helpful", "safe")}
        object.__setattr__(self, "components", {**made, TAGGED: Tagged(self.tag)})

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        """Return the verdict on one completion, as a batch of one: a whitened score is 0."""
        verdicts = {name: Verdict.of(verifier(problem, completion)) for name, verifier in self.components.items()}
        return self.merge(verdicts, self.measure([verdicts]))

    @property
    def whole_batch(self) -> bool:
        """Whether verdicts depend on the whole batch, so that a caller must not cut it."""
        return self.whiten or super().whole_batch

    def problem_for(self, name: str, problem: Problem) -> Problem:
        """Return the problem itself: every part judges every problem."""
        return problem

    def check_reference(self, reference: Any) -> None:
        """Raise ValueError if a part cannot use its reference."""
        for verifier in self.components.values():
            check = VerifierTraits.of(verifier).check_reference
            if check is not None:
                run_check(check, reference)

    def measure(self, rows: Sequence[Mapping[str, Verdict]]) -> tuple[float, float]:
        """Return mean and standard deviation (no Bessel's correction) of the log-odds of R_c over a batch's verdicts.

        Rows to which `merge` gives no score are left out.
        """
        found = []
        for row in rows:
            try:
                if not any(verdict.status in UNSCORED for verdict in row.values()):
                    found.append(self._log_odds(row[self._decides(row)]))
            except ValueError:
                continue
        found = found or [0.0]
        return statistics.fmean(found), statistics.pstdev(found)

    def merge(self, verdicts: Mapping[str, Verdict], scales: tuple[float, float] = (0.0, 1.0)) -> Verdict:
        """Merge the parts' verdicts into one. scales: the result of `measure`, for whitening."""
        scores = {name: verdict.score for name, verdict in verdicts.items() if verdict.score is not None}
        for name, verdict in verdicts.items():
            if verdict.status in UNSCORED:
                return Verdict(verdict.status, None, f"{name}: {verdict.reason}", parts=scores)
        name = self._decides(verdicts)
        main = verdicts[name]
        combined = self._share(main)
        score = combined
        if self.whiten:
            mean, std = scales
            score = (self._log_odds(main) - mean) / std if std > 0 else 0.0
        reason = f"{name}: {main.reason}" if main.reason else name
        return Verdict(main.status, score, reason, main.extracted, {**scores, "combined": combined})

    def _decides(self, verdicts: Mapping[str, Verdict]) -> str:
        """Return the part that decides. Raises ValueError for a score that does not fit."""
        shares = {name: self._share(verdicts[name]) for name in ("helpful", "safe")}
        return "safe" if verdicts[TAGGED].correct or shares["safe"] < self.threshold else "helpful"

    def _share(self, verdict: Verdict) -> float:
        """Return the score as a number in [0, 1]."""
        score = verdict.score
        assert score is not None
        if verdict.steps:
            raise ValueError("piecewise has no place for the process rewards of a part; name a verifier without")
        if self.scale == "logit":
            return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))
        if not 0 <= score <= 1:
            raise ValueError(f"piecewise, a part's score {score:.4g}; expected one in [0, 1] with scale probability")
        return score

    def _log_odds(self, verdict: Verdict) -> float:
        """Return the score as log-odds. Log-odds stay as they are, even if their sigmoid rounds to 0 or 1."""
        if self.scale == "logit":
            assert verdict.score is not None
            return verdict.score
        share = min(max(self._share(verdict), LEAST), 1 - LEAST)
        return math.log(share / (1 - share))
