"""This process's microbatches of a batch that all processes hold."""

from __future__ import annotations

from collections.abc import Iterator

from accelerate import Accelerator
from torch import Tensor

from rlvr.algo.batch import Batch
from rlvr.model.policy import Policy
from rlvr.model.progress import beat


def microbatches(
    batch: Batch, policy: Policy, accelerator: Accelerator, max_tokens: int
) -> Iterator[tuple[Tensor, Batch, float]]:
    """Yield this process's microbatches with the indices of their rows, each with its weight in loss and statistics.

    All processes must run each of them forward and, where the loss is differentiated, backward. The weight is 1; 0 for
    one that is there because other processes have more, and gather shards of the weights together with this one.
    """
    plan = batch.plan(accelerator.num_processes, max_tokens, shared_prompts=policy.packs, equal=policy.mesh is not None)
    for index, weight in plan[accelerator.process_index]:
        beat()
        yield index, batch.rows(index), weight
