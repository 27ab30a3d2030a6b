"""The end of a run, also an early one in good order: what is lost, whether to stop, what to tell and to record."""

from __future__ import annotations

import signal
from pathlib import Path

import torch
from accelerate import Accelerator

from rlvr.config import Config
from rlvr.config.reward_model import RewardConfig
from rlvr.distributed import sum_tensor
from rlvr.training.checkpoint.folders import is_fine_tuned, kept_steps, list_checkpoints, unfinished
from rlvr.training.supervision.signals import Stopped, StopRequest


def stop_requested(stop: StopRequest, accelerator: Accelerator) -> bool:
    """Return whether any process was asked to stop. All get the same answer, and so stop after the same step."""
    if accelerator.num_processes > 1:
        asked = sum_tensor(torch.tensor(float(bool(stop)), device=accelerator.device), accelerator)
        stop.elsewhere = bool(asked > 0)
        return stop.elsewhere
    return bool(stop)


def unsaved(out_dir: Path, step: int) -> str:
    """Return what is lost where the run is killed during a step: all steps since the last checkpoint."""
    return lost_steps(max(kept_steps(out_dir)), step)


def lost_steps(saved: int, step: int) -> str:
    """Return in words the steps after `saved` up to `step`."""
    return f"step {step}" if step == saved + 1 else f"steps {saved + 1} to {step}"


def stopped(stop: StopRequest, config: Config | RewardConfig, when: str) -> Stopped:
    """Return what to raise where a run has ended in good order because a signal asked for it."""
    by = stop.signal.name if stop.signal else "another process"
    return Stopped(f"stopped by {by} {when}; run {same_command(config)} to resume", stop.signal or signal.SIGINT)


def same_command(config: Config | RewardConfig) -> str:
    """Return what to run again: with --run.overwrite it would delete what has been done."""
    return f"the same command{' without --run.overwrite' if config.run.overwrite else ''}"


def what_is_left(config: Config) -> str:
    """Return where the same command would begin if the run were killed now."""
    saved = list_checkpoints(config.run.out_dir)
    if saved:
        return f"run {same_command(config)} to resume from step {saved[-1][0]} ({saved[-1][1]})"
    tuned, again = list_checkpoints(unfinished(config.run.out_dir / "start")), "start again"
    if is_fine_tuned(config.run.out_dir):
        again = "resume after the fine-tuning"
    elif tuned:
        again = f"resume the fine-tuning from step {tuned[-1][0]} ({tuned[-1][1]})"
    return f"run {same_command(config)} to {again}"
