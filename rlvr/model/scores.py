"""How the attention of one layer differs from the plain one: a sliding window, a soft cap, sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scores:
    """How the attention of one layer differs from the plain one; every part may be missing.

    window: a query sees this many keys, its own included. softcap: scores s become softcap * tanh(s / softcap)
    (Gemma 2, arXiv:2408.00118). sinks (H,): one logit for each head that takes probability from the keys (gpt-oss).
    """

    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def plain_within(self, length: int) -> bool:
        """Return whether this is plain attention for rows of up to `length` tokens."""
        return self.softcap is None and self.sinks is None and (self.window is None or self.window >= length)

    def probabilities(self, scores: Tensor, hidden: Tensor) -> Tensor:
        """Return float32 softmax of scores (..., H, Lq, Lk) over the keys, 0 where `hidden` is True."""
        scores = self.capped(scores.float()).masked_fill(hidden, float("-inf"))
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]

    def capped(self, scores: Tensor) -> Tensor:
        """Return scores below the soft cap."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


def layer_scores(window: Any, softcap: Any = None, sinks: Any = None) -> Scores | None:
    """Return a layer's Scores, None for plain attention."""
    return None if window is None and softcap is None and sinks is None else Scores(window, softcap, sinks)
