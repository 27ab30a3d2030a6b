"""Decoders: one token per step for many rows, with and without shared prompts.

All have three calls: `start` reads the prompts and returns each row's first logits, `step` takes each row's token and
returns its next logits, `keep` drops the other rows. A SharedDecoder takes further prompts while others are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from rlvr.algo.transfer import copy_to
from rlvr.model.attention import PackedGroups, hidden_states
from rlvr.model.lm_head import output_logits
from rlvr.model.scores import Scores


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
        hidden = hidden_states(self.causal, packed, packed.ids, packed.positions)
        logits = output_logits(self.causal, hidden[copy_to(packed.prompt_ends, device)])
        self.caches.append(DecodeCache(packed, counts))
        return logits[self.caches[-1].parents]

    def step(self, tokens: Tensor) -> Tensor:
        """See Decoder."""
        layout = self.caches[0] if len(self.caches) == 1 else SeveralCaches(self.caches)
        positions = torch.cat([cache.positions for cache in self.caches])
        hidden = hidden_states(self.causal, layout, tokens[None], positions[None])
        for cache in self.caches:
            cache.advance()
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


class SeveralCaches:
    """Attention of one new token per row of several caches, their rows end to end; see rlvr.model.attention.Layout."""

    def __init__(self, caches: Sequence[DecodeCache]) -> None:
        self.caches, self.sizes = caches, [cache.rows for cache in caches]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, scores: Scores | None = None
    ) -> Tensor:
        """See DecodeCache.attend."""
        parts = zip(self.caches, *(x.split(self.sizes) for x in (query, key, value)), strict=True)
        return torch.cat([cache.attend(layer, q, k, v, scaling, scores) for cache, q, k, v in parts])


class DecodeCache:
    """Keys and values of P prompts (each once) and of B rows, and the attention of one new token per row.

    `parents` (B,) is each row's prompt, `positions` (B,) the position of its next token.
    """

    BLOCK = 16

    def __init__(self, prompts: PackedGroups, counts: Sequence[int]) -> None:
        assert prompts.kept is not None
        # Rotary embeddings return float32 keys under autocast; they are stored in the dtype of the matmul.
        self.prompts = {layer: (k.to(v.dtype), v) for layer, (k, v) in prompts.kept.items()}
        self.prompt_valid = prompts.prompt_valid
        device = self.prompt_valid.device
        self.parents = copy_to(np.repeat(np.arange(len(counts)), counts), device)
        self.positions = self.prompt_valid.sum(-1)[self.parents]
        self.longest_prompt = prompts.longest
        self.own: dict[int, tuple[Tensor, Tensor]] = {}  # (B, H_kv, capacity, D)
        self.length = 0
        self._arrange()

    def _arrange(self) -> None:
        """Find each row's place in the (P, G) rectangle of rows by prompt; G: the most rows of any prompt."""
        counts = torch.bincount(self.parents, minlength=len(self.prompt_valid))
        self.group_size = int(counts.max())
        starts = counts.cumsum(0) - counts
        rank = torch.arange(len(self.parents), device=counts.device) - starts[self.parents]
        self.slots: Tensor | None = self.parents * self.group_size + rank
        self.from_slots = torch.zeros(len(counts) * self.group_size, dtype=torch.long, device=counts.device)
        self.from_slots[self.slots] = torch.arange(len(self.parents), device=counts.device)
        if len(self.from_slots) == len(self.parents):
            self.slots = None  # the rectangle is full, its rows in order
        self.prompt_mask = None if bool(self.prompt_valid.all()) else ~self.prompt_valid[:, None, None]

    @property
    def rows(self) -> int:
        """The number of rows, B."""
        return len(self.positions)

    def bytes_at_step(self) -> int:
        """Return the bytes of keys and values when one more token of each row is stored."""
        capacity = next((k.shape[2] for k, _ in self.own.values()), 0)
        capacity += self._more() if capacity == self.length else 0
        return self.bytes_per_token() * (self.prompt_valid.numel() + self.rows * capacity)

    def bytes_per_token(self) -> int:
        """Return the bytes of one token's keys and values."""
        return sum(x.nbytes for pair in self.prompts.values() for x in pair) // self.prompt_valid.numel()

    def _more(self) -> int:
        """Return by how many tokens the buffers of rows grow."""
        return max(self.BLOCK, self.length // 4)

    def advance(self) -> None:
        """Count the step as done: every layer has stored its keys."""
        self.length += 1
        self.positions = self.positions + 1

    def keep(self, rows: Tensor) -> None:
        """Drop the other rows, and the prompts that have none left."""
        if len(rows) == self.rows:
            return
        used, parents = torch.unique(self.parents[rows], return_inverse=True)
        if len(used) < len(self.prompt_valid):
            self.prompt_valid = self.prompt_valid[used]
            self.prompts = {layer: (k[used], v[used]) for layer, (k, v) in self.prompts.items()}
        self.own = {layer: (k[rows], v[rows]) for layer, (k, v) in self.own.items()}
        self.parents, self.positions = parents, self.positions[rows]
        self._arrange()

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, scores: Scores | None = None
    ) -> Tensor:
        """query (B, H, D), key and value (B, H_kv, D) of the new tokens; see rlvr.model.attention.Layout."""
        rows, heads, dim = query.shape
        kv_heads, dtype = key.shape[1], value.dtype
        own_k, own_v = self._store(layer, key, value)
        prompt_k, prompt_v = self.prompts[layer]
        query = (query * scaling).to(dtype).reshape(rows, kv_heads, heads // kv_heads, dim)
        # (P, H_kv, G * H / H_kv, D): all queries of a prompt against its keys in one matmul.
        seen = torch.matmul(self._by_prompt(query), prompt_k.transpose(2, 3))
        if self.prompt_mask is not None:
            seen = seen.masked_fill(self.prompt_mask, float("-inf"))
        own = _products(query, own_k)
        if scores is None or scores.plain_within(self.longest_prompt + self.length + 1):
            probs = self._side_by_side(self._by_row(seen), own).softmax(-1).to(dtype)
        else:
            both = torch.cat([self._by_row(seen), own], dim=3).view(rows, heads, 1, -1)
            probs = scores.probabilities(both, self._hidden(scores.window, prompt_k, own_k)[:, None, None]).to(dtype)
            probs = probs.view(*query.shape[:3], -1)
        prompt_probs, own_probs = probs.split([prompt_k.shape[2], own_k.shape[2]], dim=3)
        out = self._by_row(torch.matmul(self._by_prompt(prompt_probs), prompt_v))
        return (out + torch.matmul(own_probs, own_v)).reshape(rows, heads, -1)

    def _store(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new keys and values (B, H_kv, D); return the buffers (B, H_kv, capacity, D), zero past the end.

        A matmul would copy a part of the buffers first, so they are used whole, and grow in small blocks.
        """
        if layer not in self.own:
            empty = value.new_zeros(*value.shape[:2], self.BLOCK, value.shape[2])
            self.own[layer] = value.new_zeros(*key.shape[:2], self.BLOCK, key.shape[2]), empty
        elif self.own[layer][0].shape[2] == self.length:
            k, v = self.own[layer]
            more = self._more()
            self.own[layer] = _longer(k, more), _longer(v, more)
        k, v = self.own[layer]
        k[:, :, self.length], v[:, :, self.length] = key, value
        return k, v

    def _side_by_side(self, seen: Tensor, own: Tensor) -> Tensor:
        """Return both scores (B, H_kv, R, n) side by side in float32; -inf where the buffers hold nothing yet."""
        width = seen.shape[3]
        both = own.new_empty(*own.shape[:3], width + own.shape[3], dtype=torch.float32)
        both[..., :width], both[..., width:] = seen, own
        both[..., width + self.length + 1 :] = float("-inf")
        return both

    def _hidden(self, window: int | None, prompt_keys: Tensor, own_keys: Tensor) -> Tensor:
        """Return which keys each row's new token does not see: of its prompt, then its own, (B, Lp + capacity)."""
        place = torch.arange(max(prompt_keys.shape[2], own_keys.shape[2]), device=prompt_keys.device)
        prompt = (~self.prompt_valid)[self.parents]
        own = (place[: own_keys.shape[2]] > self.length).expand(len(prompt), -1)
        if window is not None:
            prompt = prompt | (place[: prompt.shape[1]] <= self.positions[:, None] - window)
            own = own | (place[: own.shape[1]] <= self.length - window)
        return torch.cat([prompt, own], dim=1)

    def _by_prompt(self, x: Tensor) -> Tensor:
        """Rearrange (B, H_kv, R, D) to (P, H_kv, G * R, D); missing rows repeat row 0."""
        if self.slots is not None:
            x = x[self.from_slots]
        x = x.view(-1, self.group_size, *x.shape[1:]).transpose(1, 2)
        return x.flatten(2, 3)

    def _by_row(self, x: Tensor) -> Tensor:
        """Rearrange (P, H_kv, G * R, D) to (B, H_kv, R, D)."""
        x = x.unflatten(2, (self.group_size, -1)).transpose(1, 2).flatten(0, 1)
        return x if self.slots is None else x[self.slots]


def _longer(x: Tensor, more: int) -> Tensor:
    """Return x (B, H, L, D) with so many zeros behind it: (B, H, L + more, D)."""
    return torch.cat([x, x.new_zeros(*x.shape[:2], more, x.shape[3])], dim=2)


def _products(query: Tensor, keys: Tensor) -> Tensor:
    """Return query (B, H, R, D) times keys (B, H, L, D): (B, H, R, L).

    On a CPU in bfloat16 a matmul with many rows and few columns takes half the time of one with few rows.
    """
    if query.device.type == "cpu" and query.dtype is torch.bfloat16:
        return torch.matmul(keys, query.transpose(2, 3)).transpose(2, 3)
    return torch.matmul(query, keys.transpose(2, 3))


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
        # Recurrent models call it cache_params.
        self.name = next((name for name in ("past_key_values", "cache_params") if out.get(name) is not None), "")
        if not self.name:
            raise ValueError(f"{type(self.causal).__name__} returns no cache that its rows could be decoded from")
        self.cache, self.length = out[self.name], ids.shape[1]
        logits: Tensor = out.logits[:, -1].float()
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """See Decoder."""
        options = {self.name: self.cache, "use_cache": True}
        if self.name == "past_key_values":
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
