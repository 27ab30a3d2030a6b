"""Decoders: one token per step for many rows, with and without shared prompts.

All have three calls: `start` reads the prompts and returns each row's first logits, `step` takes each row's token and
returns its next logits, `keep` drops the other rows. A SharedDecoder takes further prompts while others are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from rlvr.algo.transfer import copy_to
from rlvr.model.cpu.linear import Prepared, can_prepare
from rlvr.model.decode.cache import DecodeCache, SeveralCaches
from rlvr.model.forward.packed import Layout, PackedGroups
from rlvr.model.forward.passes import adjusted, hidden_states, output_logits


class Decoder(Protocol):
    """Rows that grow by one token a step. summary: how, in the words of `Policy.check_rows`."""

    summary: ClassVar[str]

    def __init__(self, causal: Any) -> None: ...

    def start(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        """Read P prompts; return the first logits (B, V) of B = sum(counts) rows, each prompt's rows together."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens (B,); return the next logits (B, V)."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows (increasing indices into the present ones)."""
        ...


class SharedDecoder:
    """For models that run packed: the keys and values of a prompt are held once for all its rows.

    A row attends to its prompt's keys and to its own in one softmax. Its own lie in preallocated buffers, written in
    place. Prompts may have any lengths. Rows that entered together have a cache together, so that rows of different
    ages need no padding; everything but attention is computed for all of them at once.
    """

    summary: ClassVar[str] = "sampled with one cache for the rows of a prompt"

    def __init__(self, causal: Any) -> None:
        self.causal = causal
        self.caches: list[DecodeCache] = []

    def start(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        """See Decoder."""
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
        """See Decoder."""
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
        """See Decoder."""
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
    """A SharedDecoder for models whose weights can be prepared (rlvr.model.cpu.linear), of their present values.

    A model that cannot is decoded as by a SharedDecoder.
    """

    def __init__(self, causal: Any) -> None:
        super().__init__(causal)
        self.prepared = Prepared(causal) if can_prepare(causal) else None

    def hidden_states(self, layout: Layout, ids: Tensor, positions: Tensor) -> Tensor:
        """See SharedDecoder."""
        if self.prepared is None:
            return super().hidden_states(layout, ids, positions)
        return self.prepared.hidden_states(layout, ids, positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """See SharedDecoder."""
        if self.prepared is None:
            return super().logits(hidden)
        return adjusted(self.causal, self.prepared.logits(hidden)).float()


class CacheDecoder:
    """For any other model: transformers' own cache, filled once per prompt and then repeated for its rows.

    The prompts of a call must have the same length: then there is no padding, which recurrent layers could not skip.
    """

    summary: ClassVar[str] = "sampled with the model's own cache, prompts of one length at a time"

    def __init__(self, causal: Any) -> None:
        self.causal = causal

    def start(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        """See Decoder. Raises ValueError for prompts of different lengths, and for a model without a cache."""
        logits = self.prefill(prompts)
        rows = copy_to(np.repeat(np.arange(len(prompts)), counts), logits.device)
        self.cache.reorder_cache(rows)
        return logits[rows]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read the prompts into a fresh cache, one row each; return the first logits (P, V)."""
        if len({len(prompt) for prompt in prompts}) != 1:
            raise ValueError("CacheDecoder takes prompts of one length at a time")
        device = self.causal.get_input_embeddings().weight.device
        ids = torch.tensor([list(prompt) for prompt in prompts], device=device)
        out = self.causal(input_ids=ids, use_cache=True, logits_to_keep=1)
        # Before transformers 5.24 it was called past_key_values, and cache_params by recurrent models.
        names = ("cache", "past_key_values", "cache_params")
        self.name = next((name for name in names if out.get(name) is not None), "")
        if not self.name:
            raise ValueError(f"{type(self.causal).__name__} returns no cache that its rows could be decoded from")
        self.cache, self.length = out[self.name], ids.shape[1]
        logits: Tensor = out.logits[:, -1].float()
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """See Decoder."""
        options = {self.name: self.cache, "use_cache": True}
        if "position_ids" in signature(self.causal.forward).parameters:
            options["position_ids"] = torch.full((len(tokens), 1), self.length, device=tokens.device)
        out = self.causal(input_ids=tokens[:, None], **options)
        self.cache = out[self.name]
        self.length += 1
        return out.logits[:, -1].float()

    def keep(self, rows: Tensor) -> None:
        """See Decoder."""
        self.cache.reorder_cache(rows)


class RepeatedDecoder:
    """For models whose cache can be continued but not copied: each row reads its prompt itself.

    Dropped rows are computed to the end with a token that nobody reads. The prompts of a call must have the same
    length, as for CacheDecoder.
    """

    summary: ClassVar[str] = "sampled with the model's own cache, which cannot be copied: each row reads its prompt"

    def __init__(self, causal: Any) -> None:
        self.inner = CacheDecoder(causal)

    def start(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        """See Decoder, and CacheDecoder for what is raised."""
        rows = [prompt for prompt, count in zip(prompts, counts, strict=True) for _ in range(count)]
        logits = self.inner.prefill(rows)
        self.rows, self.size = torch.arange(len(rows), device=logits.device), len(rows)
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """See Decoder."""
        everything = tokens.new_zeros(self.size)
        everything[self.rows] = tokens
        return self.inner.step(everything)[self.rows]

    def keep(self, rows: Tensor) -> None:
        """See Decoder."""
        self.rows = self.rows[rows]


class WholeDecoder:
    """For models without a cache, or whose cache differs: every step computes the rows whole, which is slow.

    The prompts of a call must have the same length, as for CacheDecoder.
    """

    summary: ClassVar[str] = "sampled without a cache, every row computed again for each token, which is slow"

    def __init__(self, causal: Any) -> None:
        self.causal = causal

    def start(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        """See Decoder. Raises ValueError for prompts of different lengths."""
        if len({len(prompt) for prompt in prompts}) != 1:
            raise ValueError("WholeDecoder takes prompts of one length at a time")
        rows = [list(prompt) for prompt, count in zip(prompts, counts, strict=True) for _ in range(count)]
        self.ids = torch.tensor(rows, device=self.causal.get_input_embeddings().weight.device)
        return self._logits()

    def step(self, tokens: Tensor) -> Tensor:
        """See Decoder."""
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        return self._logits()

    def keep(self, rows: Tensor) -> None:
        """See Decoder."""
        self.ids = self.ids[rows]

    def _logits(self) -> Tensor:
        states = self.causal.base_model(input_ids=self.ids, use_cache=False).last_hidden_state
        return output_logits(self.causal, states[:, -1])
