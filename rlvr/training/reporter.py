"""The log lines of a run, and the callbacks that are notified of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator

from rlvr.config import Config
from rlvr.model.health import python_warning
from rlvr.runs.log import RunLog, append_event
from rlvr.training.callbacks import TrainerCallback
from rlvr.training.checkpoint import checkpoint_folder

Told = Callable[[TrainerCallback], None]


class Reporter:
    """Writes the logs of a run and tells its callbacks. On other processes than the main one it does nothing."""

    def __init__(self, log: RunLog, accelerator: Accelerator, callbacks: Sequence[TrainerCallback] = ()) -> None:
        self.log = log
        self.accelerator = accelerator
        self.callbacks = list(callbacks)
        self.last_step = 0

    def tell(self, event: Told) -> None:
        """Call `event` with each callback in turn."""
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

    def saved(self, step: int) -> None:
        """Announce that the checkpoint after a step has been written."""
        folder = checkpoint_folder(self.log.out_dir, step)
        self.tell(lambda callback: callback.on_save(step, folder))

    def warn(self, text: str, kind: str = "warning", **details: Any) -> None:
        """Log an event of this kind, and tell a person: by the callbacks that take warnings, else by Python's."""
        if not self.accelerator.is_main_process:
            return
        self.event(kind, text, **details)
        if any(type(callback).on_warning is not TrainerCallback.on_warning for callback in self.callbacks):
            self.tell(lambda callback: callback.on_warning(text))
        else:
            python_warning(text)
