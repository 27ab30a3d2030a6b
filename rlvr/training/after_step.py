"""What follows the update of a step: checks, the monitor, logs, the alarm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from rlvr.algo.credit import Advantage, Steps
from rlvr.config import Config
from rlvr.core.types import Group
from rlvr.model.health import check_weights
from rlvr.runs.log import rollout_records
from rlvr.training.alarm import AlarmStop, alarm_record, best_step
from rlvr.training.guards import RollBack
from rlvr.training.rollout.worker import RolloutWorker
from rlvr.training.run import Run
from rlvr.training.step.learner import Learner
from rlvr.training.step.rewards import among_all, credited_rewards, group_rewards
from rlvr.training.summary import rollout_metrics


def is_due(step: int, every: int) -> bool:
    """Return whether something that happens every `every` steps (0: never) happens after this one."""
    return every > 0 and step % every == 0


def gradient_advice(run: Run) -> str:
    """Return the hint that ends the error for gradients that are not finite."""
    optim, model, log = run.config.optim, run.config.model, run.reporter.log
    return (
        f"--optim.lr ({optim.lr:g}), --model.dtype ({model.dtype}; float32 does not overflow where the others do) and "
        f"the rollouts of these steps in {log.path('rollouts')}; the checkpoints in {log.out_dir} stay"
    )


def check_trained(learner: Learner, step: int) -> None:
    """Raise NotFinite where a trained weight, of the policy or the critic, has become NaN or infinite."""
    config = learner.config
    policy = [(name, weight) for name, weight in learner.policy.model.named_parameters() if weight.requires_grad]
    trained = [("policy", policy, "--optim.lr", config.optim.lr)]
    if learner.critic is not None:
        trained.append(
            ("critic", list(learner.critic.named_parameters().items()), "--critic.lr", learner.critic.settings.lr)
        )
    for name, weights, flag, lr in trained:
        hint = f"look at {flag} ({lr:g}); the checkpoints in {config.run.out_dir} stay"
        check_weights(weights, f"stopped at step {step}, whose updates broke the {name} ({hint})")


def finish_step(
    run: Run,
    step: int,
    sampled: Sequence[Group],
    advantages: Sequence[Sequence[Advantage]],
    costs: Sequence[Sequence[float]] | None,
    stats: Mapping[str, float],
) -> tuple[dict[str, float], list[dict[str, Any]], dict[str, str]]:
    """Complete the metrics of a step (from 1), let the monitor verify its rollouts, and log both.

    sampled: all groups of the step; advantages, KL costs: of the kept ones (P x G). stats: metrics of the update.
    Returns the logged metrics, the lines of its rollouts, and the signs of reward hacking (see rlvr.training.alarm).
    """
    config, worker = run.config, run.worker
    metrics: dict[str, float] = {"step": step}
    dropped = credited_rewards([group for group in sampled if not group.kept], config, run.learner.policy.decode)
    metrics |= rollout_metrics(
        sampled, advantages, config.rollout, all_teach=config.algo.row.trains_on == "all", dropped=dropped
    )
    metrics |= stats
    monitored, signs = watch(worker, sampled, metrics)
    rollouts = step_records(config, step, sampled, advantages, monitored, costs)
    total = sum(worker.timer.seconds.values())
    metrics |= {f"seconds/{phase}": round(value, 4) for phase, value in worker.timer.seconds.items()}
    metrics["tokens_per_second"] = round(metrics["rollout_tokens"] / max(total, 1e-9), 1)
    run.reporter.step(step, metrics, rollouts)
    return metrics, rollouts, signs


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
    records = rollout_records(
        step,
        sampled,
        group_rewards(sampled, config.rollout),
        among_all(sampled, [[logged(advantage) for advantage in row] for row in advantages], untrained),
        monitored,
        marked=config.rollout.resample_rounds > 0,
    )
    if costs is not None:
        for record, cost in zip(records, chain.from_iterable(among_all(sampled, costs, untrained)), strict=True):
            record["kl_cost"] = cost
    return records


def logged(advantage: Advantage) -> float | list[float]:
    """Return an advantage as rollouts.jsonl holds it: with credit per turn or step, those of the steps."""
    return list(advantage.values) if isinstance(advantage, Steps) else advantage


def watch(
    worker: RolloutWorker, groups: Sequence[Group], metrics: dict[str, float]
) -> tuple[Sequence[Group] | None, dict[str, str]]:
    """Return the groups with the monitor's verdicts, and the signs of reward hacking; add to the metrics."""
    if worker.monitor is None:
        return None, {}
    with worker.timer("monitor"):
        monitored = worker.monitor.verify(groups, worker.accelerator)
    added, signs = worker.monitor.observe(groups, monitored, metrics)
    metrics |= added
    return monitored, signs


def log_alarm(
    run: Run, step: int, signs: Mapping[str, str], metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]
) -> AlarmStop | RollBack | None:
    """Log the alarm when due. Return the exception that monitor.on_alarm asks for; None where the run goes on."""
    monitor = run.worker.monitor
    if monitor is None:
        return None
    holds, begins = monitor.alarm()
    if begins:
        run.reporter.alarm(alarm_record(step, signs, metrics, rollouts))
    if holds and monitor.config.on_alarm == "stop":
        return AlarmStop(step, signs, run.reporter.log.path("alarms"))
    if holds and monitor.config.on_alarm == "rollback":
        reason = f"the reward-hacking alarm at step {step}: {'; '.join(signs.values())}"
        return RollBack(step, "alarm", reason, newest=min(best_step(monitor.rows), step - 1))
    return None
