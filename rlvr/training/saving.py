"""The checkpoints of a run: written while the training waits or, with run.async_save, in a thread beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from rlvr.distributed import Apart, gather
from rlvr.model.progress import enter
from rlvr.training.best import best_steps, kept_steps
from rlvr.training.checkpoint import checkpoint_folder, delete_old_checkpoints
from rlvr.training.following import adapted_state, is_reset, reference_tensors
from rlvr.training.prefetch import in_thread
from rlvr.training.run import Run
from rlvr.training.snapshot import take_snapshot
from rlvr.types import Group, RunError


@dataclass(frozen=True)
class Pending:
    """A checkpoint that is being written. keep_all: no older one is deleted for it."""

    step: int
    keep_all: bool
    written: Future[None]


class CheckpointSaver:
    """Saves the checkpoints of a run, one after the other, and deletes old ones when a new one is whole.

    With run.async_save a checkpoint is copied to the CPU's memory, and a thread writes the copy while the training goes
    on; the next one waits for it. It counts as saved once `check` or `finish` has found it whole, on all processes at
    the same place. On leaving what is being written is waited for. All processes must make the same calls.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.beside = run.config.run.async_save
        processes = run.learner.accelerator
        self.sharded = run.learner.policy.mesh is not None
        # The thread's gathers must not meet those of the training.
        self._group = Apart(processes).group if self.beside and self.sharded else None
        self._pending: Pending | None = None

    def __enter__(self) -> CheckpointSaver:
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

    def save(self, step: int, ahead: Mapping[int, Sequence[Group]], *, keep_all: bool = False) -> None:
        """Save the checkpoint after `step` steps, with the rollouts that are sampled ahead, by step.

        keep_all: delete no older one; while gradients are not finite, the last good checkpoint may be among them.
        Raises RunError, in one line, where it or the one before cannot be written.
        """
        enter("checkpoint")
        self.finish()
        learner, out_dir = self.run.learner, self.run.config.run.out_dir
        main = learner.accelerator.is_main_process
        written: Future[None] = Future()
        if main or self.sharded:
            state = {"log": self.run.reporter.log.position(), **adapted_state(learner)} if main else {}
            held = reference_tensors(learner) if is_reset(learner, step) else None
            drawn = self.run.worker.draws.state()
            parts = (learner.policy, learner.optimizer, state, learner.critic, ahead, drawn, held)
            snapshot, folder = take_snapshot(step, *parts, copied=self.beside), checkpoint_folder(out_dir, step)
            if self.beside:
                written = in_thread(lambda: snapshot.write(folder, self._group), "rlvr-checkpoint")
            else:
                snapshot.write(folder)
                written.set_result(None)
        else:
            written.set_result(None)
        self._pending = Pending(step, keep_all, written)
        self.run.being_saved = {step}
        if not self.beside:
            self.finish()

    def check(self) -> None:
        """Complete the checkpoint that is being written if it is whole on all processes.

        Raises RunError, on all processes, where one could not write it.
        """
        if self._pending is None:
            return
        told = gather([outcome(self._pending.written)], self.run.learner.accelerator)
        if any(told):
            pending, self._pending = self._pending, None
            if outcome(pending.written):
                pending.written.result()  # raises
            raise RunError(max(filter(None, told)))
        if None not in told:
            self._complete(self._pending)

    def finish(self) -> None:
        """Wait for the checkpoint that is being written. Raises as `check`."""
        if self._pending is not None:
            wait([self._pending.written])
            self.check()

    def _complete(self, pending: Pending) -> None:
        self._pending, self.run.being_saved = None, set()
        learner, log, settings = self.run.learner, self.run.reporter.log, self.run.config.run
        if learner.accelerator.is_main_process:
            if not pending.keep_all:
                kept = best_steps(settings.out_dir, log.read("eval"), kept_steps(settings.out_dir))
                delete_old_checkpoints(settings.out_dir, settings.keep_checkpoints, kept if settings.keep_best else ())
            self.run.reporter.saved(pending.step)
        learner.accelerator.wait_for_everyone()


def outcome(written: Future[None]) -> str | None:
    """Return why a checkpoint could not be written; "" where it was, None where it is being written."""
    if not written.done():
        return None
    error = written.exception()
    return "" if error is None else str(error) or type(error).__name__
