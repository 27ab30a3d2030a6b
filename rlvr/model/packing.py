"""Pad tokens laid end to end into rectangles of rows, and unpad them; the gradients are gathers too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvr.algo.transfer import copy_to

# A rectangle with fewer query-key pairs is not split: more operations would cost more than the padding.
SMALL, MAX_PADDING = 2**19, 1.5


def rectangles(lengths: np.ndarray, contexts: np.ndarray) -> list[np.ndarray]:
    """Group rows (R,) into rectangles: lists of indices, each ascending, that together hold every row once.

    A row of n tokens after a context of c costs n (c + n) query-key pairs; in a rectangle every row costs as many as
    the longest of each. A rectangle has at most MAX_PADDING times the pairs of its rows, or SMALL. If one rectangle can
    hold all rows, there is one.
    """
    if not len(lengths):
        return []
    work = lengths * (contexts + lengths)
    if len(lengths) * lengths.max() * (contexts.max() + lengths.max()) <= max(SMALL, MAX_PADDING * work.sum()):
        return [np.arange(len(lengths))]
    # Rows whose lengths differ by at most a fifth are grouped, ordered by their contexts.
    size = np.floor(np.log(np.maximum(lengths, 1)) / np.log(1.2))
    found: list[list[int]] = []
    longest = context = real = 0
    for row in np.lexsort((-contexts, -size)).tolist():
        longest, context, real = max(longest, lengths[row]), max(context, contexts[row]), real + work[row]
        if not found or (len(found[-1]) + 1) * longest * (context + longest) > max(SMALL, MAX_PADDING * real):
            found.append([])
            longest, context, real = lengths[row], contexts[row], work[row]
        found[-1].append(row)
    return [np.sort(np.array(rows)) for rows in found]


class Rows:
    """n tokens end to end as R rows of a padded rectangle (R, L); a padding place reads token 0 and is never unpadded.

    The rectangle has the layout (R, heads, L, D) that the matmuls of attention want: (n * heads, D) is gathered by one
    index for all heads.
    """

    def __init__(self, lengths: np.ndarray, device: torch.device) -> None:
        self.rows, self.width = len(lengths), int(lengths.max(initial=0))
        self.valid = np.arange(self.width) < lengths[:, None]
        self.tokens = np.maximum(np.cumsum(self.valid).reshape(self.valid.shape) - 1, 0)
        self.device = device
        self._indices: dict[int, tuple[Tensor, Tensor]] = {}

    def indices(self, heads: int) -> tuple[Tensor, Tensor]:
        """Return the index into the rectangle (R * heads * L,), and the one out of it (n * heads,)."""
        if heads not in self._indices:
            head = np.arange(heads)
            row, column = np.nonzero(self.valid)
            into = self.tokens[:, None] * heads + head[:, None]
            out = (row[:, None] * heads + head) * self.width + column[:, None]
            self._indices[heads] = copy_to(into.reshape(-1), self.device), copy_to(out.reshape(-1), self.device)
        return self._indices[heads]

    def pad(self, x: Tensor) -> Tensor:
        """Pad (n, heads, D) to (R, heads, L, D)."""
        into, _ = self.indices(x.shape[1])
        return x.reshape(-1, x.shape[2]).index_select(0, into).view(self.rows, x.shape[1], self.width, x.shape[2])

    def unpad(self, grid: Tensor) -> Tensor:
        """Unpad (R, heads, L, D) to (n, heads, D)."""
        _, out = self.indices(grid.shape[1])
        return grid.reshape(-1, grid.shape[3]).index_select(0, out).view(-1, grid.shape[1], grid.shape[3])

    def unpad_backward(self, x: Tensor) -> Tensor:
        """Return the gradient of `unpad`: (n, heads, D) to (R, heads, L, D), with zeros in the padding."""
        _, out = self.indices(x.shape[1])
        grid = x.new_zeros(self.rows * x.shape[1] * self.width, x.shape[2])
        return grid.index_copy_(0, out, x.reshape(-1, x.shape[2])).view(self.rows, x.shape[1], self.width, x.shape[2])

    def pad_backward(self, grid: Tensor) -> Tensor:
        """Return the gradient of `pad`. Each token has one real place; what padding places received is left out."""
        return self.unpad(grid)


class ContextRows:
    """The contexts of R rows: for each the tokens of its parent among P prompts, (R, heads, Lp, D).

    starts, lengths (P,): first place and length of each prompt among the `total` tokens of all; parents (R,), in any
    order. The attribute `lengths` is (R,), of the rows' contexts.
    """

    def __init__(
        self, starts: np.ndarray, lengths: np.ndarray, parents: np.ndarray, total: int, device: torch.device
    ) -> None:
        used, self.parents = np.unique(parents, return_inverse=True)
        self.lengths, self.total = lengths[parents], total
        self.rows = Rows(lengths[used], device)
        real = np.concatenate([np.arange(length) + start for start, length in zip(starts[used], lengths[used])])
        self.tokens = real[self.rows.tokens]
        # Where the tokens of the used prompts go; None: all prompts are used, in order.
        self.places = None if np.array_equal(real, np.arange(total)) else copy_to(real, device)
        counts = np.bincount(self.parents)
        self.even = bool((counts == counts[0]).all() and (np.diff(self.parents) >= 0).all())
        ranks = np.empty_like(self.parents)
        for parent in range(len(used)):
            ranks[self.parents == parent] = np.arange(counts[parent])
        self.by_rank = [np.flatnonzero(ranks == rank) for rank in range(counts.max())]

    def followed_by(self, own: Rows) -> GroupRows:
        """Return rows of keys: a row's context, then its own tokens."""
        return GroupRows(self, own)

    def summed(self, shared: Tensor) -> Tensor:
        """Sum (R, heads, Lp, D) over the rows of each prompt: (total, heads, D), the tokens of all prompts.

        The order of the additions is fixed, so that threads cannot change the result.
        """
        if self.even:
            grid = shared.unflatten(0, (self.rows.rows, len(self.by_rank))).sum(1)
        else:
            grid = shared.new_zeros(self.rows.rows, *shared.shape[1:])
            for place in self.by_rank:  # without repeated parents
                index = copy_to(self.parents[place], shared.device)
                grid.index_add_(0, index, shared[copy_to(place, shared.device)])
        tokens = self.rows.unpad(grid)
        if self.places is None:
            return tokens
        return tokens.new_zeros(self.total, *tokens.shape[1:]).index_copy_(0, self.places, tokens)


class GroupRows:
    """Rows of keys for completions: the prompt's, then the completion's own, (R, heads, Lp + Lc, D)."""

    def __init__(self, context: ContextRows, own: Rows) -> None:
        self.context, self.own = context, own
        self._into: dict[int, Tensor] = {}

    def pad(self, x: Tensor) -> Tensor:
        """(n, heads, D) of all prompts and of these completions to (R, heads, Lp + Lc, D)."""
        heads, dim = x.shape[1:]
        if heads not in self._into:
            own = self.own.tokens + self.context.total
            tokens = np.concatenate([self.context.tokens[self.context.parents], own], axis=1)
            into = tokens[:, None] * heads + np.arange(heads)[:, None]
            self._into[heads] = copy_to(into.reshape(-1), x.device)
        grid = x.reshape(-1, dim).index_select(0, self._into[heads])
        return grid.view(self.own.rows, heads, self.context.rows.width + self.own.width, dim)

    def pad_backward(self, grid: Tensor) -> Tensor:
        """The adjoint of `pad`: a prompt's gradient is summed over its completions."""
        shared, own = grid.split([self.context.rows.width, self.own.width], dim=2)
        return torch.cat([self.context.summed(shared), self.own.unpad(own)])


class Pad(torch.autograd.Function):
    """`rows.pad` with a gradient that is gathered, where index_select's own would be scattered and added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Rows | GroupRows) -> Tensor:
        ctx.rows = rows
        return rows.pad(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.pad_backward(grad), None


class Unpad(torch.autograd.Function):
    """`rows.unpad`; what is not unpadded gets the gradient zero."""

    @staticmethod
    def forward(ctx: Any, grid: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return rows.unpad(grid)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.unpad_backward(grad), None
