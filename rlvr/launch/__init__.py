"""From a config to a finished run: task, policy, verifier, fine-tuning, training, evaluation, report.

Part of the command line: it knows the verifiers and the packs, which the trainer does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlvr.config import Config
from rlvr.core.types import Task, Verifier
from rlvr.launch.prepare import prepare
from rlvr.training.supervision.signals import StopRequest

if TYPE_CHECKING:
    from rlvr.training.callbacks import TrainerCallback


def launch(
    config: Config,
    *,
    task: Task | None = None,
    verifier: Verifier | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> list[dict[str, Any]]:
    """Run a config from start to end, or from its last checkpoint on. Return the lines of eval.jsonl.

    `task` and `verifier` replace those that the config names. `callbacks` are notified of steps, evaluations,
    checkpoints and alarms (rlvr.training.callbacks). Raises Stopped, a KeyboardInterrupt, where a signal ended the run:
    after a checkpoint (the message says how to resume), or at once.
    """
    with StopRequest().answering() as stop:
        stop.left = lambda: "nothing was written; run the same command again"
        prepared = prepare(config, task, verifier, stop)
        from rlvr.launch.execute import execute  # torch takes seconds, for which a wrong name does not wait

        return execute(prepared, callbacks, stop)
