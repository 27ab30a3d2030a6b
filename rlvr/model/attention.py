"""Attention over sequences laid end to end (packed): no padding is computed, and a prompt once for its group.

A transformers model whose attention goes through `AttentionInterface` can run on one row of N tokens that belong to
many sequences, if its attention knows which tokens see which. `PackedGroups` knows it for training and prefill:
P prompts, then the completions that follow them; `rlvr.model.decoding.DecodeCache` for one decoding step. Everything
else in the model (projections, norms, experts) works token by token and needs no change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlvr.model import kernels
from rlvr.model.llama import llama_hidden_states
from rlvr.model.packing import ContextRows, Pad, Rows, Unpad, rectangles

NAME = "rlvr_packed"


class Unsupported(Exception):
    """The model's attention has a part (a window, a soft cap, sinks) that packed attention does not compute."""


class Layout(Protocol):
    """Which token sees which."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """query (N, H, D), key and value (N, H_kv, D) of one layer to the attention's output (N, H, D)."""
        ...


class PackedGroups:
    """P prompts and the completions that continue them, laid end to end: all prompts first, then all completions.

    prompts: P lists of ids; completions: for each prompt, a list of lists of ids (possibly empty ones). `ids` and
    `positions` are (1, N). `prompt_ends` (P,) is the index of each prompt's last token; `starts[p, g]` that of each
    completion's first. With `keep`, the keys and values of the prompts stay in `kept[layer]`, each (P, H_kv, Lp, D).

    Attention is computed in padded rectangles of rows of similar lengths (`rectangles`), whose tokens lie together.
    `score_elements` counts the query-key pairs in them.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[Sequence[int]]],
        device: torch.device,
        *,
        keep: bool = False,
    ) -> None:
        prompt_lengths = np.array([len(prompt) for prompt in prompts])
        # An empty completion has no row.
        places = [(p, g) for p, group in enumerate(completions) for g, row in enumerate(group) if len(row)]
        rows = [completions[p][g] for p, g in places]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        parents = np.array([p for p, _ in places], dtype=np.int64)
        everything = [np.arange(len(prompts))]
        prompt_parts = everything if keep else rectangles(prompt_lengths, np.zeros_like(prompt_lengths))
        own_parts = rectangles(lengths, prompt_lengths[parents])
        prompt_order, order = np.concatenate(prompt_parts), np.concatenate([*own_parts, []]).astype(np.int64)
        ordered = [prompts[p] for p in prompt_order] + [rows[r] for r in order]
        self.ids = torch.tensor([i for row in ordered for i in row], device=device)[None]
        offsets = np.concatenate([np.zeros_like(prompt_lengths), prompt_lengths[parents[order]]])
        positions = np.concatenate([np.arange(len(row)) + offset for row, offset in zip(ordered, offsets)])
        self.positions = torch.from_numpy(positions).to(device)[None]
        self.sizes = [int(prompt_lengths.sum()), int(lengths.sum())]
        ends = np.cumsum(np.concatenate([prompt_lengths[prompt_order], lengths[order]]))
        self.prompt_ends = np.empty_like(prompt_lengths)
        self.prompt_ends[prompt_order] = ends[: len(prompts)] - 1
        self.starts = np.zeros((len(prompts), max(map(len, completions), default=0)), dtype=np.int64)
        for row, end in zip(order, ends[len(prompts) :]):
            self.starts[places[row]] = end - lengths[row]
        self.kept: dict[int, tuple[Tensor, Tensor]] | None = {} if keep else None
        first = self.prompt_ends + 1 - prompt_lengths
        self._prompts = [_Block(prompt_lengths[part], device) for part in prompt_parts]
        self._own = [
            _Block(lengths[part], device, ContextRows(first, prompt_lengths, parents[part], self.sizes[0], device))
            for part in own_parts
        ]
        self.prompt_valid = torch.from_numpy(self._prompts[0].rows.valid).to(device)  # (P, Lp) with `keep`
        self.score_elements = sum(block.visible.size for block in self._prompts + self._own)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See Layout. Computed in the type of `value`: rotary embeddings return float32 under autocast."""
        dtype = value.dtype
        query, key = (query * scaling).to(dtype), key.to(dtype)
        hold = self.score_elements * query.shape[1] <= kernels.MAX_SCORES
        pieces = []
        with torch.autocast(value.device.type, enabled=False):
            prompt_query, own_query = query.split(self.sizes)
            prompt_key, prompt_value = key[: self.sizes[0]], value[: self.sizes[0]]
            for block, q, k, v in zip(self._prompts, *_cut(self._prompts, prompt_query, prompt_key, prompt_value)):
                k, v = Pad.apply(k, block.rows), Pad.apply(v, block.rows)
                if self.kept is not None:
                    self.kept[layer] = k, v
                pieces.append(block.attend(q, k, v, hold))
            if len(self._own) == 1:
                rows = self._own[0].keys
                pieces.append(self._own[0].attend(own_query, Pad.apply(key, rows), Pad.apply(value, rows), hold))
                return torch.cat(pieces)
            own = _cut(self._own, own_query, key[self.sizes[0] :], value[self.sizes[0] :])
            for block, q, k, v in zip(self._own, *own):
                k, v = (Pad.apply(torch.cat(both), block.keys) for both in ((prompt_key, k), (prompt_value, v)))
                pieces.append(block.attend(q, k, v, hold))
            return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


class _Block:
    """Rows that are computed as one rectangle: prompts, or completions with their contexts."""

    def __init__(self, lengths: np.ndarray, device: torch.device, context: ContextRows | None = None) -> None:
        self.rows = Rows(lengths, device)
        self.keys: Any = self.rows if context is None else context.followed_by(self.rows)
        contexts = np.zeros_like(lengths) if context is None else context.lengths
        self.visible = kernels.Visible(contexts, self.rows.width, device)
        self.count = int(lengths.sum())

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, hold: bool) -> Tensor:
        """query (n, H, D) of its tokens, keys and values (R, H_kv, Lk, D) to (n, H, D)."""
        grid = Pad.apply(query, self.rows)
        return Unpad.apply(kernels.attention(grid, keys, values, self.visible, hold=hold), self.rows)


def _cut(blocks: list[_Block], *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Split each tensor (n, ...) into the tokens of the blocks."""
    return [x.split([block.count for block in blocks]) for x in tensors]


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Compute attention for transformers: query (1, H, N, D). Without a `layout`, by transformers' sdpa."""
    layout = options.pop("layout", None)
    if layout is None:
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **options)
    for part in ("sliding_window", "softcap", "s_aux", "position_bias"):
        if options.get(part) is not None:
            raise Unsupported(part)
    scaling = options.get("scaling") or query.shape[-1] ** -0.5
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    return layout.attend(module.layer_idx, query, key, value, scaling)[None], None


def hidden_states(causal: Any, layout: Layout, ids: Tensor, positions: Tensor) -> Tensor:
    """Return the last hidden states (N, hidden) of packed tokens; ids and positions (1, N)."""
    return PASSES[causal.rlvr_pass](causal, layout, ids, positions)


def _own_forward(causal: Any, layout: Layout, ids: Tensor, positions: Tensor) -> Tensor:
    """Compute them by the model's own forward."""
    # A 4D mask is passed on as it is by every model, which spares building one; the layout takes its place.
    mask = torch.empty(1, 1, 1, 1, dtype=torch.bool, device=ids.device)
    out = causal.base_model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False, layout=layout)
    return out.last_hidden_state[0]


PASSES = {"llama": llama_hidden_states, "own": _own_forward}
