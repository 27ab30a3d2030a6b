"""The callback that shows a training run on the console: progress bars, steps, samples and evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.config import Config
from rlvr.training.callbacks import TrainerCallback
from rlvr.training.run import is_due

from .console import Display, describe_alarm, describe_evaluation, describe_step


class ConsoleCallback(TrainerCallback):
    """Shows a run on `display`, and a rollout every run.sample_every steps."""

    def __init__(self, display: Display, config: Config) -> None:
        self.display = display
        self.config = config

    def on_sft_begin(self, num_steps: int) -> None:
        self.display.start("fine-tuning", num_steps)

    def on_sft_step(self, step: int, loss: float) -> None:
        self.display.step(step, f"loss {loss:.3f}")
        if step == self.config.sft.steps:
            self.display.finish()

    def on_train_begin(self, config: Config, start: int) -> None:
        if start < config.run.steps:
            self.display.start("training", config.run.steps, start)

    def on_step_end(self, step: int, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        self.display.step(step, describe_step(metrics))
        if is_due(step, self.config.run.sample_every):
            self.display.sample(rollouts[0])

    def on_evaluate_begin(self, step: int, num_problems: int) -> None:
        self.display.start(f"evaluating step {step}", num_problems)

    def on_prediction_step(self, step: int, num_done: int) -> None:
        self.display.step(num_done, "")

    def on_evaluate(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.display.finish()
        self.display.say(f"step {step}: {describe_evaluation(metrics, self.config.eval.k)}")

    def on_alarm(self, record: Mapping[str, Any]) -> None:
        self.display.say(describe_alarm(record))

    def on_warning(self, text: str) -> None:
        self.display.say(f"WARNING {text}")

    def on_train_end(self, step: int) -> None:
        self.display.close()
