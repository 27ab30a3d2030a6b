"""What a guard raises, on all ranks alike, if a run gets worse; and the guard on held-out pass@k."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from rlvr.core.types import RunError
from rlvr.distributed import gather
from rlvr.runs.conclusions import group_comparable
from rlvr.runs.log import RunLog
from rlvr.runs.records import interval, measured_name, with_interval


class GuardStop(RunError):
    """A guard has ended the run, after a checkpoint."""


@dataclass
class RollBack(Exception):
    """A guard asks for a rollback; see rlvr.training.saving.

    step: the last one that is done. kind: the guard, in one word; reason: why, in words. newest: the last step whose
    checkpoint may be gone back to, if not the one before `step`.
    """

    step: int
    kind: str
    reason: str
    newest: int | None = None


def find_regression(log: RunLog, accelerator: Accelerator, step: int) -> str:
    """Return in words that the evaluation after a step fell below the start's interval, "" if not; on all processes."""
    found = [describe_regression(log.out_dir, log.read("eval"), step)] if accelerator.is_main_process else []
    return gather(found, accelerator)[0]


def act_on_regression(action: str, step: int, reason: str, warn: Callable[[str, str], None]) -> None:
    """Carry out eval.on_regression (`action`) for the `reason` that `find_regression` gave.

    Raises GuardStop (stop) or RollBack.
    """
    if action == "rollback":
        raise RollBack(step, "regression", reason)
    warn(reason, "regression")
    if action == "stop":
        how = "to continue, repeat the command with --eval.on-regression warn"
        raise GuardStop(f"stopped at step {step}: {reason}; {how}")


def describe_regression(out_dir: Path, evaluations: Sequence[Mapping[str, Any]], step: int) -> str:
    """Return in words that the evaluation after a step is below the 95 % interval of the run's first one; "" if not.

    The first one is that of the start, or the first since the settings eval.* were last changed.
    """
    for comparable in group_comparable(out_dir, evaluations)[-1:]:
        first, last = comparable[0], comparable[-1]
        name = measured_name(first)
        ends = interval(first, name)
        if last["step"] == step > first["step"] and name in last and ends is not None and last[name] < ends[0]:
            return f"held-out {name} is {last[name]:.3f} at step {step}, and was {with_interval(first, name)} " + (
                "at the start" if first["step"] == 0 else f"at step {first['step']}"
            )
    return ""
