"""A worker of vLLM's that takes pushes and loads what a file says: "nothing" of them, "half", or all of them.

A server gets it by `--worker-extension-cls tests.helpers.sabotaged_worker.Sabotaged`, and the file in the environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rlvr.sampling.vllm import receive
from rlvr.sampling.vllm.worker import WorkerExtension

FILE = "RLVR_TEST_SABOTAGE"
take = receive.GlooEngine.take


class Sabotaged(WorkerExtension):
    """The extension that the trainer expects."""


def receive_sabotaged(self: Any, update_info: Any, consume: Any) -> None:
    """Receive tensors, and pass on those that are not held back."""
    kind = Path(os.environ[FILE]).read_text()

    def pass_on(weights: receive.Weights) -> None:
        received = list(weights)
        if kind == "":
            consume(received)
        elif kind == "half":
            consume([(name, value) for name, value in received if ".layers.0." not in name])

    take(self, update_info, pass_on)


receive.GlooEngine.take = receive_sabotaged  # type: ignore[method-assign]
