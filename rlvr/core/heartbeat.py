"""How far this process has come. Long work reports it here; rlvr.training.supervision.watchdog reads it.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Heartbeat:
    """The place of a process: its phase, in which step (0: before the first), and how many phases it has entered.

    beats: how often anything was done in it, such as a token of all rows, a group or a microbatch.
    """

    step: int = 0
    phase: str = "preparation"
    entered: int = 0
    beats: int = 0

    def enter(self, phase: str, step: int | None = None) -> None:
        """Begin a phase, of the same step unless another is given. All processes must enter the same phases."""
        self.step = self.step if step is None else step
        self.phase, self.entered, self.beats = phase, self.entered + 1, self.beats + 1

    def beat(self) -> None:
        """Say that work goes on. Any thread may call it."""
        self.beats += 1

    def clear(self) -> None:
        self.step, self.phase, self.entered, self.beats = 0, "preparation", 0, 0


HEARTBEAT = Heartbeat()
enter, beat = HEARTBEAT.enter, HEARTBEAT.beat
