"""The verifier `combine`: one reward out of several."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlvr.core.registry import did_you_mean, make_verifier, register
from rlvr.core.traits import Composite, VerifierTraits
from rlvr.core.types import UNSCORED, Problem, Verdict

from .runner.base import check_choices, run_check

Scales = Mapping[str, tuple[float, float]]  # mean and standard deviation of a part over a batch


def weighted_sum(scores: Sequence[float], weights: Sequence[float], std_coef: float) -> float:
    """Return the sum of w * s."""
    return sum(weight * score for score, weight in zip(scores, weights))


def weighted_product(scores: Sequence[float], weights: Sequence[float], std_coef: float) -> float:
    """Return the product of s ** w. Raise ValueError below 0: two negative scores would make a good one."""
    if min(scores) < 0:
        raise ValueError(f"a product with the score {min(scores):.4g}; expected scores of at least 0: clip that part")
    return math.prod(score**weight for score, weight in zip(scores, weights))


def lowest(scores: Sequence[float], weights: Sequence[float], std_coef: float) -> float:
    """Return the minimum of w * s: the worst case over an ensemble (arXiv:2310.02743, eq. 3)."""
    return min(weight * score for score, weight in zip(scores, weights))


def mean_less_std(scores: Sequence[float], weights: Sequence[float], std_coef: float) -> float:
    """Return mean - std_coef * std of w * s (arXiv:2312.09244; 2310.02743 uses the variance), std over n."""
    values = [weight * score for score, weight in zip(scores, weights)]
    return statistics.fmean(values) - std_coef * statistics.pstdev(values)


REDUCERS: dict[str, Callable[[Sequence[float], Sequence[float], float], float]] = {
    "sum": weighted_sum,
    "product": weighted_product,
    "min": lowest,
    "mean_std": mean_less_std,
}


@register("combine")
@dataclass(frozen=True, kw_only=True)
class CombineVerifier(Composite):
    """One score from the scores of several verifiers: their weighted sum, product or minimum, with gates.

    parts: name:weight, separated by commas. The default weight is 1. With an alias, one verifier can be several parts:
    alias=name:weight. options: options of the parts, as name.option=value.

        parts=math:1,format:0.2    a right answer, and a little for the format
        parts=a=reward_model,b=reward_model options=a.model=rm/0,b.model=rm/1 reduce=min    the worst of two models

    reduce: how the scores s of the parts, with weights w, become one score.
        sum: sum of w s         product: product of s ** w, for scores from 0 up         min: minimum of w s
        mean_std: mean of w s minus std_coef (default 1) times their standard deviation
    whiten: parts whose scores are shifted and scaled to mean 0 and deviation 1 over the batch. clip: name=low:high,
    applied after whitening (whiten=a clip=a=-3:3). With whitened parts a verdict depends on the whole batch, and the
    mean score is the same at every step. Look at the reward in `parts` then. The alarm compares ranks only.

    gates: verifiers whose verdict must be correct; otherwise the score is closed_score. A gate need not be a part.
        parts=math gates=format    0 without the format
        parts=reward_model gates=format clip=reward_model=-3:3 closed_score=-3
    A closed gate never scores better than an open one: scores below closed_score are raised to it. Without closed_score
    a closed gate scores 0, and an open score below 0 is a verifier error.

    primary: the part or gate that gives the verdict its status, and so decides what pass@k counts as correct. Default:
    the first part. references: "shared": all parts get the problem's reference; "by_part": the reference is {name: the
    reference of that part}.

    Process rewards (`Verdict.steps`) of a part are multiplied by its weight, for every value of reduce. Behind a closed
    gate there are none. The verdict's `parts` hold the score of each part and gate before whitening and clipping. If
    one of them has no score (error, bad_reference), the whole has none.
    """

    parts: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    primary: str | None = None
    options: tuple[str, ...] = ()
    references: Literal["shared", "by_part"] = "shared"
    reduce: Literal["sum", "product", "min", "mean_std"] = "sum"
    std_coef: float | None = None
    whiten: tuple[str, ...] = ()
    clip: tuple[str, ...] = ()
    closed_score: float | None = None
    components: Mapping[str, Any] = field(init=False, repr=False, compare=False)
    weights: Mapping[str, float] = field(init=False, repr=False, compare=False)
    bounds: Mapping[str, tuple[float, float]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A command line or a data file gives lists as text.
        for name in ("parts", "gates", "options", "whiten", "clip"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, tuple(part for part in value.split(",") if part))
        parsed = [parse_part(part) for part in self.parts]
        weights = {name: weight for name, _, weight in parsed}
        if not weights or len(weights) < len(parsed):
            raise ValueError(
                f"combine parts {','.join(self.parts)!r}: expected different verifiers, as name:weight or "
                "alias=name:weight"
            )
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "bounds", dict(_parse_bounds(item) for item in self.clip))
        specs = {name: spec for name, spec, _ in parsed}
        gates = [_parse_gate(gate) for gate in self.gates]
        for name, spec in gates:
            specs.setdefault(name, spec)
        object.__setattr__(self, "gates", tuple(name for name, _ in gates))
        object.__setattr__(self, "primary", self.primary or next(iter(weights)))
        if self.primary not in specs:
            raise LookupError(
                f"combine has no part {self.primary!r} for primary; {did_you_mean(str(self.primary), specs)}"
            )
        check_choices(self)
        self._check_settings()
        options = part_options("combine", self.options, list(specs))
        made = {name: make_verifier(spec, **options[name]) for name, spec in specs.items()}
        object.__setattr__(self, "components", made)

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        """Return the verdict on one completion, as a batch of one: a whitened part scores 0."""
        verdicts = {
            name: Verdict.of(verifier(self.problem_for(name, problem), completion))
            for name, verifier in self.components.items()
        }
        return self.merge(verdicts, self.measure([verdicts]))

    @property
    def whole_batch(self) -> bool:
        """Whether verdicts depend on the whole batch, so that a caller must not cut it."""
        return bool(self.whiten) or super().whole_batch

    def problem_for(self, name: str, problem: Problem) -> Problem:
        """Return the problem as the part `name` sees it."""
        if self.references == "shared":
            return problem
        return replace(problem, reference=self._reference_for(name, problem.reference))

    def measure(self, rows: Sequence[Mapping[str, Verdict]]) -> Scales:
        """Return mean and standard deviation (no Bessel's correction) of each whitened part over a batch's verdicts."""
        scales = {}
        for name in self.whiten:
            scores = [row[name].score for row in rows]
            known = [score for score in scores if score is not None] or [0.0]
            scales[name] = (statistics.fmean(known), statistics.pstdev(known))
        return scales

    def merge(self, verdicts: Mapping[str, Verdict], scales: Scales | None = None) -> Verdict:
        """Merge the parts' verdicts into one. scales: the result of `measure`, for whitened parts."""
        assert self.primary is not None
        scores = {name: verdict.score for name, verdict in verdicts.items() if verdict.score is not None}
        for name, verdict in verdicts.items():
            if verdict.status in UNSCORED:
                return Verdict(verdict.status, None, f"{name}: {verdict.reason}", parts=scores)
        closed = [name for name in self.gates if not verdicts[name].correct]
        score = self._closed_score() if closed else self._open_score(scores, scales or {})
        reasons = [f"gate {name} is closed" for name in closed]
        reasons += [f"{name}: {verdict.reason}" for name, verdict in verdicts.items() if verdict.reason]
        main = verdicts[self.primary]
        steps = () if closed else self._steps(verdicts)
        return Verdict(main.status, score, "; ".join(reasons), main.extracted, scores, steps=steps)

    def check_reference(self, reference: Any) -> None:
        """Raise ValueError if a part cannot use its reference."""
        for name, verifier in self.components.items():
            check = VerifierTraits.of(verifier).check_reference
            if check is not None:
                run_check(check, self._reference_for(name, reference))

    def _steps(self, verdicts: Mapping[str, Verdict]) -> tuple[tuple[int, float], ...]:
        """Return the process rewards of all parts, each times its part's weight, in order."""
        found = [(end, weight * score) for name, weight in self.weights.items() for end, score in verdicts[name].steps]
        return tuple(sorted(found, key=lambda step: step[0]))

    def _closed_score(self) -> float:
        return 0.0 if self.closed_score is None else self.closed_score

    def _open_score(self, scores: Mapping[str, float], scales: Scales) -> float:
        """Reduce the parts to one score, never below that of a closed gate."""
        rescaled = [self._rescale(name, scores[name], scales) for name in self.weights]
        std_coef = 1.0 if self.std_coef is None else self.std_coef
        score = REDUCERS[self.reduce](rescaled, list(self.weights.values()), std_coef)
        if not self.gates or score >= self._closed_score():
            return score
        if self.closed_score is None:
            raise ValueError(
                f"combine scored {score:.4g} with its gates open, below the 0 of a closed one; "
                "set closed_score to the lowest score that should count"
            )
        return self.closed_score

    def _rescale(self, name: str, score: float, scales: Scales) -> float:
        if name in scales:
            mean, std = scales[name]
            score = (score - mean) / std if std > 0 else 0.0
        low, high = self.bounds.get(name, (-math.inf, math.inf))
        return min(max(score, low), high)

    def _check_settings(self) -> None:
        """Raise for settings that contradict each other or name an unknown part."""
        for option, names in (("whiten", self.whiten), ("clip", tuple(self.bounds))):
            for name in names:
                if name not in self.weights:
                    raise LookupError(f"combine has no part {name!r} for {option}; {did_you_mean(name, self.weights)}")
        rules = [
            (self.std_coef is None or self.reduce == "mean_std", "std_coef is used by reduce mean_std only"),
            (
                self.reduce != "product" or min(self.weights.values()) > 0,
                "reduce product takes weights as exponents: expected weights above 0",
            ),
            (self.closed_score is None or self.gates, "closed_score is given and there are no gates"),
            (
                not self.gates or not self.whiten or self.closed_score is not None,
                "whitened parts may score below 0, the score of a closed gate: set closed_score and clip",
            ),
        ]
        for holds, message in rules:
            if not holds:
                raise ValueError(f"combine: {message}")

    def _reference_for(self, name: str, reference: Any) -> Any:
        if self.references == "shared":
            return reference
        # A part without a reference may not need one (format, length). Otherwise it rejects None.
        return reference.get(name) if isinstance(reference, Mapping) else None


def part_options(verifier: str, items: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return {part: {option: value}} from items part.option=value. verifier: whose options these are, for messages.

    Raises ValueError for another form, and LookupError for a part that is not in `names`.
    """
    options: dict[str, dict[str, str]] = {name: {} for name in names}
    for item in items:
        target, equals, value = item.partition("=")
        name, dot, option = target.rpartition(".")
        if not equals or not dot:
            raise ValueError(f"{verifier} option {item!r}: expected part.option=value")
        if name not in options:
            raise LookupError(f"{verifier} has no part {name!r} for {item!r}; {did_you_mean(name, names)}")
        options[name][option] = value
    return options


def _split_alias(item: str, what: str = "combine part") -> tuple[str, str]:
    """Return alias=name as (alias, name). Without an alias, the name is its own alias."""
    alias, equals, name = item.strip().partition("=")
    if equals and not (alias and name):
        raise ValueError(f"{what} {item!r}: expected alias=name")
    return (alias, name) if equals else (alias, alias)


def parse_part(part: str, what: str = "combine part") -> tuple[str, str, float]:
    """Return [alias=]name[:weight] as (alias or name, name, weight). A name may hold a colon (module:attribute).

    what: the name of the part in errors.
    """
    text, colon, weight = part.strip().rpartition(":")
    try:
        number = float(weight)
    except ValueError:
        return *_split_alias(part, what), 1.0
    if not colon or not math.isfinite(number):
        raise ValueError(f"{what} {part!r}: expected name:weight with a finite weight")
    return *_split_alias(text, what), number


def _parse_gate(gate: str) -> tuple[str, str]:
    """Return [alias=]name as (alias or name, name). Raise ValueError for a weight, which only parts have."""
    try:
        float(gate.rpartition(":")[2])
    except ValueError:
        return _split_alias(gate, "combine gate")
    raise ValueError(f"combine gate {gate!r}: a gate has no weight; name it in parts too if it should add to the score")


def _parse_bounds(item: str) -> tuple[str, tuple[float, float]]:
    """Return name=low:high as (name, (low, high))."""
    name, _, bounds = item.partition("=")
    low, _, high = bounds.partition(":")
    try:
        numbers = float(low), float(high)
    except ValueError:
        numbers = math.nan, math.nan
    if not numbers[0] < numbers[1]:
        raise ValueError(f"combine clip {item!r}: expected part=low:high with low below high")
    return name, numbers
