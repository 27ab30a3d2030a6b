"""The loop: sample groups, verify them, turn rewards into advantages, move the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.alarm import AlarmStop, alarm_record
from rlvr.checkpoint import checkpoint_folder, delete_old_checkpoints, save_checkpoint
from rlvr.distributed import sum_tensor
from rlvr.overlap import Rollouts
from rlvr.rollout import group_advantages, group_rewards
from rlvr.run import Run
from rlvr.runlog import rollout_records
from rlvr.score import subtract_kl, subtracts_kl
from rlvr.seeding import derive_seed
from rlvr.signals import StopRequest
from rlvr.summary import summarize
from rlvr.types import Group
from rlvr.update import update


def train(run: Run, start: int = 0) -> StopRequest:
    """Steps `start` to config.run.steps. Returns the request that ended it early, falsy where none did."""
    config = run.config
    stop = run.stop
    with stop.answering(), Rollouts(run, start) as rollouts:
        for step in range(start, config.run.steps):
            stop.work = f"step {step + 1}"
            run.seconds.clear()
            torch.manual_seed(derive_seed(config.run.seed, "step", step))
            groups = rollouts.take(step)
            rewards = group_rewards(groups, config.rollout)
            metrics: dict[str, float] = {"step": step + 1}
            if subtracts_kl(run):
                rewards, metrics["kl"] = subtract_kl(run, groups, rewards)
            advantages = group_advantages(groups, rewards, config.algo)
            stats = update(run, step, groups, advantages)
            rollouts.load_weights()
            metrics |= {**summarize(groups, advantages, config.rollout), **rollouts.describe(step), **stats}
            judged, signs = watch(run, groups, metrics)
            records = rollout_records(step + 1, groups, rewards, advantages, judged)
            finish_step(run, step + 1, metrics, records)
            if alarm_ends(run, step + 1, signs, metrics, records):
                save(run, step + 1, rollouts)
                raise AlarmStop(step + 1, signs, run.log.path("alarms"))
            if stop_requested(stop, run.accelerator):
                break
            if is_due(step + 1, config.eval.every) and run.evaluate:
                run.evaluate(step + 1)
                if stop_requested(stop, run.accelerator):
                    break
            if is_due(step + 1, config.run.save_every) or step + 1 == config.run.steps:
                save(run, step + 1, rollouts)
        else:
            return StopRequest()  # a signal after the last step ends nothing
        save(run, step + 1, rollouts)
    return stop


def watch(
    run: Run, groups: Sequence[Group], metrics: dict[str, float]
) -> tuple[Sequence[Group] | None, dict[str, str]]:
    """The rollouts as the shadow judges them, and the signs of hacking; its numbers are added to the metrics."""
    if run.shadow is None:
        return None, {}
    with run.timed("shadow"):
        judged = run.shadow.judge(groups, run.accelerator)
    found, signs = run.shadow.observe(groups, judged, metrics)
    metrics |= found
    return judged, signs


def alarm_ends(
    run: Run, step: int, signs: dict[str, str], metrics: dict[str, float], rollouts: list[dict[str, Any]]
) -> bool:
    """Raises the alarm in the step in which it is due. Returns whether it is to end the run."""
    if run.shadow is None:
        return False
    streak, settings = run.shadow.streak(), run.config.shadow
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


def save(run: Run, step: int, rollouts: Rollouts) -> None:
    """A checkpoint after `step` steps, with the batches sampled ahead, written by the main process."""
    if run.accelerator.is_main_process:
        settings = run.config.run
        folder = checkpoint_folder(settings.out_dir, step)
        state = {"log": run.log.position()}
        save_checkpoint(folder, step, run.policy, run.optimizer, state, run.critic, rollouts.ahead)
        delete_old_checkpoints(settings.out_dir, settings.keep_checkpoints)
    run.accelerator.wait_for_everyone()
