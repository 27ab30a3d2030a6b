"""The state of a run on the disk: saved after steps, restored at the start, rolled back when a guard asks for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlvr.config import Config
from rlvr.core.files.write import write_whole
from rlvr.core.types import Group, Task
from rlvr.distributed import gather
from rlvr.model.logprobs.critic import Critic
from rlvr.model.memory.estimate import microbatch_tokens
from rlvr.runs.log import STREAMS, RunLog

from .callbacks import Reporter
from .checkpoint.checkpoint import REFERENCE, Snapshot, SnapshotWriter, load_checkpoint, save_checkpoint, take_snapshot
from .checkpoint.folders import (
    best_steps,
    checkpoint_folder,
    delete_old_checkpoints,
    find_damage,
    find_newest_whole,
    kept_steps,
    list_checkpoints,
)
from .monitor.alarm import GuardStop, RollBack
from .problems.draws import Draws
from .rollout.episodes import plan_of
from .run import Run
from .sft.sft import SupervisedCheckpoints, discard, sft
from .step.distillation.teacher import open_teacher
from .step.learner import Learner, held_tensors, reset_reference, restore_reference
from .supervision.signals import StopRequest

# A rollback. A guard (rlvr.training.monitor.alarm) that finds the policy worse raises `RollBack` on all ranks;
# rlvr.launch catches it, calls `roll_back`, and trains on from the step that it returns, at a lower learning rate. The
# steps after that checkpoint are undone: their lines are cut from the logs, their checkpoints deleted; events.jsonl
# keeps what was undone, and why. Each state.json lists the rollbacks so far. So a run that is killed at any moment
# resumes exactly: before state.json is replaced the guard finds the same again; after it the undone checkpoints are
# those with a shorter list than an earlier one.

LOWER = 0.25  # what the learning rate is multiplied by, at each rollback
MOST = 3  # rollbacks of a run that goes on by itself


def can_roll_back(config: Config) -> bool:
    """Return whether a guard of the run may ask for a rollback."""
    on_alarm = config.monitor.on_alarm if config.monitor is not None else "warn"
    return "rollback" in (config.eval.on_regression, on_alarm)


def roll_back(run: Run, asked: RollBack) -> int:
    """Load the best checkpoint before a step, lower the learning rate, undo what follows it. Return its step.

    The best one has the highest held-out pass@k (smallest k) among those comparable with the last evaluation; without
    evaluations it is the last one. All ranks must call this. Raises GuardStop without such a checkpoint, and after more
    than MOST rollbacks; the run's last checkpoint is then the best one.
    """
    learner, log, config = run.learner, run.reporter.log, run.config
    accelerator = learner.accelerator
    accelerator.wait_for_everyone()  # until a checkpoint that was being written is there
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
    if learner.reference is not None and learner.algo.reference_every and not (folder / REFERENCE).exists():
        # It was reset after this checkpoint: take the weights of the run's start.
        learner.policy.load_weights(checkpoint_folder(config.run.out_dir, 0))
        reset_reference(learner, mix=1.0)
    load_state(learner, folder, log)
    run.worker.draws = Draws(config, run.worker.problems, run.worker.shares)
    run.worker.sampler.load_weights(run.worker.policy)
    if run.monitor is not None:
        run.monitor.rows = log.read("metrics")
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
    steps = [step for step, folder in list_checkpoints(log.out_dir) if step <= newest and find_damage(folder) is None]
    best = best_steps(log.out_dir, log.read("eval"), steps)[-1:]
    return next(iter([*best, *steps[-1:]]), None)


def undo_after(out_dir: Path, step: int, rollbacks: list[dict[str, Any]]) -> None:
    """Write the rollbacks into the checkpoint of a step, and delete the checkpoints that they undo."""
    path = checkpoint_folder(out_dir, step) / "state.json"
    state = json.loads(path.read_text("utf-8"))
    write_whole(path, json.dumps({**state, "rollbacks": rollbacks}, indent=2))
    delete_undone(out_dir)


def delete_undone(out_dir: Path) -> None:
    """Delete the checkpoints that a rollback has undone: those with fewer rollbacks than one of an earlier step."""
    most = 0
    for _, folder in list_checkpoints(out_dir):
        if find_damage(folder) is not None:
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


class CheckpointSaver(SnapshotWriter):
    """Saves the checkpoints of a run, and deletes old ones when a new one is whole."""

    def __init__(self, run: Run) -> None:
        learner = run.learner
        super().__init__(learner.accelerator, sharded=learner.policy.mesh is not None, beside=run.config.run.async_save)
        self.run = run
        self.being_saved: set[int] = set()  # the step whose checkpoint is being written beside the training

    def holds_best(self, step: int) -> bool:
        """Return whether run.keep_best asks for a checkpoint of a step: of all weights that exist it measured best."""
        if not self.run.config.run.keep_best:
            return False
        best, log = list[int](), self.run.reporter.log
        if self.accelerator.is_main_process:
            best = best_steps(log.out_dir, log.read("eval"), kept_steps(log.out_dir) | self.being_saved | {step})
        return step in gather(best, self.accelerator)[-1:]

    def save(self, step: int, ahead: Mapping[int, Sequence[Group]]) -> None:
        """Save the checkpoint after `step` steps, with the rollouts that are sampled ahead, by step.

        Raises as `write`.
        """
        folder = checkpoint_folder(self.run.config.run.out_dir, step)

        def take() -> Snapshot | None:
            self.being_saved = {step}
            if not self.writes:
                return None
            learner = self.run.learner
            state = dict[str, Any]()
            if self.accelerator.is_main_process:
                state = {"log": self.run.reporter.log.position()}
                state |= {"adapted": dict(learner.adapted)} if learner.adapted else {}
                state |= {"rollbacks": learner.rollbacks} if learner.rollbacks else {}
            held = held_tensors(learner, step)
            drawn = self.run.worker.draws.state()
            parts = (learner.policy, learner.optimizer, state, learner.critic, ahead, drawn, held)
            return take_snapshot(step, *parts, copied=self.beside)

        self.write(folder, take, lambda: self._complete(step))

    def save_start(self, start: int) -> None:
        """Save the checkpoint before the first step if a rollback may need it, unless it is there."""
        if not (start == 0 < self.run.config.run.steps and can_roll_back(self.run.config)):
            return
        folder, accelerator = checkpoint_folder(self.run.config.run.out_dir, 0), self.accelerator
        if not any(gather([folder.exists()], accelerator)):
            self.save(0, {})

    def _complete(self, step: int) -> None:
        self.being_saved = set()
        log, settings = self.run.reporter.log, self.run.config.run
        if self.accelerator.is_main_process:
            # While gradients are not finite, the last good checkpoint may be among the older ones.
            if not self.run.gradients.streak:
                kept = best_steps(settings.out_dir, log.read("eval"), kept_steps(settings.out_dir))
                others = {*(kept if settings.keep_best else ()), *([0] if can_roll_back(self.run.config) else [])}
                delete_old_checkpoints(settings.out_dir, settings.keep_checkpoints, others)
            folder = checkpoint_folder(settings.out_dir, step)
            self.run.reporter.tell(lambda callback: callback.on_save(step, folder))


def restore(learner: Learner, task: Task, reporter: Reporter, say: Callable[[str], None], stop: StopRequest) -> int:
    """Load what is saved into the learner, and truncate the logs to it. Return the step to start from.

    Fine-tunes the policy first if sft.steps asks for it and that is not saved yet. Makes the learner's reference
    policy, critic and teacher, from the fine-tuned policy. `say` shows a line. Raises ValueError where no checkpoint
    is whole.
    """
    config, accelerator, log = learner.config, learner.accelerator, reporter.log
    out_dir = config.run.out_dir

    def tell(kind: str, line: str) -> None:
        say(line)
        reporter.event(kind, line)

    if accelerator.is_main_process:
        delete_undone(out_dir)
    accelerator.wait_for_everyone()
    saved = find_newest_whole(out_dir, partial(tell, "damaged"), move=accelerator.is_main_process)
    if not saved and accelerator.is_main_process:
        if log.read("metrics"):
            tell("restart", f"{out_dir} has no checkpoint yet: its steps are repeated, and its logs replaced")
        log.truncate_to(dict.fromkeys((*STREAMS, "parts"), 0), step=-1)
    if config.sft.steps:
        restore_start(learner, task, reporter, out_dir / "start", tell, stop)
    learner.reference = learner.policy.reference() if config.algo.needs_reference else None
    learner.critic = Critic(learner.policy, config.critic, config.optim) if config.critic is not None else None
    learner.teacher = open_teacher(config, learner.policy, task.verifier, accelerator)
    if learner.teacher is not None and (warning := learner.teacher.warn_of_unknown(learner.policy, task.train[0])):
        reporter.warn(warning)
    if not saved:
        accelerator.wait_for_everyone()  # until the logs have been truncated
        return 0
    step, folder = saved
    load_state(learner, folder, log)
    reporter.last_step = step
    tell("resume", f"resuming from step {step} ({folder})")
    return step


def restore_start(
    learner: Learner, task: Task, reporter: Reporter, folder: Path, tell: Callable[[str, str], None], stop: StopRequest
) -> None:
    """Load the fine-tuned policy from `folder`, or fine-tune and save it there. tell: of a kind, a line."""
    why_not = find_damage(folder)
    if why_not is None:
        load_checkpoint(folder, learner.policy, None)
        if learner.accelerator.is_main_process:
            discard(folder)
        return
    if folder.exists():
        tell("damaged", f"{folder} is damaged ({why_not}); fine-tuning again")
    fine_tune(learner, task, reporter, folder, partial(tell, "fine-tuning"), stop)
    with stop.busy("saving the fine-tuned policy"):
        if learner.accelerator.is_main_process or learner.policy.mesh is not None:
            save_checkpoint(folder, 0, learner.policy, None, {})
        if learner.accelerator.is_main_process:
            discard(folder)


def fine_tune(
    learner: Learner, task: Task, reporter: Reporter, folder: Path, say: Callable[[str], None], stop: StopRequest
) -> None:
    """Fine-tune the policy on the task's demonstrations, from the last checkpoint on where an earlier run left any."""
    config = learner.config
    reporter.tell(lambda callback: callback.on_sft_begin(config.sft.steps))
    with SupervisedCheckpoints(
        folder,
        "the fine-tuning",
        learner.accelerator,
        every=config.sft.save_every,
        keep=config.run.keep_checkpoints,
        beside=config.run.async_save,
        config=config,
        sharded=learner.policy.mesh is not None,
        stop=stop,
        say=say,
    ) as checkpoints:
        sft(
            learner.policy,
            task.demonstrations,
            config.sft,
            learner.accelerator,
            seed=config.run.seed,
            tokens_per_microbatch=microbatch_tokens(learner.policy, config),
            plan=plan_of(learner.policy, task, config.rollout),
            optim=config.optim,
            on_step=lambda step, loss: reporter.tell(lambda callback: callback.on_sft_step(step, loss)),
            warn=reporter.warn,
            checkpoints=checkpoints,
        )
