"""Sampling with the trainer's own transformers model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import torch

from rlvr.model.device import decoding_threads
from rlvr.model.policy import Policy
from rlvr.model.probe import Decoders
from rlvr.sampling.batching import ContinuousBatch
from rlvr.types import Completion, Sampler, Sampling

# Share of the GPU memory that is free when sampling starts which keys and values may take.
CACHE_SHARE = 0.6


class TorchSampler(Sampler):
    """Batched decoding with the policy's weights.

    At most `batch_size` rows are decoded at once; finished ones leave and others enter, as long as keys and values fit
    into `cache_gib` GiB (None: 60 % of the free memory of a GPU, no limit on a CPU). Token t of a completion is drawn
    with the t-th number of its seed's stream, so the other rows do not matter, up to the rounding of matmuls, which may
    depend on the number of rows. Raises ValueError for a model that no decoder samples correctly: at construction, or
    when rows first pass a window of the model (see rlvr.model.probe).
    """

    def __init__(self, policy: Policy, *, batch_size: int = 512, cache_gib: float | None = None) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size}: expected at least 1")
        self.policy = policy
        self.batch_size, self.cache_gib = batch_size, cache_gib
        self.decoders = Decoders(policy.causal, policy.trial, policy.packs)

    def load_weights(self, policy: Any) -> None:
        """Do nothing: the weights are the trainer's own."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        """Return len(seeds[p]) completions for each prompt; see rlvr.types.Sampler. Raises ValueError as `stream`."""
        return self.stream(prompts, sampling, seeds, lambda place, completions: None)

    @torch.no_grad()  # under inference_mode autocast would cast every weight again for every token
    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        on_group: Callable[[int, list[Completion]], None],
    ) -> list[list[Completion]]:
        """Do as `generate`, and hand over each group as soon as it is complete; see rlvr.types.Sampler.

        Raises ValueError for an empty prompt, and unless there is one list of seeds per prompt.
        """
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts and {len(seeds)} lists of seeds; expected one list per prompt")
        if any(len(prompt) == 0 for prompt in prompts):
            raise ValueError("a prompt without tokens cannot be continued; render it with at least one token")
        drawn: list[list[Completion | None]] = [[None] * len(group) for group in seeds]
        missing = [len(group) for group in seeds]

        def keep(p: int, g: int, completion: Completion) -> None:
            drawn[p][g] = completion
            missing[p] -= 1
            if missing[p] == 0:
                on_group(p, _whole(drawn[p]))

        training = self.policy.model.training
        self.policy.model.eval()
        try:
            with decoding_threads(self.policy.model, self.policy.device), self.policy.computing():
                ContinuousBatch(
                    self.policy,
                    prompts,
                    seeds,
                    sampling,
                    lambda p: self.decoders.for_length(len(prompts[p]) + sampling.max_new_tokens),
                    size=self.batch_size,
                    cache_bytes=self._cache_bytes(),
                ).run(keep)
        finally:
            self.policy.model.train(training)
        return [_whole(group) for group in drawn]

    def _cache_bytes(self) -> float:
        if self.cache_gib is not None:
            return self.cache_gib * 2**30
        if self.policy.device.type != "cuda":
            return inf
        torch.cuda.empty_cache()
        return CACHE_SHARE * torch.cuda.mem_get_info(self.policy.device)[0]


def _whole(group: list[Completion | None]) -> list[Completion]:
    return [completion for completion in group if completion is not None]
