"""The checkpoints of a run: written while the training waits or, with run.async_save, in a thread beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.core.types import Group
from rlvr.distributed import gather
from rlvr.training.checkpoint import checkpoint_folder, delete_old_checkpoints
from rlvr.training.evaluation.held_out import best_steps, kept_steps
from rlvr.training.rollback import can_roll_back, rollback_state
from rlvr.training.run import Run
from rlvr.training.snapshot import Snapshot, SnapshotWriter, take_snapshot
from rlvr.training.step.adaptive_coefficients import adapted_state, is_reset, reference_tensors


class CheckpointSaver(SnapshotWriter):
    """Saves the checkpoints of a run, and deletes old ones when a new one is whole."""

    def __init__(self, run: Run) -> None:
        learner = run.learner
        super().__init__(learner.accelerator, sharded=learner.policy.mesh is not None, beside=run.config.run.async_save)
        self.run = run

    def save(self, step: int, ahead: Mapping[int, Sequence[Group]], *, keep_all: bool = False) -> None:
        """Save the checkpoint after `step` steps, with the rollouts that are sampled ahead, by step.

        keep_all: delete no older one; while gradients are not finite, the last good checkpoint may be among them.
        Raises as `write`.
        """
        folder = checkpoint_folder(self.run.config.run.out_dir, step)

        def take() -> Snapshot | None:
            self.run.being_saved = {step}
            if not self.writes:
                return None
            learner = self.run.learner
            state = dict[str, Any]()
            if self.accelerator.is_main_process:
                state = {"log": self.run.reporter.log.position(), **adapted_state(learner), **rollback_state(learner)}
            held = reference_tensors(learner) if is_reset(learner, step) else None
            drawn = self.run.worker.draws.state()
            parts = (learner.policy, learner.optimizer, state, learner.critic, ahead, drawn, held)
            return take_snapshot(step, *parts, copied=self.beside)

        self.write(folder, take, lambda: self._complete(step, keep_all))

    def save_start(self) -> None:
        """Save the checkpoint before the first step, unless it is there."""
        folder, accelerator = checkpoint_folder(self.run.config.run.out_dir, 0), self.accelerator
        if not any(gather([folder.exists()], accelerator)):
            self.save(0, {})

    def _complete(self, step: int, keep_all: bool) -> None:
        self.run.being_saved = set()
        log, settings = self.run.reporter.log, self.run.config.run
        if self.accelerator.is_main_process:
            if not keep_all:
                kept = best_steps(settings.out_dir, log.read("eval"), kept_steps(settings.out_dir))
                others = {*(kept if settings.keep_best else ()), *([0] if can_roll_back(self.run.config) else [])}
                delete_old_checkpoints(settings.out_dir, settings.keep_checkpoints, others)
            self.run.reporter.saved(step)
