"""Rows of tokens laid end to end: padded into rectangles and back (`Rows`), and which token sees which (`Spans`).

The gradients of padding are gathers too. Spans take memory linear in the tokens, and are cut into blocks and tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvr.algo.batch import copy_to

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


class GroupRows:
    """Rows of keys for R completions: each one's prompt, then its own tokens, (R, heads, Lp + Lc, D).

    starts, lengths (P,): first place and length of each prompt among the `total` tokens of all; parents (R,): each
    row's prompt, in any order. contexts (R,): the lengths of the rows' prompts.
    """

    def __init__(self, starts: np.ndarray, lengths: np.ndarray, parents: np.ndarray, total: int, own: Rows) -> None:
        used, self.parents = np.unique(parents, return_inverse=True)
        self.contexts, self.total, self.own = lengths[parents], total, own
        self.prompts = Rows(lengths[used], own.device)
        real = np.concatenate([np.arange(length) + start for start, length in zip(starts[used], lengths[used])])
        self.tokens = real[self.prompts.tokens]
        # Where the tokens of the used prompts go; None: all prompts are used, in order.
        self.places = None if np.array_equal(real, np.arange(total)) else copy_to(real, own.device)
        counts = np.bincount(self.parents)
        self.even = bool((counts == counts[0]).all() and (np.diff(self.parents) >= 0).all())
        ranks = np.empty_like(self.parents)
        for parent in range(len(used)):
            ranks[self.parents == parent] = np.arange(counts[parent])
        self.by_rank = [np.flatnonzero(ranks == rank) for rank in range(counts.max())]
        self._into: dict[int, Tensor] = {}

    def pad(self, x: Tensor) -> Tensor:
        """(n, heads, D) of all prompts and of these completions to (R, heads, Lp + Lc, D)."""
        heads, dim = x.shape[1:]
        if heads not in self._into:
            own = self.own.tokens + self.total
            tokens = np.concatenate([self.tokens[self.parents], own], axis=1)
            into = tokens[:, None] * heads + np.arange(heads)[:, None]
            self._into[heads] = copy_to(into.reshape(-1), x.device)
        grid = x.reshape(-1, dim).index_select(0, self._into[heads])
        return grid.view(self.own.rows, heads, self.prompts.width + self.own.width, dim)

    def pad_backward(self, grid: Tensor) -> Tensor:
        """The adjoint of `pad`: a prompt's gradient is summed over its completions."""
        shared, own = grid.split([self.prompts.width, self.own.width], dim=2)
        return torch.cat([self._sum_by_prompt(shared), self.own.unpad(own)])

    def _sum_by_prompt(self, shared: Tensor) -> Tensor:
        """Sum (R, heads, Lp, D) over the rows of each prompt: (total, heads, D), the tokens of all prompts.

        The order of the additions is fixed, so that threads cannot change the result.
        """
        if self.even:
            grid = shared.unflatten(0, (self.prompts.rows, len(self.by_rank))).sum(1)
        else:
            grid = shared.new_zeros(self.prompts.rows, *shared.shape[1:])
            for place in self.by_rank:  # without repeated parents
                index = copy_to(self.parents[place], shared.device)
                grid.index_add_(0, index, shared[copy_to(place, shared.device)])
        tokens = self.prompts.unpad(grid)
        if self.places is None:
            return tokens
        return tokens.new_zeros(self.total, *tokens.shape[1:]).index_copy_(0, self.places, tokens)


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


@dataclass(frozen=True)
class Spans:
    """The keys of each of N queries: two intervals of tokens. All arrays are (N,) int64.

    Query i sees the tokens own[i] <= k <= i of its row, and context[i] <= k < context_end[i] of its row's context.
    """

    own: np.ndarray
    context: np.ndarray
    context_end: np.ndarray

    @classmethod
    def of_rows(
        cls, lengths: np.ndarray, context_starts: np.ndarray, context_lengths: np.ndarray, window: int | None = None
    ) -> Spans:
        """Return the spans of R rows that lie end to end, by their lengths and their contexts' first token and length.

        window: a query sees this many keys at most, itself included and its context's last ones.
        """
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        context, end = (np.repeat(x, lengths) for x in (context_starts, context_starts + context_lengths))
        if window is None:
            return cls(starts, context, end)
        token = np.arange(len(starts))
        first = np.clip(end + (token - starts) - window + 1, context, end)
        return cls(np.maximum(starts, token - window + 1), first, end)

    def block_map(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return which blocks of `size` keys some query of a block sees, and which all its queries see whole.

        Both (blocks, blocks) bool, queries first. Time and memory grow with N and with the square of N / size.
        """
        count, token = -(-len(self.own) // size), np.arange(len(self.own))
        intervals = [(self.own, token + 1), (self.context, self.context_end)]
        seen, whole = (np.zeros((count, count + 1), dtype=np.int64) for _ in range(2))
        for first, end in intervals:
            real = end > first
            block, a, b = token[real] // size, first[real], end[real]
            np.add.at(seen, (block, a // size), 1)
            np.add.at(seen, (block, -(-b // size)), -1)
            inner = b // size > -(-a // size)
            np.add.at(whole, (block[inner], -(-a[inner] // size)), 1)
            np.add.at(whole, (block[inner], b[inner] // size), -1)
        queries = np.bincount(token // size, minlength=count)[:, None]
        return np.cumsum(seen, axis=1)[:, :-1] > 0, np.cumsum(whole, axis=1)[:, :-1] == queries


@dataclass(frozen=True)
class Tile:
    """Queries first <= i < last, counted from their block's first, and keys start <= k < end, of all tokens.

    own: the keys are of the queries' own rows, else of their context. whole: every query sees every key.
    """

    first: int
    last: int
    start: int
    end: int
    own: bool
    whole: bool


def tiles(spans: Spans, queries: int, keys: int) -> Iterator[tuple[int, int, list[Tile]]]:
    """Yield blocks of at most `queries` tokens, as first and last + 1, with tiles of at most `keys` keys.

    The tiles of a block hold every key that its queries see, each once; keys that none of them sees are skipped.
    """
    for first in range(0, len(spans.own), queries):
        last = min(first + queries, len(spans.own))
        found = list(_context_tiles(spans, first, last, keys))
        own = spans.own[first:last]
        low, high = int(own.min()), int(own.max())
        starts = range(last, low, -keys)  # backwards: only the tile at the diagonal is masked, and a window's first
        for end in reversed(starts):
            start = max(end - keys, low)
            found.append(Tile(0, last - first, start, end, True, end <= first + 1 and start >= high))
        yield first, last, found


def _context_tiles(spans: Spans, first: int, last: int, keys: int) -> Iterator[Tile]:
    """Yield the tiles of the contexts of some queries, in runs of queries with the same context."""
    context, end = spans.context[first:last], spans.context_end[first:last]
    cuts = np.flatnonzero(np.diff(end)) + 1
    for a, b in zip([0, *cuts.tolist()], [*cuts.tolist(), last - first]):
        low, high, stop = int(context[a:b].min()), int(context[a:b].max()), int(end[a])
        for start in range(low, stop, keys):
            yield Tile(a, b, start, min(start + keys, stop), False, start >= high)
