"""pass@k of a policy: sample, verify, keep every answer, count. For the trainer's held-out problems and for `rlvr
eval`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from accelerate import Accelerator

from rlvr.core.heartbeat import beat
from rlvr.core.seeding import derive_seed
from rlvr.core.traits import BatchVerifier
from rlvr.core.types import PACK, Completion, Problem, Prompt, Sampler, Sampling, Verdict
from rlvr.distributed import gather, share
from rlvr.runs.log import turn_records

from ..rollout.episodes import Seed, TurnPlan, TurnPolicy, play
from ..rollout.rollout import count_given, judge
from .answers import Answer, Answers
from .passk import (
    Estimate,
    best_of_k_by_problem,
    best_of_kl,
    estimate_mean,
    estimate_pass_at_k,
    estimate_pass_power_k,
    estimate_unbounded_mean,
    is_right,
    maj_at_k_by_problem,
)


class Renders(Protocol):
    """The part of a policy that evaluation uses."""

    def render(self, prompt: Prompt) -> list[int]: ...


def evaluate(
    policy: Renders,
    sampler: Sampler,
    problems: Sequence[Problem],
    verifier: BatchVerifier,
    *,
    sampling: Sampling,
    samples: int,
    ks: Sequence[int] = (1,),
    threshold: float | None = None,
    seed: int = 0,
    answers_file: Path | None = None,
    answers_at_once: int = 512,
    progress: Callable[[int], None] | None = None,
    accelerator: Accelerator | None = None,
    plan: TurnPlan | None = None,
    keep: Callable[[Sequence[Answer]], None] | None = None,
    **others: BatchVerifier,
) -> dict[str, Any]:
    """Sample `samples` completions of each problem, verify them, and return `summarize` of the verdicts.

    Sample i of a problem has a seed of (seed, problem id, i). threshold: the score from which on pass@k counts an
    answer as right. answers_file: answers are appended once verified, and those that are there are not sampled again.
    answers_at_once: completions between two writes. progress: gets the number of problems done. accelerator: each rank
    answers its share, and all return the same. plan: the environment of several turns; its verdicts, if any, are those
    of all verifiers. keep: gets the answers of this rank with their texts, some at a time. others: further verifiers of
    the same completions, with another extraction of the answer ("lenient", "strict") or with scores for best@k
    ("selector").

    Raises ValueError for k > samples, for problems that share an id, and where nothing could be scored.
    """
    check_problems(problems, ks, samples)
    mine = problems if accelerator is None else share(problems, accelerator)
    answers = Answers(answers_file)
    done = 0
    size = max(1, answers_at_once // samples)
    for chunk in (mine[start : start + size] for start in range(0, len(mine), size)):
        missing = [(problem, [i for i in range(samples) if (problem.id, i) not in answers.held]) for problem in chunk]
        rows = answer([item for item in missing if item[1]], policy, sampler, verifier, others, sampling, seed, plan)
        answers.add(rows)
        if keep:
            keep(rows)
        done += len(chunk)
        if progress:
            progress(done)
    ordered = [answers.held[problem.id, i] for problem in mine for i in range(samples)]
    return summarize(ordered if accelerator is None else gather(ordered, accelerator), ks, threshold)


def answer(
    missing: Sequence[tuple[Problem, Sequence[int]]],
    policy: Renders,
    sampler: Sampler,
    verifier: BatchVerifier,
    others: Mapping[str, BatchVerifier],
    sampling: Sampling,
    seed: int,
    plan: TurnPlan | None = None,
) -> list[Answer]:
    """Sample the given samples of each problem, and verify them with the verifier and with each of the others."""
    if not missing:
        return []
    prompts = [policy.render(problem.prompt) for problem, _ in missing]
    names: list[list[Seed]] = [[(seed, "eval", problem.id, i) for i in indices] for problem, indices in missing]
    if plan is None:
        seeds = [[derive_seed(*name) for name in row] for row in names]
        groups = sampler.stream(prompts, sampling, seeds, lambda place, completions: beat())
    else:
        problems = [problem for problem, _ in missing]
        groups = play(cast(TurnPolicy, policy), sampler, problems, prompts, names, sampling, plan)
    keys = [(problem, i) for problem, indices in missing for i in indices]
    completions = [completion for group in groups for completion in group]
    if len(completions) != len(keys):
        raise ValueError(f"the sampler returned {len(completions)} completions for {len(keys)} seeds")
    return verify_answers([(*key, completion) for key, completion in zip(keys, completions)], verifier, others)


def verify_answers(
    rows: Sequence[tuple[Problem, int, Completion]], verifier: BatchVerifier, others: Mapping[str, BatchVerifier]
) -> list[Answer]:
    """Return the answers of (problem, sample, completion) with the verdicts of the verifier and of the others.

    Raises VerifierErrors where the verifier's budget of errors is exceeded.
    """
    played = [(problem, completion) for problem, _, completion in rows]
    verdicts = judge(played, verifier.verify)
    count_given([completion for _, completion in played], verifier)
    second: list[dict[str, Verdict]] = [{} for _ in rows]
    for name, other in others.items():
        judges = getattr(other, "judges", None)  # of a mixture's variants, which are those of some packs
        places = [place for place, (problem, _) in enumerate(played) if judges is None or judges(problem)]
        for place, verdict in zip(places, judge([played[place] for place in places], other.verify)):
            second[place][name] = verdict
    return [_record(*row, verdict, found) for row, verdict, found in zip(rows, verdicts, second)]


def _record(
    problem: Problem, sample: int, completion: Completion, verdict: Verdict, others: Mapping[str, Verdict]
) -> Answer:
    pack = problem.info.get(PACK)
    return {
        "id": problem.id,
        "sample": sample,
        **({"pack": pack} if isinstance(pack, str) else {}),
        "completion": completion.text,
        "status": str(verdict.status),
        "score": verdict.score,
        "correct": verdict.correct,
        "reason": verdict.reason,
        "extracted": verdict.extracted,
        **{f"{name}_status": str(other.status) for name, other in others.items()},
        **{f"{name}_correct": other.correct for name, other in others.items()},
        **{f"{name}_score": other.score for name, other in others.items()},
        "finish_reason": completion.finish_reason,
        "tokens": len(completion.sampled_ids),
        **turn_records(completion),
    }


def summarize(answers: Sequence[Answer], ks: Sequence[int], threshold: float | None = None) -> dict[str, Any]:
    """Return the metrics of an evaluation.

    For each k: "pass@k" with its 95 % interval "pass@k_ci"; from k = 2 on likewise "pass^k" (all k right), "maj@k" (the
    most frequent answer is right), and if a selector scored "best@k" with "best@k_kl", a bound of its KL divergence
    from the policy. Prefixes "lenient_" and "strict_": pass@k and pass^k by such a verdict; a pack without them counts
    by its own. Right means `correct`, or with `threshold` a score of at least that. "score": the mean over problems,
    with "score_ci" or None. "num_problems", "num_samples", the shares "truncated" and "filtered" (withheld by a
    server), "completion_tokens" (mean), "status" (counts). "packs": the same for each pack of a mixture.

    Verdicts without a score are the verifier's fault: they are left out, and counted in "unscored". A problem with
    fewer than k scored samples is left out of pass@k; those without any are "unscored_problems". Raises ValueError if
    none is left.
    """
    scored = [row for row in answers if row["score"] is not None]
    status = Counter(row["status"] for row in answers)
    problems = {row["id"] for row in answers}
    result: dict[str, Any] = {
        "num_problems": len(problems),
        "num_samples": len(answers),
        "truncated": sum(row["finish_reason"] in ("length", "context") for row in answers) / len(answers),
        "completion_tokens": sum(row["tokens"] for row in answers) / len(answers),
        "unscored": len(answers) - len(scored),
        "unscored_problems": len(problems - {row["id"] for row in scored}),
        "status": dict(status.most_common()),
    }
    if filtered := sum(row["finish_reason"] == "filter" for row in answers):
        result["filtered"] = filtered / len(answers)
    if threshold is not None:
        result["threshold"] = threshold
    result |= _pass_at(scored, "", ks, status, threshold)
    result |= _chosen_of(scored, ks, threshold)
    field = "correct" if threshold is None else "score"
    for prefix in ("lenient_", "strict_"):
        # From the same answers, so that the numbers can be compared.
        if _in_whole_packs(scored, f"{prefix}{field}"):
            result |= _pass_at(scored, prefix, ks, status, threshold)
    if by_pack := packs_of(answers, ks, threshold):
        result["packs"] = by_pack
    score = score_estimate(scored)
    known = math.isfinite(score.low) and math.isfinite(score.high)
    return {**result, "score": score.mean, "score_ci": [score.low, score.high] if known else None}


def _in_whole_packs(rows: Sequence[Answer], field: str) -> bool:
    """Whether answers have a field: all of a pack, or none of it, and some; outside mixtures all."""
    packs: dict[Any, set[bool]] = {}
    for row in rows:
        packs.setdefault(row.get("pack"), set()).add(field in row)
    return {True} in packs.values() and {True, False} not in packs.values()


def packs_of(answers: Sequence[Answer], ks: Sequence[int], threshold: float | None) -> dict[str, Any]:
    """Return what `summarize` gives for the answers of each pack of a mixture, None for one that cannot be measured."""
    packs = sorted({row["pack"] for row in answers if "pack" in row})
    found: dict[str, Any] = {}
    for pack in packs:
        own = [
            {name: held for name, held in row.items() if name != "pack"} for row in answers if row.get("pack") == pack
        ]
        try:
            found[pack] = summarize(own, ks, threshold)
        except ValueError:  # too few samples with a score
            found[pack] = None
    return found


def score_estimate(rows: Sequence[Answer]) -> Estimate:
    """Return the mean over problems of their samples' mean score, with a 95 % interval.

    If all scores are in [0, 1] it is that of pass@k, so that right-or-wrong scores give pass@1. Else (a reward model)
    it is a t interval; nan for a single problem, and where all problems score the same.
    """
    scores: dict[str, list[float]] = {}
    for row in rows:
        scores.setdefault(row["id"], []).append(row["score"])
    means = [math.fsum(values) / len(values) for values in scores.values()]
    bounded = all(0 <= row["score"] <= 1 for row in rows)
    return estimate_mean(means) if bounded else estimate_unbounded_mean(means)


def _pass_at(
    rows: Sequence[Answer], prefix: str, ks: Sequence[int], status: Counter[str], threshold: float | None
) -> Answer:
    totals = Counter(row["id"] for row in rows)
    right = Counter(row["id"] for row in rows if is_right(row, prefix, threshold))
    result: Answer = {}
    for k in ks:
        counts = [(n, right[problem]) for problem, n in totals.items() if n >= k]
        if not counts:
            found = ", ".join(f"{count} {name}" for name, count in status.most_common())
            raise ValueError(f"pass@{k}: no problem has {k} scored samples; the verdicts are {found}")
        estimate = estimate_pass_at_k(counts, k)
        result[f"{prefix}pass@{k}"] = estimate.mean
        result[f"{prefix}pass@{k}_ci"] = [estimate.low, estimate.high]
        if k > 1:
            power = estimate_pass_power_k(counts, k)
            result[f"{prefix}pass^{k}"] = power.mean
            result[f"{prefix}pass^{k}_ci"] = [power.low, power.high]
    return result


def _chosen_of(rows: Sequence[Answer], ks: Sequence[int], threshold: float | None) -> Answer:
    """Return maj@k and best@k from k = 2 on; problems with fewer samples that can be used are left out."""
    result: Answer = {}
    for k in (k for k in ks if k > 1):
        for name, values in (
            ("maj", maj_at_k_by_problem(rows, k, threshold)),
            ("best", best_of_k_by_problem(rows, k, threshold)),
        ):
            if values:
                estimate = estimate_mean(list(values.values()))
                result[f"{name}@{k}"] = estimate.mean
                result[f"{name}@{k}_ci"] = [estimate.low, estimate.high]
        if f"best@{k}" in result:
            result[f"best@{k}_kl"] = best_of_kl(k)
    return result


def check_problems(problems: Sequence[Problem], ks: Sequence[int], samples: int) -> None:
    """Raise ValueError without problems, for several that share an id, and for a k that the samples do not allow."""
    if not problems:
        raise ValueError("no problems to evaluate")
    if not ks:
        raise ValueError("no k to compute pass@k for")
    for k in ks:
        if not 1 <= k <= samples:
            raise ValueError(f"pass@{k} from {samples} samples; expected 1 <= k <= samples")
    repeated = [name for name, count in Counter(problem.id for problem in problems).items() if count > 1]
    if repeated:
        raise ValueError(f"several problems have the id {repeated[0]!r}; expected one each")
