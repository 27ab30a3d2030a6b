"""A guard on held-out pass@k: is the policy measured below its start?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.distributed import gather
from rlvr.runs.conclusions import eras
from rlvr.runs.records import interval, measured_name, with_interval
from rlvr.training.guards import GuardStop, RollBack
from rlvr.training.run import Run


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
    for comparable in eras(out_dir, evaluations)[-1:]:
        first, last = comparable[0], comparable[-1]
        name = measured_name(first)
        ends = interval(first, name)
        if last["step"] == step > first["step"] and name in last and ends is not None and last[name] < ends[0]:
            return f"held-out {name} is {last[name]:.3f} at step {step}, and was {with_interval(first, name)} " + (
                "at the start" if first["step"] == 0 else f"at step {first['step']}"
            )
    return ""
