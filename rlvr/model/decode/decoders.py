"""Decoders: one token per step for many rows. Which one a model gets is tried by rlvr.model.probe.trial.

| decoder | for which models | what it costs |
|---|---|---|
| PreparedDecoder | Llama-like ones on a CPU, without adapters and experts | as below, from weights that are cast once |
| SharedDecoder | those that run packed | a prompt's keys and values are held once for all its rows |
| CacheDecoder | others, with transformers' own cache | the cache is copied for the rows; prompts of one length |
| WholeDecoder | those without a cache that can be copied | every step computes every row again |

`start` reads the prompts and returns each row's first logits, `step` takes each row's token and returns its next
logits, `keep` drops the other rows. A SharedDecoder takes further prompts (`enter`) while others are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from rlvr.algo.batch import copy_to
from rlvr.model.cpu.linear import PreparedModel, can_prepare
from rlvr.model.decode.cache import DecodeCache, SeveralCaches
from rlvr.model.forward.packed import Layout, PackedGroups
from rlvr.model.forward.passes import adjust_logits, hidden_states, output_logits


class Decoder(Protocol):
    """Rows that grow by one token a step. summary: how, in the words of `Policy.check_rows`."""

    summary: ClassVar[str]

    def __init__(self, causal: Any) -> None: ...

    def start(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        """Read P prompts; return the first logits (B, V) of B = sum(counts) rows, each prompt's rows together.

        Raises ValueError for prompts of different lengths, where the decoder takes one length at a time.
        """
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens (B,); return the next logits (B, V)."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows (increasing indices into the present ones)."""
        ...


class SharedDecoder:
    """A row attends to its prompt's keys and to its own in one softmax; its own lie in buffers, written in place.

    Prompts may have any lengths. Rows that entered together have a cache together, so that rows of different ages need
    no padding; everything but attention is computed for all of them at once.
    """

    summary: ClassVar[str] = "sampled with one cache for the rows of a prompt"

    def __init__(self, causal: Any) -> None:
        self.causal = causal
        self.caches: list[DecodeCache] = []

    def start(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        self.caches = []
        return self.enter(prompts, counts)

    def enter(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        """Read P more prompts; return the first logits of their rows, which come behind the present ones."""
        device = self.causal.get_input_embeddings().weight.device
        packed = PackedGroups(prompts, [[] for _ in prompts], device, keep=True)
        hidden = self.hidden_states(packed, packed.ids, packed.positions)
        logits = self.logits(hidden[copy_to(packed.prompt_ends, device)])
        self.caches.append(DecodeCache(packed, counts))
        return logits[self.caches[-1].parents]

    def step(self, tokens: Tensor) -> Tensor:
        layout = self.caches[0] if len(self.caches) == 1 else SeveralCaches(self.caches)
        positions = torch.cat([cache.positions for cache in self.caches])
        hidden = self.hidden_states(layout, tokens[None], positions[None])
        for cache in self.caches:
            cache.advance()
        return self.logits(hidden)

    def hidden_states(self, layout: Layout, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the last hidden states (N, hidden) of packed tokens; ids and positions (1, N)."""
        return hidden_states(self.causal, layout, ids, positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits (n, V) of last hidden states (n, hidden)."""
        return output_logits(self.causal, hidden)

    def keep(self, rows: Tensor) -> None:
        first, kept = 0, []
        for cache in self.caches:
            own = rows[(rows >= first) & (rows < first + cache.rows)] - first
            first += cache.rows
            if len(own):
                cache.keep(own)
                kept.append(cache)
        self.caches = kept

    def bytes_at_step(self) -> int:
        """Return the bytes of keys and values that will be held when the next step has stored its own."""
        return sum(cache.bytes_at_step() for cache in self.caches)

    def bytes_per_token(self) -> int:
        """Return the bytes of one token's keys and values."""
        return self.caches[0].bytes_per_token()


class PreparedDecoder(SharedDecoder):
    """A SharedDecoder on a copy of the present weights that is faster on a CPU (rlvr.model.cpu.linear).

    A model whose weights cannot be prepared is decoded as by a SharedDecoder.
    """

    def __init__(self, causal: Any) -> None:
        super().__init__(causal)
        self.prepared = PreparedModel(causal) if can_prepare(causal) else None

    def hidden_states(self, layout: Layout, ids: Tensor, positions: Tensor) -> Tensor:
        if self.prepared is None:
            return super().hidden_states(layout, ids, positions)
        return self.prepared.hidden_states(layout, ids, positions)

    def logits(self, hidden: Tensor) -> Tensor:
        if self.prepared is None:
            return super().logits(hidden)
        return adjust_logits(self.causal, self.prepared.logits(hidden)).float()


class CacheDecoder:
    """Transformers' own cache, filled once per prompt and then copied for its rows.

    The prompts of a call must have the same length: then there is no padding, which recurrent layers could not skip.
    """

    summary: ClassVar[str] = "sampled with the model's own cache, prompts of one length at a time"

    def __init__(self, causal: Any) -> None:
        self.causal = causal

    def start(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        check_lengths(prompts)
        device = self.causal.get_input_embeddings().weight.device
        ids = torch.tensor([list(prompt) for prompt in prompts], device=device)
        out = self.causal(input_ids=ids, use_cache=True, logits_to_keep=1)
        # Before transformers 5.24 it was called past_key_values, and cache_params by recurrent models.
        names = ("cache", "past_key_values", "cache_params")
        self.name = next((name for name in names if out.get(name) is not None), "")
        if not self.name:
            raise ValueError(f"{type(self.causal).__name__} returns no cache that its rows could be decoded from")
        self.cache, self.length = out[self.name], ids.shape[1]
        rows = copy_to(np.repeat(np.arange(len(prompts)), counts), device)
        self.cache.reorder_cache(rows)
        return out.logits[:, -1].float()[rows]

    def step(self, tokens: Tensor) -> Tensor:
        options = {self.name: self.cache, "use_cache": True}
        if "position_ids" in signature(self.causal.forward).parameters:
            options["position_ids"] = torch.full((len(tokens), 1), self.length, device=tokens.device)
        out = self.causal(input_ids=tokens[:, None], **options)
        self.cache = out[self.name]
        self.length += 1
        return out.logits[:, -1].float()

    def keep(self, rows: Tensor) -> None:
        self.cache.reorder_cache(rows)


class WholeDecoder:
    """No cache: every step computes the rows whole. The prompts of a call must have the same length."""

    summary: ClassVar[str] = "sampled without a cache, every row computed again for each token, which is slow"

    def __init__(self, causal: Any) -> None:
        self.causal = causal

    def start(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        check_lengths(prompts)
        rows = [list(prompt) for prompt, count in zip(prompts, counts, strict=True) for _ in range(count)]
        self.ids = torch.tensor(rows, device=self.causal.get_input_embeddings().weight.device)
        return self._logits()

    def step(self, tokens: Tensor) -> Tensor:
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        return self._logits()

    def keep(self, rows: Tensor) -> None:
        self.ids = self.ids[rows]

    def _logits(self) -> Tensor:
        states = self.causal.base_model(input_ids=self.ids, use_cache=False).last_hidden_state
        return output_logits(self.causal, states[:, -1])


def check_lengths(prompts: Sequence[Sequence[int]]) -> None:
    """Raise ValueError for prompts of different lengths."""
    if len({len(prompt) for prompt in prompts}) != 1:
        raise ValueError("this decoder takes prompts of one length at a time")
