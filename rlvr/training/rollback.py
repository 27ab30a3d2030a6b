"""Take a run back to its best checkpoint, from which it goes on at a lower learning rate.

A guard that finds the policy worse after a step raises `RollBack` (rlvr.training.guards), on all processes alike;
`rlvr.launch` catches it, calls `roll_back`, and trains on from the step that this returns. Any guard may raise it where
`can_roll_back(config)` holds: the policy before the first step is then a checkpoint too (step-000000), which is kept.
Held-out pass@1 is one such guard (rlvr/training/regression.py), the reward-hacking alarm another
(rlvr/training/after_step.py).

The steps after the checkpoint are undone, as those after the last checkpoint of a run that was killed: their lines are
cut from the logs, their checkpoints are deleted, and the steps are trained again. events.jsonl keeps what was undone,
and why. The checkpoint's state.json lists the rollbacks so far, each with its factor of the learning rate, and all
later checkpoints have the list too. So a run that is killed at any moment resumes exactly: until state.json is replaced
the guard finds the same again; from then on the undone checkpoints are those with a shorter list than an earlier one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr.config import Config
from rlvr.core.files.write import write_whole
from rlvr.distributed import gather
from rlvr.runs.log import RunLog
from rlvr.training.checkpoint import REFERENCE, checkpoint_folder, damage, list_checkpoints, load_checkpoint
from rlvr.training.evaluation.held_out import best_steps
from rlvr.training.guards import GuardStop, RollBack
from rlvr.training.problems.draws import Draws
from rlvr.training.run import Run
from rlvr.training.step.adaptive_coefficients import reset, restore_reference
from rlvr.training.step.learner import Learner

LOWER = 0.25  # what the learning rate is multiplied by, at each rollback
MOST = 3  # rollbacks of a run that goes on by itself


def can_roll_back(config: Config) -> bool:
    """Return whether a guard of the run may ask for a rollback."""
    on_alarm = config.monitor.on_alarm if config.monitor is not None else "warn"
    return "rollback" in (config.eval.on_regression, on_alarm)


def roll_back(run: Run, asked: RollBack) -> int:
    """Load the best checkpoint before a step, lower the learning rate, undo what follows it. Return its step.

    The best one is that with the highest held-out pass@k (of the smallest k) among those that can be compared with the
    last evaluation; where none was measured, the last one. All processes must call this. Raises GuardStop where there
    is no such checkpoint, and after more than MOST rollbacks; the run's last checkpoint is then the best one.
    """
    learner, log, config = run.learner, run.reporter.log, run.config
    accelerator = learner.accelerator
    accelerator.wait_for_everyone()  # until a checkpoint that was being written is there
    run.being_saved = set()
    places = [choose_target(log, asked)] if accelerator.is_main_process else []
    step = gather(places, accelerator)[0]
    if step is None:
        raise GuardStop(f"{asked.reason}; there is no whole checkpoint before it to go back to")
    folder = checkpoint_folder(config.run.out_dir, step)
    if accelerator.is_main_process:
        rollbacks = [*learner.rollbacks, {"kind": asked.kind, "from": asked.step, "to": step, "lr": LOWER}]
        message = f"{asked.reason}; back to step {step}, with {LOWER:g} times the learning rate"
        run.reporter.warn(message, "rollback", number=len(rollbacks), undone=asked.step - step, guard=asked.kind)
        undo_after(config.run.out_dir, step, rollbacks)
    accelerator.wait_for_everyone()
    restore_start_reference(learner, config.run.out_dir, folder)
    load_state(learner, folder, log)
    run.worker.draws = Draws(config, run.worker.problems, run.worker.shares)
    run.worker.sampler.load_weights(run.worker.policy)
    if run.worker.monitor is not None:
        run.worker.monitor.rows = log.read("metrics")
    if run.held_out is not None:
        run.held_out.reload()
    run.reporter.last_step = step
    if len(learner.rollbacks) > MOST:
        raise GuardStop(
            f"{asked.reason}, after {MOST} rollbacks to lower learning rates; the run ends with its best checkpoint, "
            f"{folder}. The same command goes on from it, with {learner.lr_scale:g} times --optim.lr"
        )
    return step


def choose_target(log: RunLog, asked: RollBack) -> int | None:
    """Return the step of the checkpoint to go back to; None without a whole one."""
    newest = asked.step - 1 if asked.newest is None else asked.newest
    steps = [step for step, folder in list_checkpoints(log.out_dir) if step <= newest and damage(folder) is None]
    best = best_steps(log.out_dir, log.read("eval"), steps)[-1:]
    return next(iter([*best, *steps[-1:]]), None)


def undo_after(out_dir: Path, step: int, rollbacks: list[dict[str, Any]]) -> None:
    """Write the rollbacks into the checkpoint of a step, and delete those that are undone by it."""
    path = checkpoint_folder(out_dir, step) / "state.json"
    state = json.loads(path.read_text("utf-8"))
    write_whole(path, json.dumps({**state, "rollbacks": rollbacks}, indent=2))
    delete_undone(out_dir)


def delete_undone(out_dir: Path) -> None:
    """Delete the checkpoints that a rollback has undone: those with fewer rollbacks than one of an earlier step."""
    most = 0
    for _, folder in list_checkpoints(out_dir):
        if damage(folder) is not None:
            continue
        count = len(json.loads((folder / "state.json").read_text("utf-8")).get("rollbacks", ()))
        if count < most:
            shutil.rmtree(folder)
        most = max(most, count)


def load_state(learner: Learner, folder: Path, log: RunLog) -> None:
    """Load a checkpoint into the learner, and truncate the logs to it."""
    state = load_checkpoint(folder, learner.policy, learner.optimizer, learner.critic)
    restore_reference(learner, folder, state)
    learner.rollbacks = list(state.get("rollbacks", ()))
    if learner.accelerator.is_main_process:
        log.truncate_to(state["log"], state["step"])
    learner.accelerator.wait_for_everyone()


def restore_start_reference(learner: Learner, out_dir: Path, folder: Path) -> None:
    """Give the reference policy the weights of the run's start, if it was reset after the checkpoint `folder`."""
    if learner.reference is not None and learner.algo.reference_every and not (folder / REFERENCE).exists():
        learner.policy.load_weights(checkpoint_folder(out_dir, 0))
        reset(learner, mix=1.0)


def rollback_state(learner: Learner) -> Mapping[str, Any]:
    """Return what state.json holds of the rollbacks so far."""
    return {"rollbacks": learner.rollbacks} if learner.rollbacks else {}
