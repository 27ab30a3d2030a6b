"""Sampling with the trainer's own transformers model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import torch

from rlvr.core.types import Ask, Completion, Sampler, Sampling
from rlvr.model.cpu.processor import use_one_thread_if_small
from rlvr.model.load.policy import Policy
from rlvr.model.probe.trial import Decoders
from rlvr.sampling.batching import ContinuousBatch

# Share of the GPU memory that is free when sampling starts which keys and values may take.
CACHE_SHARE = 0.6


class TorchSampler(Sampler):
    """Batched decoding with the policy's weights.

    At most `batch_size` rows are decoded at once; finished ones leave and others enter, as long as keys and values fit
    into `cache_gib` GiB (None: 60 % of the free memory of a GPU, no limit on a CPU). Token t of a completion is drawn
    with the t-th number of its seed's stream, so the other rows do not matter, up to the rounding of matmuls, which may
    depend on the number of rows. Raises ValueError for a model that no decoder samples correctly: at construction, or
    when rows first pass a window of the model (see rlvr.model.probe.trial).
    """

    def __init__(self, policy: Policy, *, batch_size: int = 512, cache_gib: float | None = None) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size}: expected at least 1")
        self.given, self.policy = policy, policy.gather()
        self.batch_size, self.cache_gib = batch_size, cache_gib
        self.decoders = Decoders(policy.tried, policy.trial, policy.packs, policy.dtype)

    def load_weights(self, policy: Any) -> None:
        """Gather the weights of a policy in shards; do nothing where they are whole, and so the trainer's own.

        All processes must call it.
        """
        if policy.mesh is not None:
            self.policy = policy.gather()

    def sleep(self) -> None:
        """Free the weights that were gathered of a policy in shards."""
        self.policy = self.given

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        """Return len(seeds[p]) completions for each prompt. Raises ValueError as `stream`."""
        return self.stream(prompts, sampling, seeds, lambda place, completions: None)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        on_group: Callable[[int, list[Completion]], None],
    ) -> list[list[Completion]]:
        """See Sampler. Raises ValueError for an empty prompt, and unless there is one list of seeds per prompt."""
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
                on_group(p, _complete(drawn[p]))

        self._draw(prompts, seeds, sampling, [sampling.max_new_tokens] * len(prompts), keep)
        return [_complete(group) for group in drawn]

    def sample_rows(self, asks: Sequence[Ask], on_row: Callable[[int, Completion], None]) -> None:
        """Sample a completion for each ask; see rlvr.core.types.Sampler. Those that differ in length only go together.

        Equal contexts are read once. Raises ValueError for an empty context.
        """
        if any(not ask.context for ask in asks):
            raise ValueError("a context without tokens cannot be continued; render it with at least one token")
        kinds = [replace(ask.sampling, max_new_tokens=1) for ask in asks]
        for kind in dict.fromkeys(kinds):
            members: dict[tuple[tuple[int, ...], int], list[int]] = {}
            for place, ask in enumerate(asks):
                if kinds[place] == kind:
                    members.setdefault((ask.context, ask.sampling.max_new_tokens), []).append(place)
            places, limits = list(members.values()), [limit for _, limit in members]

            def pass_on(p: int, g: int, made: Completion, places: list[list[int]] = places) -> None:
                on_row(places[p][g], made)

            self._draw(
                [context for context, _ in members],
                [[asks[place].seed for place in row] for row in places],
                replace(kind, max_new_tokens=max(limits)),
                limits,
                pass_on,
            )

    @torch.no_grad()  # under inference_mode autocast would cast every weight again for every token
    def _draw(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        limits: Sequence[int],
        on_row: Callable[[int, int, Completion], None],
    ) -> None:
        """Draw the completions of all prompts, of at most limits[p] tokens each."""
        training = self.policy.model.training
        self.policy.model.eval()
        try:
            with use_one_thread_if_small(self.policy.model, self.policy.device), self.policy.computing():
                ContinuousBatch(
                    self.policy,
                    prompts,
                    seeds,
                    sampling,
                    lambda p: self.decoders.for_length(len(prompts[p]) + limits[p]),
                    size=self.batch_size,
                    cache_bytes=self._cache_bytes(),
                    limits=limits,
                ).run(on_row)
        finally:
            self.policy.model.train(training)

    def _cache_bytes(self) -> float:
        if self.cache_gib is not None:
            return self.cache_gib * 2**30
        if self.policy.device.type != "cuda":
            return inf
        torch.cuda.empty_cache()
        return CACHE_SHARE * torch.cuda.mem_get_info(self.policy.device)[0]


def _complete(group: list[Completion | None]) -> list[Completion]:
    return [completion for completion in group if completion is not None]
