"""What is logged of a step: its metrics, the lines of its rollouts, the monitor's verdicts and the alarm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from rlvr.algo.credit import Advantage, Steps
from rlvr.config import Config, RolloutConfig
from rlvr.core.types import PACK, Completion, Group
from rlvr.model.memory.estimate import peak_memory
from rlvr.model.optim.health import dropped_updates
from rlvr.runs.log import rollout_records

from .monitor.alarm import GuardStop, RollBack
from .rollout.rollout import Timer
from .run import Run
from .step.rewards import (
    GroupRewards,
    credited_rewards,
    group_rewards,
    has_signal,
    is_uninformative,
    penalties,
    restore_places,
)


def rollout_metrics(
    groups: Sequence[Group],
    advantages: Sequence[Sequence[Advantage]],
    config: RolloutConfig | None = None,
    *,
    all_teach: bool = False,
    dropped: Sequence[GroupRewards] = (),
) -> dict[str, float]:
    """Return the metrics of a step's rollouts: scores, verdicts, lengths; with `config` also the penalties in use.

    All but "no_signal" are by the verdicts of the completions themselves, even where rewards are shuffled.

    groups: all that were sampled. advantages: of the kept ones. "parts/": the mean of each named component, over the
    rollouts that have it. "no_signal": the share of groups without signal; dropped: the rewards of the groups that
    dynamic sampling dropped, which have none if these are equal. all_teach: every kept group is trained on (a critic
    learns from all).
    """
    verdicts = [verdict for group in groups for verdict in group.unshuffled_verdicts]
    completions = [completion for group in groups for completion in group.completions]
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    tokens = sum(len(c.sampled_ids) for c in completions)
    parts: dict[str, list[float]] = {}
    for verdict in verdicts:
        for name, value in verdict.parts.items():
            parts.setdefault(name, []).append(value)
    if config is not None:
        for completion in completions:
            for name, value in penalties(completion, config).items():
                parts.setdefault(name, []).append(value)
    signal = sum(all_teach or has_signal(row) for row in advantages) + sum(not is_uninformative(row) for row in dropped)
    return {
        "reward": sum(scores) / max(len(scores), 1),
        "correct": sum(v.correct for v in verdicts) / len(verdicts),
        "no_signal": (len(groups) - signal) / len(groups),
        "truncated": sum(c.cut_off for c in completions) / len(completions),
        "unscored": sum(v.score is None for v in verdicts) / len(verdicts),
        "completion_tokens": tokens / len(completions),
        "rollout_tokens": float(tokens),
        **pack_metrics(groups),
        **turn_metrics(completions),
        **(dynamic_sampling(groups) if config is not None and config.resample_rounds else {}),
        **{f"status/{s}": n / len(verdicts) for s, n in sorted(Counter(str(v.status) for v in verdicts).items())},
        **{f"parts/{name}": sum(values) / len(values) for name, values in sorted(parts.items())},
    }


def pack_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the metrics of each pack of a mixture; none of other tasks.

    "pack/NAME/groups", and of its rollouts "reward" (mean score), "correct", "unscored" (shares), "completion_tokens".
    """
    packs = {name for group in groups if isinstance(name := group.problem.info.get(PACK), str)}
    found: dict[str, float] = {}
    for pack in sorted(packs):
        own = [group for group in groups if group.problem.info.get(PACK) == pack]
        verdicts = [verdict for group in own for verdict in group.unshuffled_verdicts]
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        tokens = [len(completion.sampled_ids) for group in own for completion in group.completions]
        found |= {
            f"pack/{pack}/groups": float(len(own)),
            f"pack/{pack}/reward": sum(scores) / max(len(scores), 1),
            f"pack/{pack}/correct": sum(verdict.correct for verdict in verdicts) / len(verdicts),
            f"pack/{pack}/unscored": 1.0 - len(scores) / len(verdicts),
            f"pack/{pack}/completion_tokens": sum(tokens) / len(tokens),
        }
    return found


def turn_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Return the metrics of rollouts with an environment; none of others.

    Per rollout: "turns/count" of the model, "turns/replies" to them, "turns/reply_tokens", "turns/reward" of all its
    turns. "turns/void": the share of the model's turns. "tools/calls": per rollout; "tools/failed": the share of the
    calls. "finish/": the share of rollouts that ended for each reason.
    """
    if not any(completion.turns for completion in completions):
        return {}
    own = [turn for completion in completions for turn in completion.turns if turn.sampled]
    replies = [turn for completion in completions for turn in completion.turns if not turn.sampled]
    count, calls = len(completions), sum(turn.calls for turn in replies)
    return {
        "turns/count": len(own) / count,
        "turns/replies": len(replies) / count,
        "turns/reply_tokens": sum(turn.length for turn in replies) / count,
        "turns/reward": sum(turn.reward for turn in own) / count,
        "turns/void": sum(turn.void for turn in own) / max(len(own), 1),
        "tools/calls": calls / count,
        "tools/failed": sum(turn.failed for turn in replies) / max(calls, 1),
        **{f"finish/{r}": n / count for r, n in sorted(Counter(c.finish_reason for c in completions).items())},
    }


def dynamic_sampling(groups: Sequence[Group]) -> dict[str, float]:
    """Return the groups sampled in a step, those that are trained on, and the extra rounds."""
    return {
        "groups_sampled": float(len(groups)),
        "groups_kept": float(sum(group.kept for group in groups)),
        "resample_rounds": float(max(group.round for group in groups)),
    }


def finish_step(
    run: Run,
    step: int,
    sampled: Sequence[Group],
    advantages: Sequence[Sequence[Advantage]],
    costs: Sequence[Sequence[float]] | None,
    stats: Mapping[str, float],
) -> GuardStop | RollBack | None:
    """Complete the metrics of a step (from 1), let the monitor verify its rollouts, and log both.

    sampled: all groups of the step; advantages, KL costs: of the kept ones (P x G). stats: metrics of the update.
    Returns what the reward-hacking alarm asks for; None where the run goes on. Raises NotFinite for gradients that are
    not finite in three steps in a row.
    """
    config, worker = run.config, run.worker
    metrics: dict[str, float] = {"step": step}
    dropped = credited_rewards([group for group in sampled if not group.kept], config, run.learner.policy.decode)
    metrics |= rollout_metrics(
        sampled, advantages, config.rollout, all_teach=config.algo.row.trains_on == "all", dropped=dropped
    )
    metrics |= stats
    monitored, signs = watch_step(run, sampled, metrics)
    rollouts = step_records(config, step, sampled, advantages, monitored, costs)
    learner = run.learner
    learner.token_values.add_to(rollouts, sampled, learner.policy.decode, learner.accelerator)
    total = sum(worker.timer.seconds.values())
    metrics |= {f"seconds/{phase}": round(value, 4) for phase, value in worker.timer.seconds.items()}
    metrics["memory/peak"] = round(peak_memory(run.learner.policy.device), 4)
    metrics |= idle_shares(worker.timer) if config.sampler.slice_tokens else {}
    metrics["tokens_per_second"] = round(metrics["rollout_tokens"] / max(total, 1e-9), 1)
    run.reporter.step(step, metrics, rollouts)
    run.gradients.observe(step, *dropped_updates(metrics))
    if run.monitor is None:
        return None
    alarm, guard = run.monitor.judge_step(step, signs, metrics, rollouts, run.reporter.log.path("alarms"))
    if alarm is not None:
        run.reporter.alarm(alarm)
    return guard


def idle_shares(timer: Timer) -> dict[str, float]:
    """Return the shares of a step's time in which trainer and sampler wait: "idle/trainer", "idle/sampler"."""
    total = max(sum(timer.seconds.values()), 1e-9)
    sampling = timer.seconds.get("sample", 0.0) + timer.seconds.get("verify", 0.0)
    return {
        "idle/trainer": round((sampling + timer.seconds.get("wait", 0.0)) / total, 4),
        "idle/sampler": round(max(1 - (sampling + timer.beside) / total, 0.0), 4),
    }


def step_records(
    config: Config,
    step: int,
    sampled: Sequence[Group],
    advantages: Sequence[Sequence[Advantage]],
    monitored: Sequence[Group] | None,
    costs: Sequence[Sequence[float]] | None,
) -> list[dict[str, Any]]:
    """Return the lines of rollouts.jsonl of a step, with those that dynamic sampling dropped.

    advantages, costs (P x G): of the kept groups; a dropped group has neither. A KL cost is logged beside the reward,
    which is the task's. monitored: the sampled groups with the monitor's verdicts.
    """
    untrained = [[None] * len(group.completions) for group in sampled]
    shown = [[list(a.values) if isinstance(a, Steps) else a for a in row] for row in advantages]
    records = rollout_records(
        step,
        sampled,
        group_rewards(sampled, config.rollout),
        restore_places(sampled, shown, untrained),
        monitored,
        marked=config.rollout.resample_rounds > 0,
    )
    if costs is not None:
        for record, cost in zip(records, chain.from_iterable(restore_places(sampled, costs, untrained)), strict=True):
            record["kl_cost"] = cost
    return records


def watch_step(
    run: Run, groups: Sequence[Group], metrics: dict[str, float]
) -> tuple[Sequence[Group] | None, dict[str, str]]:
    """Return the groups with the monitor's verdicts, and the signs of reward hacking; add to the metrics."""
    if run.monitor is None:
        return None, {}
    with run.worker.timer("monitor"):
        monitored = run.monitor.verify(groups, run.worker.accelerator)
    added, signs = run.monitor.observe(groups, monitored, metrics)
    metrics |= added
    return monitored, signs
