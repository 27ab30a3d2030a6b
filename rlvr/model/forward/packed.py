"""Attention over sequences laid end to end (packed): no padding is computed, and a prompt once for its group.

A transformers model whose attention goes through `AttentionInterface` can run on one row of N tokens that belong to
many sequences, if its attention knows which tokens see which. `PackedGroups` knows it for training and prefill:
P prompts, then the completions that follow them; `rlvr.model.decode.DecodeCache` for one decoding step.
Everything else in the model (projections, norms, experts) works token by token and needs no change.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlvr.algo.batch import copy_to

from ..attention import flex, varlen
from ..attention.operations import Scores, layer_scores
from ..attention.rows import Pad, Spans, rectangles
from ..cpu.attention import PackedAttention, Rectangle

# The packed attention for models whose own attention is torch's fused one, and for those that multiply it out.
PACKED = {"sdpa": "rlvr_packed", "eager": "rlvr_packed_eager"}


class Unsupported(Exception):
    """The model's attention has a part that packed attention does not compute."""


class Layout(Protocol):
    """Which token sees which."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, scores: Scores | None = None
    ) -> Tensor:
        """query (N, H, D), key and value (N, H_kv, D) of one layer to the attention's output (N, H, D).

        scores: the layer's window, soft cap and sinks; None: plain attention.
        """
        ...


class PackedGroups:
    """P prompts and the completions that continue them, laid end to end: all prompts first, then all completions.

    prompts: P lists of ids; completions: for each prompt, a list of lists of ids (possibly empty ones). `ids` and
    `positions` are (1, N). `prompt_ends` (P,) is the index of each prompt's last token; `starts[p, g]` that of each
    completion's first. With `keep`, the keys and values of the prompts stay in `kept[layer]`, each (P, H_kv, Lp, D).
    `heads_per_key` is then how many heads share keys.

    A GPU computes plain attention in half precision by the flash kernel (rlvr.model.attention.varlen), windows, soft
    caps, sinks and float32 by flex_attention (rlvr.model.attention.flex), where these run; everything else is computed
    by rlvr.model.cpu.attention.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[Sequence[int]]],
        device: torch.device,
        *,
        keep: bool = False,
    ) -> None:
        # Rows, without empty completions; those of similar lengths lie together, so that they can be padded.
        prompt_lengths = np.array([len(prompt) for prompt in prompts])
        places = [(p, g) for p, group in enumerate(completions) for g, row in enumerate(group) if len(row)]
        rows = [completions[p][g] for p, g in places]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        parents = np.array([p for p, _ in places], dtype=np.int64)
        everything = [np.arange(len(prompts))]
        prompt_parts = everything if keep else rectangles(prompt_lengths, np.zeros_like(prompt_lengths))
        own_parts = rectangles(lengths, prompt_lengths[parents])
        prompt_order, order = np.concatenate(prompt_parts), np.concatenate([*own_parts, []]).astype(np.int64)

        # Tokens and their positions; a completion's continue those of its prompt.
        ordered = [prompts[p] for p in prompt_order] + [rows[r] for r in order]
        self.ids = copy_to(torch.tensor([i for row in ordered for i in row]), device)[None]
        offsets = np.concatenate([np.zeros_like(prompt_lengths), prompt_lengths[parents[order]]])
        positions = np.concatenate([np.arange(len(row)) + offset for row, offset in zip(ordered, offsets)])
        self.positions = copy_to(positions, device)[None]

        # Where each row lies.
        ends = np.cumsum(np.concatenate([prompt_lengths[prompt_order], lengths[order]]))
        self.prompt_ends = np.empty_like(prompt_lengths)
        self.prompt_ends[prompt_order] = ends[: len(prompts)] - 1
        self.starts = np.zeros((len(prompts), max(map(len, completions), default=0)), dtype=np.int64)
        for row, end in zip(order, ends[len(prompts) :]):
            self.starts[places[row]] = end - lengths[row]
        self.longest = max(prompt_lengths.max(initial=0), (lengths + prompt_lengths[parents]).max(initial=0))
        first, none, total = self.prompt_ends + 1 - prompt_lengths, np.zeros_like(prompt_lengths), prompt_lengths.sum()
        self._rows = (
            np.concatenate([prompt_lengths[prompt_order], lengths[order]]),
            np.concatenate([none, first[parents[order]]]),
            np.concatenate([none, prompt_lengths[parents[order]]]),
        )

        # How their attention is computed.
        self.kept: dict[int, tuple[Tensor, Tensor]] | None = {} if keep else None
        self.heads_per_key = 1
        self._varlen_plan: varlen.VarlenPlan | None = None
        self._flex_plans: dict[int | None, flex.FlexPlan] = {}
        prompt_blocks = [Rectangle(prompt_lengths[part], device) for part in prompt_parts]
        self.prompt_rows = prompt_blocks[0].rows  # all, with `keep`
        own = [
            Rectangle(lengths[part], device, (first, prompt_lengths, parents[part], int(total))) for part in own_parts
        ]
        self.attention = PackedAttention(prompt_blocks, own, self._rows)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, scores: Scores | None = None
    ) -> Tensor:
        """See Layout. Computed in the type of `value`: rotary embeddings return float32 under autocast."""
        dtype, device = value.dtype, value.device
        query, key = (query * scaling).to(dtype), key.to(dtype)
        if scores is not None and scores.is_plain_within(self.longest):
            scores = None
        kept = None
        with torch.autocast(device.type, enabled=False):
            if self.kept is not None:
                total, rows = self.attention.sizes[0], self.prompt_rows
                kept = self.kept[layer] = Pad.apply(key[:total], rows), Pad.apply(value[:total], rows)
                self.heads_per_key = query.shape[1] // key.shape[1]
            if scores is None and varlen.fits(query, key, value):
                self._varlen_plan = self._varlen_plan or varlen.VarlenPlan(self._rows, device)
                return varlen.attend(query, key, value, self._varlen_plan)
            if device.type == "cuda" and flex.is_available(device):
                window = None if scores is None else scores.window
                if window not in self._flex_plans:
                    self._flex_plans[window] = flex.FlexPlan(Spans.of_rows(*self._rows, window=window), device)
                return flex.attend(query, key, value, self._flex_plans[window], scores)
            return self.attention.attend(query, key, value, scores, kept)

    def bytes_per_layer(self) -> float:
        """Return infinity, so that all threads are used: attention of many queries is not bound by reading keys."""
        return math.inf


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Any]:
    """Compute attention for transformers: query (1, H, N, D). Without a `layout`, as the model itself would."""
    layout = options.pop("layout", None)
    if isinstance(layout, Windows):
        layout.read(module, attention_mask, query.shape[2])
    if layout is None or isinstance(layout, Windows):
        if module.config._attn_implementation == PACKED["eager"]:
            own = sys.modules[type(module).__module__].eager_attention_forward
        else:
            own = ALL_ATTENTION_FUNCTIONS["sdpa"]
        return own(module, query, key, value, attention_mask, **options)
    if options.get("position_bias") is not None:
        raise Unsupported("position_bias")
    scores = layer_scores(window_of(module), options.get("softcap"), options.get("s_aux"))
    scaling = options.get("scaling") or query.shape[-1] ** -0.5
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    return layout.attend(module.layer_idx, query, key, value, scaling, scores)[None], None


class Windows:
    """Read from the masks of a plain forward pass of one row which window each attention module has.

    Not every model names the window where it calls the attention, and not every named one is used.
    """

    def read(self, module: Any, mask: Tensor | None, length: int) -> None:
        """Set a module's window by its mask (1, 1, L, L), boolean or 0 where a key is seen. Unsupported: it is none.

        A window that is known stays, where the text of L = `length` tokens is too short to show it.
        """
        known = getattr(module, "rlvr_window", None)
        if known is not None and length <= known:
            return
        module.rlvr_window = None
        if mask is None:
            return
        seen = mask[0, 0] if mask.dtype is torch.bool else mask[0, 0] == 0
        window, place = int(seen[-1].sum()), torch.arange(len(seen), device=seen.device)
        back = place[:, None] - place
        if mask.shape[:2] != (1, 1) or not torch.equal(seen, (back >= 0) & (back < window)):
            raise Unsupported("its mask is no window")
        if window < len(seen):
            module.rlvr_window = window


def window_of(module: Any) -> int | None:
    """Return the sliding window that `Windows` has read for an attention module."""
    return getattr(module, "rlvr_window", None)


def pack(causal: Any) -> None:
    """Give a model the packed attention, which does as the model's own where no layout is given."""
    for own, name in PACKED.items():
        if name not in ALL_ATTENTION_FUNCTIONS:
            AttentionInterface.register(name, packed_attention)
            AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[own])
    own = causal.config._attn_implementation
    causal.set_attn_implementation(PACKED.get(own, own))


def unpack(causal: Any) -> None:
    """Give a model its own attention back."""
    own = {name: own for own, name in PACKED.items()}
    present = causal.config._attn_implementation
    causal.set_attn_implementation(own.get(present, present))
