"""Callbacks, and the reporter that writes the logs of a run and notifies them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from rlvr.config import Config
from rlvr.core.printable import in_one_line
from rlvr.core.types import RunError
from rlvr.model.optim.health import python_warning
from rlvr.runs.conclusions import conclusions_of
from rlvr.runs.log import RunLog, append_event
from rlvr.runs.trackers import Tracked

from .supervision.signals import Stopped


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

    def on_report(self, path: Path) -> None:
        """The page of the run has been written."""

    def on_train_end(self, step: int) -> None:
        """Training has ended with `step` steps done, whatever ended it: the last step, a signal, an alarm, an error."""


class TrackerCallback(TrainerCallback):
    """Sends the metrics of each step and evaluation to the trackers that Accelerate has opened (run.trackers), with
    samples of the rollouts and of the held-out answers, and the report.

    What an evaluation measured is named eval/...; see `tracker_name` for the names.
    """

    def __init__(self, tracked: Tracked) -> None:
        self.tracked = tracked
        self._has_begun = False

    def on_train_begin(self, config: Config, start: int) -> None:
        if self._has_begun:
            self.tracked.go_back(start)
        self._has_begun = True

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.tracked.numbers(step, {tracker_name(name): value for name, value in metrics.items() if name != "step"})

    def on_step_end(self, step: int, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        self.tracked.rollouts(step, rollouts)

    def on_evaluate(self, step: int, record: Mapping[str, Any]) -> None:
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "step"}
        self.tracked.evaluation(step, {f"eval/{tracker_name(name)}": value for name, value in numbers.items()})

    def on_report(self, path: Path) -> None:
        self.tracked.report(path)


def tracker_name(name: str) -> str:
    """Return a metric's name as every tracker takes it: pass_at_8 and pass_hat_8 for pass@8 and pass^8."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_").replace("^", "_hat_"), flags=re.ASCII)


class Reporter:
    """Writes the logs of a run and tells its callbacks. On other processes than the main one it does nothing."""

    def __init__(self, log: RunLog, accelerator: Accelerator, callbacks: Sequence[TrainerCallback] = ()) -> None:
        self.log = log
        self.accelerator = accelerator
        self.callbacks = list(callbacks)
        self.last_step = 0

    def tell(self, event: Callable[[TrainerCallback], None]) -> None:
        if self.accelerator.is_main_process:
            for callback in self.callbacks:
                event(callback)

    @contextmanager
    def training(self, config: Config, start: int) -> Iterator[None]:
        """Tell the callbacks that training begins and, however it ends, that it has ended and after which step."""
        self.last_step = start
        self.tell(lambda callback: callback.on_train_begin(config, start))
        try:
            yield
        finally:
            self.tell(lambda callback: callback.on_train_end(self.last_step))

    def step(self, step: int, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        """Log a step: a line of metrics.jsonl, and a line of rollouts.jsonl for each completion."""
        self.last_step = step
        if self.accelerator.is_main_process:
            self.log.append("metrics", [metrics])
            self.log.append("rollouts", rollouts)
        self.tell(lambda callback: callback.on_log(step, metrics))
        self.tell(lambda callback: callback.on_step_end(step, metrics, rollouts))

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Log an evaluation, with its "step": a line of eval.jsonl."""
        if self.accelerator.is_main_process:
            self.log.append("eval", [record])
        self.tell(lambda callback: callback.on_evaluate(record["step"], record))

    def alarm(self, record: Mapping[str, Any]) -> None:
        """Log an alarm: a line of alarms.jsonl."""
        if self.accelerator.is_main_process:
            self.log.append("alarms", [record])
        signs = "; ".join(f"{name}: {text}" for name, text in record["signs"].items())
        self.event("alarm", f"the reward may be hacked: {signs}")
        self.tell(lambda callback: callback.on_alarm(record))

    def event(self, kind: str, message: str, **details: Any) -> None:
        """Log what happens to the run, after its last step: a line of events.jsonl (rlvr.runs.log)."""
        if self.accelerator.is_main_process:
            append_event(self.log.out_dir, self.last_step, kind, message, **details)

    def warn(self, text: str, kind: str = "warning", **details: Any) -> None:
        """Log an event of this kind, and tell a person: by the callbacks that take warnings, else by Python's."""
        if not self.accelerator.is_main_process:
            return
        self.event(kind, text, **details)
        if any(type(callback).on_warning is not TrainerCallback.on_warning for callback in self.callbacks):
            self.tell(lambda callback: callback.on_warning(text))
        else:
            python_warning(text)


@contextmanager
def record_end(reporter: Reporter) -> Iterator[None]:
    """Carry out a run within, and log how it ends: the event "end", "stopped" (by a signal) or "failed"."""
    try:
        yield
    except BaseException as error:
        line = in_one_line(str(error)) or type(error).__name__
        with suppress(RunError):  # the disk may be full: the error is what a person is to see
            reporter.event("stopped" if isinstance(error, Stopped) else "failed", line)
        raise
    if reporter.accelerator.is_main_process:
        done = f"The run has ended after step {reporter.last_step}."
        reporter.event("end", " ".join([done, *conclusions_of(reporter.log.out_dir)]))
