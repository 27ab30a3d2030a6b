"""Decoders: one token per step for many rows. Which one a model gets is tried by rlvr.model.probe.

| decoder | for which models | what it costs |
|---|---|---|
| PreparedDecoder | Llama-like ones on a CPU, without adapters and experts | as below, from weights that are cast once |
| SharedDecoder | those that run packed | a prompt's keys and values are held once for all its rows |
| CacheDecoder | others, with transformers' own cache | the cache is copied for the rows; prompts of one length |
| WholeDecoder | those without a cache that can be copied | every step computes every row again |

`start` reads the prompts and returns each row's first logits, `step` takes each row's token and returns its next
logits, `keep` drops the other rows. A SharedDecoder takes further prompts (`enter`) while others are decoded.

A DecodeCache holds keys and values. Those of a prompt are held once for all its rows, or, where that costs less than to
look into two places, copied for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from rlvr.algo.batch import copy_to

from .attention.operations import Scores
from .cpu import processor
from .cpu.attention import forward_kernel
from .cpu.linear import PreparedModel, can_prepare
from .forward.packed import Layout, PackedGroups
from .forward.passes import adjust_logits, hidden_states, output_logits


class SeveralCaches:
    """Attention of one new token per row of several caches, their rows end to end; a Layout."""

    def __init__(self, caches: Sequence[DecodeCache]) -> None:
        self.caches, self.sizes = caches, [cache.rows for cache in caches]

    def bytes_per_layer(self) -> int:
        return sum(cache.bytes_per_layer() for cache in self.caches)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, scores: Scores | None = None
    ) -> Tensor:
        parts = zip(self.caches, *(x.split(self.sizes) for x in (query, key, value)), strict=True)
        return torch.cat([cache.attend(layer, q, k, v, scaling, scores) for cache, q, k, v in parts])


class DecodeCache:
    """Keys and values of P prompts and of B rows, and the attention of one new token per row.

    `parents` (B,) is each row's prompt, `positions` (B,) the position of its next token. `prompts` holds the keys and
    values of the prompts, (P, H_kv, Lp, D) each. On a CPU it is empty where prompts are short, or few rows share one:
    each row's buffers then begin with its prompt, which ends at the same place in all of them.
    """

    # Tokens by which the buffers of rows grow at least, and on a CPU at most: where it reads them whole, and where not.
    BLOCK, MOST, MOST_FUSED = 16, 64, 256
    # Copied prompts cost less than looking into two places up to so many numbers in the keys of a layer, and up to so
    # many times the tokens of the prompts: attention of one query takes half the time for each key of that of several.
    COPIED, COPIES = 2**19, 2

    def __init__(self, prompts: PackedGroups, counts: Sequence[int]) -> None:
        assert prompts.kept is not None
        device = prompts.ids.device
        self.prompt_valid = copy_to(prompts.prompt_rows.valid, device)  # (P, Lp)
        self.parents = copy_to(np.repeat(np.arange(len(counts)), counts), device)
        self.positions = self.prompt_valid.sum(-1)[self.parents]
        self.longest_prompt = int(prompts.longest)
        self.prompts: dict[int, tuple[Tensor, Tensor]] = {}
        self.own: dict[int, tuple[Tensor, Tensor]] = {}  # (B, H_kv, capacity, D)
        self.length = 0  # places of the buffers that are filled
        self.padding: Tensor | None = None  # (B, Lp), of copied prompts of several lengths
        # Whether plain attention is one call of torch's kernel for CPUs, which reads what is filled.
        self.fused = False
        self._bias: Tensor | None = None
        # Rotary embeddings return float32 keys under autocast; they are stored in the dtype of the matmul.
        held = {layer: (k.to(v.dtype), v) for layer, (k, v) in prompts.kept.items()}
        if device.type == "cpu" and self._copies_pay(held):
            self._copy_prompts(held, prompts.heads_per_key)
        else:
            self.prompts = held
            self._arrange()

    def _copies_pay(self, held: dict[int, tuple[Tensor, Tensor]]) -> bool:
        tokens = self.rows * self.longest_prompt
        widest = max(k.shape[1] * k.shape[3] for k, _ in held.values())
        return tokens * widest <= self.COPIED or tokens <= self.COPIES * int(self.prompt_valid.sum())

    def _copy_prompts(self, held: dict[int, tuple[Tensor, Tensor]], heads_per_key: int) -> None:
        """Begin the buffers of each row with its prompt."""
        width = self.prompt_valid.shape[1]
        places = torch.arange(width) - (width - self.prompt_valid.sum(-1, keepdim=True))  # (P, Lp), of the end's left
        if bool((places < 0).any()):
            self.padding = (places < 0)[self.parents]
        places = places.clamp_(min=0)[self.parents]
        prompt = self.parents[:, None]

        def put_first(x: Tensor) -> Tensor:
            buffer = x.new_zeros(self.rows, x.shape[1], width + self.BLOCK, x.shape[3])
            buffer[:, :, :width] = x[prompt, :, places].transpose(1, 2)
            return buffer

        self.own = {layer: (put_first(k), put_first(v)) for layer, (k, v) in held.items()}
        self.length = width
        short = all(v.dtype is torch.bfloat16 and k.shape == v.shape for k, v in self.own.values())
        self.fused = short and processor.decodes_fused(heads_per_key)

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
        shared = self.prompt_valid.numel() if self.prompts else 0
        return self.bytes_per_token() * (shared + self.rows * capacity)

    def bytes_per_token(self) -> int:
        """Return the bytes of one token's keys and values."""
        held = (self.prompts or self.own).values()
        return sum(x[0, :, 0].nbytes for pair in held for x in pair)

    def bytes_per_layer(self) -> int:
        """Return the bytes that an operation reads: the keys of a layer, and where it is one operation the values."""
        held = [*list(self.prompts.values())[:1], *list(self.own.values())[:1]]
        return sum(keys.nbytes + (values.nbytes if self.fused else 0) for keys, values in held)

    def _more(self) -> int:
        """Return by how many tokens the buffers of rows grow."""
        if self.positions.device.type == "cpu":
            share, most = (4, self.MOST_FUSED) if self.fused else (8, self.MOST)
            return max(self.BLOCK, min(self.length // share, most))
        return max(self.BLOCK, self.length // 4)

    def advance(self) -> None:
        """Count the step as done: every layer has stored its keys."""
        self.length += 1
        self.positions = self.positions + 1
        if self._bias is not None and self.length < self._bias.shape[3]:
            self._bias[..., self.length] = 0  # the next token sees its own place too

    def keep(self, rows: Tensor) -> None:
        """Drop the other rows, and the prompts that have none left."""
        if len(rows) == self.rows:
            return
        self.own = {layer: (k[rows], v[rows]) for layer, (k, v) in self.own.items()}
        self.positions, self._bias = self.positions[rows], None
        if not self.prompts:
            self.padding = None if self.padding is None else self.padding[rows]
            return
        used, self.parents = torch.unique(self.parents[rows], return_inverse=True)
        if len(used) < len(self.prompt_valid):
            self.prompt_valid = self.prompt_valid[used]
            self.prompts = {layer: (k[used], v[used]) for layer, (k, v) in self.prompts.items()}
        self._arrange()

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, scores: Scores | None = None
    ) -> Tensor:
        """query (B, H, D), key and value (B, H_kv, D) of the new tokens; see Layout."""
        rows, heads, dim = query.shape
        kv_heads, dtype = key.shape[1], value.dtype
        own_k, own_v = self._store(layer, key, value)
        if self.fused and (scores is None or scores.is_plain_within(self.length + 1)):
            grouped, end = query.to(dtype).reshape(rows, kv_heads, -1, dim), self.length + 1
            bias = None if self.padding is None else self._hiding(own_k.shape[2], dtype)[..., :end]
            k, v = own_k[:, :, :end], own_v[:, :, :end]
            return forward_kernel(grouped, k, v, 0.0, False, attn_mask=bias, scale=scaling)[0].reshape(rows, heads, dim)
        before = self.longest_prompt if self.prompts else 0
        plain = scores is None or scores.is_plain_within(before + self.length + 1)
        if not self.prompts:
            return self._attend_own(query, own_k, own_v, scaling, None if plain else scores)
        query = (query * scaling).to(dtype).reshape(rows, kv_heads, heads // kv_heads, dim)
        own = _products(query, own_k)
        prompt_k, prompt_v = self.prompts[layer]
        # (P, H_kv, G * H / H_kv, D): all queries of a prompt against its keys in one matmul.
        seen = torch.matmul(self._by_prompt(query), prompt_k.transpose(2, 3))
        if self.prompt_mask is not None:
            seen = seen.masked_fill(self.prompt_mask, float("-inf"))
        if plain:
            probs = self._side_by_side(self._by_row(seen), own).softmax(-1).to(dtype)
        else:
            assert scores is not None
            both = torch.cat([self._by_row(seen), own], dim=3).view(rows, heads, 1, -1)
            probs = scores.probabilities(both, self._hide_keys(scores.window, prompt_k, own_k)[:, None, None]).to(dtype)
            probs = probs.view(*query.shape[:3], -1)
        prompt_probs, own_probs = probs.split([prompt_k.shape[2], own_k.shape[2]], dim=3)
        out = self._by_row(torch.matmul(self._by_prompt(prompt_probs), prompt_v))
        return (out + torch.matmul(own_probs, own_v)).reshape(rows, heads, -1)

    def _attend_own(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float, scores: Scores | None) -> Tensor:
        """Return attention (B, H, D_v) of a row's query (B, H, D) on its buffers; scores: None for plain attention."""
        (rows, heads, dim), (_, kv_heads, capacity, _) = query.shape, keys.shape
        own = _products((query * scaling).to(values.dtype).reshape(rows, kv_heads, -1, dim), keys)
        if scores is None:
            probs = (own + self._hiding(capacity, processor.softmax_dtype(own))).softmax(-1)
        else:
            hidden = self._hide_keys(scores.window, None, keys)[:, None, None]
            probs = scores.probabilities(own.reshape(rows, heads, 1, -1), hidden).view(own.shape)
        return torch.matmul(probs.to(values.dtype), values).reshape(rows, heads, -1)

    def _store(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new keys and values (B, H_kv, D); return the buffers, see `own`, which are zero past the end.

        A matmul would copy a part of the buffers first, so they are used whole, and grow in small blocks.
        """
        if layer not in self.own:
            empty = value.new_zeros(*value.shape[:2], self.BLOCK, value.shape[2])
            self.own[layer] = value.new_zeros(*key.shape[:2], self.BLOCK, key.shape[2]), empty
        elif self.own[layer][0].shape[2] == self.length:
            k, v = self.own[layer]
            more = self._more()
            self.own[layer] = _lengthen(k, more), _lengthen(v, more)
        k, v = self.own[layer]
        k[:, :, self.length], v[:, :, self.length] = key, value
        return k, v

    def _hiding(self, capacity: int, dtype: torch.dtype) -> Tensor:
        """Return 0 for the places that a row's new token sees, -inf for the others: (B or 1, 1, 1, capacity)."""
        if self._bias is None or self._bias.shape[3] != capacity:
            hidden = torch.arange(capacity) > self.length
            if self.padding is not None:
                hidden = hidden.repeat(self.rows, 1)
                hidden[:, : self.padding.shape[1]] |= self.padding
            bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
            self._bias = bias.view(-1, 1, 1, capacity)
        return self._bias

    def _side_by_side(self, seen: Tensor, own: Tensor) -> Tensor:
        """Return both scores (B, H_kv, R, n) side by side in float32; -inf where the buffers hold nothing yet."""
        width = seen.shape[3]
        both = own.new_empty(*own.shape[:3], width + own.shape[3], dtype=torch.float32)
        both[..., :width], both[..., width:] = seen, own
        both[..., width + self.length + 1 :] = float("-inf")
        return both

    def _hide_keys(self, window: int | None, prompt_keys: Tensor | None, own_keys: Tensor) -> Tensor:
        """Return which keys each row's new token does not see: of its prompt, then its own, (B, Lp + capacity)."""
        place = torch.arange(own_keys.shape[2], device=own_keys.device)
        own = (place > self.length).repeat(len(own_keys), 1)
        if window is not None:
            own |= place <= self.length - window
        if prompt_keys is None:
            if self.padding is not None:
                own[:, : self.padding.shape[1]] |= self.padding
            return own
        prompt = (~self.prompt_valid)[self.parents]
        if window is not None:
            place = torch.arange(prompt_keys.shape[2], device=own_keys.device)
            prompt = prompt | (place <= self.positions[:, None] - window)
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


def _lengthen(x: Tensor, more: int) -> Tensor:
    """Return x (B, H, L, D) with so many zeros behind it: (B, H, L + more, D)."""
    return torch.cat([x, x.new_zeros(*x.shape[:2], more, x.shape[3])], dim=2)


def _products(query: Tensor, keys: Tensor) -> Tensor:
    """Return query (B, H, R, D) times keys (B, H, L, D): (B, H, R, L)."""
    if query.device.type == "cpu" and query.dtype is torch.bfloat16 and processor.puts_keys_first():
        return torch.matmul(keys, query.transpose(2, 3)).transpose(2, 3)
    return torch.matmul(query, keys.transpose(2, 3))


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

    summary: ClassVar[str] = "computes a prompt's cache once for all its completions"

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

    summary: ClassVar[str] = "copies the model's own cache for each completion, for prompts of one length at a time"

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

    summary: ClassVar[str] = "has no cache and computes every sequence again for each token, which is slow"

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
