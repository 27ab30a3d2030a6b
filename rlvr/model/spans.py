"""Which tokens each of N tokens laid end to end sees, in memory linear in N; and cut into blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


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
