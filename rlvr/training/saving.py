"""The checkpoints of a run: written while the training waits or, with run.async_save, in a thread beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from accelerate import Accelerator

from rlvr.distributed import Apart, gather
from rlvr.model.progress import enter
from rlvr.training.best import best_steps, kept_steps
from rlvr.training.checkpoint import checkpoint_folder, delete_old_checkpoints
from rlvr.training.following import adapted_state, is_reset, reference_tensors
from rlvr.training.prefetch import in_thread
from rlvr.training.rollback import can_roll_back, rollback_state
from rlvr.training.run import Run
from rlvr.training.snapshot import Snapshot, take_snapshot
from rlvr.types import Group, RunError

W = TypeVar("W", bound="SnapshotWriter")


@dataclass(frozen=True)
class Pending:
    """A checkpoint that is being written. saved: called once it is whole on all processes."""

    written: Future[None]
    saved: Callable[[], None]


class SnapshotWriter:
    """Writes checkpoints, one after the other.

    beside: a checkpoint is copied to the CPU's memory, and a thread writes the copy while the training goes on; the
    next one waits for it. It counts as saved once `check` or `finish` has found it whole, on all processes at the same
    place. On leaving what is being written is waited for. sharded: the weights are in shards, so that all processes
    write. All processes must make the same calls.
    """

    def __init__(self, accelerator: Accelerator, *, sharded: bool, beside: bool = False) -> None:
        self.accelerator = accelerator
        self.sharded = sharded
        self.beside = beside
        # The thread's gathers must not meet those of the training.
        self._group = Apart(accelerator).group if beside and sharded else None
        self._pending: Pending | None = None

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.finish()
        elif self._pending is not None:  # other processes may have gone: what it ends with is not compared
            wait([self._pending.written])

    @property
    def writing(self) -> bool:
        """Whether this process is writing."""
        return self._pending is not None and not self._pending.written.done()

    @property
    def writes(self) -> bool:
        """Whether this process writes a part of each checkpoint."""
        return self.sharded or self.accelerator.is_main_process

    def write(self, folder: Path, take: Callable[[], Snapshot | None], saved: Callable[[], None]) -> None:
        """Write what `take` returns (None where this process writes nothing), and call `saved` when all is whole.

        Raises RunError, in one line, where it or the one before cannot be written.
        """
        enter("checkpoint")
        self.finish()
        snapshot = take()
        written: Future[None] = Future()
        if snapshot is not None and self.beside:
            written = in_thread(lambda: snapshot.write(folder, self._group), "rlvr-checkpoint")
        else:
            if snapshot is not None:
                snapshot.write(folder)
            written.set_result(None)
        self._pending = Pending(written, saved)
        if not self.beside:
            self.finish()

    def check(self) -> None:
        """Complete the checkpoint that is being written if it is whole on all processes.

        Raises RunError, on all processes, where one could not write it.
        """
        if self._pending is None:
            return
        told = gather([outcome(self._pending.written)], self.accelerator)
        if any(told):
            pending, self._pending = self._pending, None
            if outcome(pending.written):
                pending.written.result()  # raises
            raise RunError(max(filter(None, told)))
        if None not in told:
            pending, self._pending = self._pending, None
            pending.saved()
            self.accelerator.wait_for_everyone()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written. Raises as `check`."""
        if self._pending is not None:
            wait([self._pending.written])
            self.check()


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


def outcome(written: Future[None]) -> str | None:
    """Return why a checkpoint could not be written; "" where it was, None where it is being written."""
    if not written.done():
        return None
    error = written.exception()
    return "" if error is None else str(error) or type(error).__name__
