"""What a guard raises, on all processes alike, where a run gets worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.core.types import RunError
from rlvr.distributed import gather
from rlvr.runs.conclusions import group_comparable
from rlvr.runs.records import interval, measured_name, with_interval
from rlvr.training.run import Run


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


# A guard on held-out pass@k: is the policy measured below its start?


def find_regression(run: Run, step: int) -> str:
    """Return in words that the evaluation after a step fell below the start's interval, "" if not; on all processes."""
    log, accelerator = run.reporter.log, run.learner.accelerator
    found = [describe_regression(log.out_dir, log.read("eval"), step)] if accelerator.is_main_process else []
    return gather(found, accelerator)[0]


def act_on_regression(run: Run, step: int, reason: str) -> None:
    """Do what eval.on_regression says where there is a `reason` (of `find_regression`), once the step is saved.

    Raises GuardStop (stop) or RollBack.
    """
    action = run.config.eval.on_regression
    if not reason:
        return
    if action == "rollback":
        raise RollBack(step, "regression", reason)
    run.reporter.warn(reason, "regression")
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
