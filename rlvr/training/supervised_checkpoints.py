"""Checkpoints of a supervised training: the fine-tuning of a policy, or the training of a reward model.

They are those of RL (rlvr.training.checkpoint), with weights and optimizer. The model that the training makes gets the
folder MADE; until it is whole, the checkpoints are in MADE.training beside it. There is nothing else to save: the items
of a step are a function of (seed, step).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator

from rlvr.config import Config
from rlvr.config.reward_model import RewardConfig
from rlvr.core.files.write import PARTIAL
from rlvr.model.health import GradientWatch
from rlvr.model.progress import enter
from rlvr.training.checkpoint import (
    Weights,
    checkpoint_folder,
    delete_old_checkpoints,
    load_checkpoint,
    newest_whole,
    unfinished,
)
from rlvr.training.snapshot import Snapshot, SnapshotWriter, take_snapshot
from rlvr.training.supervision.signals import StopRequest
from rlvr.training.supervision.stopping import lost_steps, stop_requested, stopped


def discard(made: Path) -> None:
    """Delete the checkpoints of a training whose model is whole.

    First they lose their name, so that none is taken for damaged after an interruption.
    """
    folder = unfinished(made)
    partial = folder.with_name(folder.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    if folder.exists():
        os.replace(folder, partial)
        shutil.rmtree(partial, ignore_errors=True)


@dataclass(frozen=True)
class Saving:
    """When checkpoints are saved: steps between them (0: only on a signal), how many are kept, and how (`beside`)."""

    every: int
    keep: int = 2
    beside: bool = False


class SupervisedCheckpoints(SnapshotWriter):
    """The checkpoints of one supervised training.

    made: the folder of the model that it makes. what: the training in words ("the fine-tuning"). config: of the command
    that resumes it. say: shows a line. stop: a signal ends the training after a step and its checkpoint. Two functions
    are called on the main process: `rewind(step)` before the training begins after `step` steps, to drop the lines that
    a log has of later ones, and `flush()` before each checkpoint, to put its lines on the disk. All processes must make
    the same calls.
    """

    def __init__(
        self,
        made: Path,
        what: str,
        saving: Saving,
        accelerator: Accelerator,
        *,
        config: Config | RewardConfig,
        sharded: bool,
        stop: StopRequest,
        say: Callable[[str], None],
        rewind: Callable[[int], object] = lambda step: None,
        flush: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(accelerator, sharded=sharded, beside=saving.beside)
        self.folder = unfinished(made)
        self.what, self.saving, self.config, self.stop, self.say = what, saving, config, stop, say
        self.rewind, self.flush = rewind, flush

    def steps(
        self, count: int, weights: Weights, optimizer: torch.optim.Optimizer, gradients: GradientWatch
    ) -> Iterator[int]:
        """Yield the steps (from 0) that are left of `count`, from the newest checkpoint on, and save between them.

        The last step is not saved: the model is then. Raises Stopped where a signal ended the training, after a
        checkpoint; ValueError where all checkpoints are damaged.
        """
        saved = start = self._restore(weights, optimizer, gradients)
        for step in range(start, count):
            self.stop.work = f"step {step + 1} of {self.what}"
            self.stop.unsaved = f"{lost_steps(saved, step + 1)} of {self.what}"
            enter(self.what, step + 1)
            self.check()
            yield step
            if step + 1 == count:
                break
            asked = stop_requested(self.stop, self.accelerator)
            if asked or (self.saving.every and (step + 1) % self.saving.every == 0):
                self._save(step + 1, weights, optimizer, gradients.streak)
                saved = step + 1
            if asked:
                self.finish()
                where = checkpoint_folder(self.folder, step + 1)
                raise stopped(self.stop, self.config, f"after a checkpoint of {self.what}, {where}")
        self.stop.work = self.stop.unsaved = ""
        enter("preparation", 0)

    def _restore(self, weights: Weights, optimizer: torch.optim.Optimizer, gradients: GradientWatch) -> int:
        main = self.accelerator.is_main_process
        found = newest_whole(self.folder, self.say, move=main)
        step = 0
        if found is not None:
            step, folder = found
            gradients.streak = load_checkpoint(folder, weights, optimizer)["streak"]
            self.say(f"resuming {self.what} from step {step} ({folder})")
        if main:
            self.rewind(step)
        self.accelerator.wait_for_everyone()
        return step

    def _save(self, step: int, weights: Weights, optimizer: torch.optim.Optimizer, streak: int) -> None:
        def take() -> Snapshot | None:
            if not self.writes:
                return None
            if self.accelerator.is_main_process:
                self.flush()
            return take_snapshot(step, weights, optimizer, {"streak": streak}, copied=self.beside)

        def saved() -> None:
            # While gradients are not finite, the last good checkpoint may be among the older ones.
            if self.accelerator.is_main_process and not streak:
                delete_old_checkpoints(self.folder, self.saving.keep)

        self.write(checkpoint_folder(self.folder, step), take, saved)
