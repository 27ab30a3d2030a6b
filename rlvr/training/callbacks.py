"""Callbacks: hooks notified during training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from rlvr.config import Config


class TrainerCallback:
    """Subclass it, override what you need, and pass an instance: `launch(config, callbacks=[MyCallback()])`.

    The methods are called on the main process only, in the order of the list (ours first), and never concurrently. They
    do nothing here. Steps are counted from 1; step 0 is the model before training. What a callback raises ends the run.
    A callback must not change what it is given.
    """

    def on_sft_begin(self, num_steps: int) -> None:
        """The supervised fine-tuning before the training begins."""

    def on_sft_step(self, step: int, loss: float) -> None:
        """A step of the fine-tuning is done. loss: the main process's part of the batch's loss (one process: all)."""

    def on_train_begin(self, config: Config, start: int) -> None:
        """Training begins, after `start` steps (0 unless the run is resumed)."""

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of a step have been logged: a line of metrics.jsonl."""

    def on_step_end(self, step: int, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        """A step is done and logged. rollouts: its lines of rollouts.jsonl, one for each completion."""

    def on_evaluate_begin(self, step: int, num_problems: int) -> None:
        """The evaluation after a step begins. num_problems: held-out problems that this process answers."""

    def on_prediction_step(self, step: int, num_done: int) -> None:
        """`num_done` problems of that evaluation are answered."""

    def on_evaluate(self, step: int, metrics: Mapping[str, Any]) -> None:
        """An evaluation has been logged: a line of eval.jsonl, such as {"step": 50, "pass@1": 0.61, ...}."""

    def on_save(self, step: int, folder: Path) -> None:
        """A checkpoint has been written to `folder`."""

    def on_alarm(self, record: Mapping[str, Any]) -> None:
        """The reward-hacking alarm: a line of alarms.jsonl with step, signs, figures and rollouts."""

    def on_warning(self, text: str) -> None:
        """One line on what a person should look at. Where no callback overrides this, Python's warnings are used.

        What happens outside the loop (a sampler's engine, the verifiers' processes) may use Python's warnings itself.
        """

    def on_train_end(self, step: int) -> None:
        """Training has ended with `step` steps done, whatever ended it: the last step, a signal, an alarm, an error."""


class TrackerCallback(TrainerCallback):
    """Sends the metrics of each step and evaluation to the trackers that Accelerate has opened (run.trackers).

    What an evaluation measured is named eval/...; see `tracked` for the names.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.accelerator.log({tracked(name): value for name, value in metrics.items() if name != "step"}, step=step)

    def on_evaluate(self, step: int, record: Mapping[str, Any]) -> None:
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "step"}
        self.accelerator.log({f"eval/{tracked(name)}": value for name, value in numbers.items()}, step=step)


def tracked(name: str) -> str:
    """Return a metric's name as every tracker takes it: pass_at_8 and pass_hat_8 for pass@8 and pass^8."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_").replace("^", "_hat_"), flags=re.ASCII)
