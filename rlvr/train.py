"""The loop: sample groups, verify them, turn rewards into advantages, move the policy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.config import Config
from rlvr.distributed import sum_tensor
from rlvr.model.health import GradientWatch, check_weights, dropped_updates, streak_of
from rlvr.runs.log import rollout_records
from rlvr.seeding import derive_seed
from rlvr.training.alarm import AlarmStop, alarm_record
from rlvr.training.best import best_steps, kept_steps
from rlvr.training.checkpoint import checkpoint_folder, delete_old_checkpoints, save_checkpoint
from rlvr.training.prefetch import RolloutPrefetcher
from rlvr.training.prepare import kl_costs, subtracts_kl
from rlvr.training.rollout import among_all, group_advantages, group_rewards
from rlvr.training.run import Run
from rlvr.training.signals import StopRequest
from rlvr.training.summary import summarize
from rlvr.training.update import update
from rlvr.types import Group


def train(run: Run, start: int = 0) -> StopRequest:
    """Steps `start` to config.run.steps. Returns the request that ended it early, falsy where none did."""
    config = run.config
    stop = run.stop
    gradients = GradientWatch(run.warn, look_at(run), streak_of(run.log.read("metrics")) if start else 0)
    with stop.answering(), RolloutPrefetcher(run, start) as rollouts:
        for step in range(start, config.run.steps):
            stop.work = f"step {step + 1}"
            stop.unsaved = unsaved(config.run.out_dir, step + 1)
            run.seconds.clear()
            torch.manual_seed(derive_seed(config.run.seed, "step", step))
            sampled = rollouts.take(step)
            groups = [group for group in sampled if group.kept]
            rewards = group_rewards(groups, config.rollout)
            metrics: dict[str, float] = {"step": step + 1}
            costs = None
            if subtracts_kl(run):
                costs, metrics["kl"] = kl_costs(run, groups)
            advantages = group_advantages(groups, rewards, config.algo, costs)
            stats = update(run, step, groups, advantages)
            check_trained(run, step + 1)
            rollouts.load_weights()
            metrics |= summarize(sampled, advantages, config.rollout, all_teach=run.critic is not None)
            metrics |= {**rollouts.describe(step), **stats}
            judged, signs = watch(run, sampled, metrics)
            records = step_records(config, step + 1, sampled, advantages, judged, costs)
            finish_step(run, step + 1, metrics, records)
            gradients.observe(step + 1, *dropped_updates(metrics))
            if alarm_ends(run, step + 1, signs, metrics, records):
                save(run, step + 1, rollouts)
                raise AlarmStop(step + 1, signs, run.log.path("alarms"))
            if stop_requested(stop, run.accelerator):
                break
            best = is_due(step + 1, config.eval.every) and bool(run.evaluate and run.evaluate(step + 1))
            if stop_requested(stop, run.accelerator):
                break
            if best or is_due(step + 1, config.run.save_every) or step + 1 == config.run.steps:
                save(run, step + 1, rollouts, keep_all=gradients.streak > 0)
        else:
            return StopRequest()  # a signal after the last step ends nothing
        save(run, step + 1, rollouts, keep_all=gradients.streak > 0)
    return stop


def unsaved(out_dir: Path, step: int) -> str:
    """What is lost where the run ends at once during a step: all steps since the last checkpoint."""
    saved = max(kept_steps(out_dir))
    return f"step {step}" if step == saved + 1 else f"steps {saved + 1} to {step}"


def look_at(run: Run) -> str:
    """What may be wrong where gradients are not finite."""
    optim, model = run.config.optim, run.config.model
    return (
        f"--optim.lr ({optim.lr:g}), --model.dtype ({model.dtype}; float32 does not overflow where the others do) and "
        f"the rollouts of these steps in {run.log.path('rollouts')}; the checkpoints in {run.log.out_dir} stay"
    )


def check_trained(run: Run, step: int) -> None:
    """Raises NotFinite where a weight that is trained, the critic's among them, has become NaN or infinite."""
    config = run.config
    trained = {"policy": ([(n, w) for n, w in run.policy.model.named_parameters() if w.requires_grad], config.optim.lr)}
    if run.critic is not None:
        trained["critic"] = (list(run.critic.named_parameters().items()), run.critic.settings.lr)
    for name, (weights, lr) in trained.items():
        flag = {"policy": "--optim.lr", "critic": "--critic.lr"}[name]
        hint = f"look at {flag} ({lr:g}); the checkpoints in {run.log.out_dir} stay"
        check_weights(weights, f"stopped at step {step}, whose updates broke the {name} ({hint})")


def step_records(
    config: Config,
    step: int,
    sampled: Sequence[Group],
    advantages: Sequence[Sequence[float]],
    judged: Sequence[Group] | None,
    costs: Sequence[Sequence[float]] | None,
) -> list[dict[str, Any]]:
    """Return the lines of a step's rollouts, those that dynamic sampling dropped among them.

    advantages, costs: of the kept groups, each G; what was dropped has neither. costs: of the KL divergence where it
    is in the reward of whole completions. They are logged beside the reward, which is that of the task.
    """
    untrained = [[None] * len(group.completions) for group in sampled]
    records = rollout_records(
        step,
        sampled,
        group_rewards(sampled, config.rollout),
        among_all(sampled, advantages, untrained),
        judged,
        marked=config.rollout.resample_rounds > 0,
    )
    if costs is not None:
        for record, cost in zip(records, chain.from_iterable(among_all(sampled, costs, untrained)), strict=True):
            record["kl_cost"] = cost
    return records


def watch(
    run: Run, groups: Sequence[Group], metrics: dict[str, float]
) -> tuple[Sequence[Group] | None, dict[str, str]]:
    """The rollouts as the monitor judges them, and the signs of hacking; its numbers are added to the metrics."""
    if run.monitor is None:
        return None, {}
    with run.timed("monitor"):
        judged = run.monitor.judge(groups, run.accelerator)
    found, signs = run.monitor.observe(groups, judged, metrics)
    metrics |= found
    return judged, signs


def alarm_ends(
    run: Run, step: int, signs: dict[str, str], metrics: dict[str, float], rollouts: list[dict[str, Any]]
) -> bool:
    """Raises the alarm in the step in which it is due. Returns whether it is to end the run."""
    if run.monitor is None:
        return False
    streak, settings = run.monitor.streak(), run.monitor.config
    if streak == settings.patience and run.accelerator.is_main_process:
        record = alarm_record(step, signs, metrics, rollouts)
        run.log.append("alarms", [record])
        if run.on_alarm:
            run.on_alarm(record)
    return settings.stop and streak >= settings.patience


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps (0: never) happens after this one."""
    return every > 0 and step % every == 0


def finish_step(run: Run, step: int, metrics: dict[str, float], rollouts: list[dict[str, Any]]) -> None:
    """Logs a step on the main process."""
    total = sum(run.seconds.values())
    metrics |= {f"seconds/{phase}": round(value, 4) for phase, value in run.seconds.items()}
    metrics["tokens_per_second"] = round(metrics["rollout_tokens"] / max(total, 1e-9), 1)
    if not run.accelerator.is_main_process:
        return
    run.log.append("metrics", [metrics])
    run.log.append("rollouts", rollouts)
    run.accelerator.log({k: v for k, v in metrics.items() if k != "step"}, step=step)
    if run.on_step:
        run.on_step(step, metrics, rollouts)


def stop_requested(stop: StopRequest, accelerator: Accelerator) -> bool:
    """Whether any process was asked to stop; all processes then stop after the same step, and know it."""
    if accelerator.num_processes > 1:
        asked = sum_tensor(torch.tensor(float(bool(stop)), device=accelerator.device), accelerator)
        stop.elsewhere = bool(asked > 0)
        return stop.elsewhere
    return bool(stop)


def save(run: Run, step: int, rollouts: RolloutPrefetcher, *, keep_all: bool = False) -> None:
    """A checkpoint after `step` steps, with the batches sampled ahead, written by the main process.

    keep_all: delete no older one; while gradients are not finite, the last good checkpoint may be among them.
    """
    if run.accelerator.is_main_process:
        settings = run.config.run
        folder = checkpoint_folder(settings.out_dir, step)
        state = {"log": run.log.position()}
        save_checkpoint(folder, step, run.policy, run.optimizer, state, run.critic, rollouts.ahead)
        if not keep_all:
            kept = best_steps(settings.out_dir, run.log.read("eval"), kept_steps(settings.out_dir))
            delete_old_checkpoints(settings.out_dir, settings.keep_checkpoints, kept if settings.keep_best else ())
    run.accelerator.wait_for_everyone()
