"""The rollouts of a live run in memory: their lines, compressed, and their texts in lower case for the search."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from rlvr.runs.reading import Record, read_object
from rlvr.runs.records import Masks, parts_of_rollout

SEARCHABLE = 2**30  # bytes of a run's texts that are held for the search; beyond, each search unpacks the lines
BLOCK = 128  # rollouts that are compressed together, and searched as one text


class HeldRollouts:
    """The rollouts of a run by their numbers, in the log's order."""

    def __init__(self) -> None:
        self._blocks = list[bytes]()  # BLOCK lines each
        self._texts = list[tuple[bytes, list[int]]]()  # of the first blocks
        self._size = 0  # of these texts
        self._open = list[bytes]()  # lines of the block that is not full
        self._open_texts = list[bytes]()

    def __len__(self) -> int:
        return len(self._blocks) * BLOCK + len(self._open)

    def add(self, line: bytes, record: Record) -> None:
        """Append a rollout: its line in the log, which ends with a line end, and what it says."""
        self._open.append(line)
        self._open_texts.append(lower_case(record))
        if len(self._open) < BLOCK:
            return
        self._blocks.append(zlib.compress(b"".join(self._open), 1))
        if self._size <= SEARCHABLE:
            self._texts.append(join_texts(self._open_texts))
            self._size += len(self._texts[-1][0])
        self._open, self._open_texts = [], []

    def records(self, numbers: Sequence[int]) -> list[Record]:
        """Return rollouts by their numbers. Raise IndexError for a number that there is not."""
        blocks = {place: self._lines(place) for place in {number // BLOCK for number in numbers}}
        return [read_object(blocks[number // BLOCK][number % BLOCK]) or {} for number in numbers]

    def search(self, asked: str) -> bytes:
        """Return a byte for each rollout: 1 where a prompt, completion or turn has the text, in any case."""
        wanted, found = asked.lower().encode("utf-8", "surrogatepass"), bytearray(len(self))
        for place in range(len(self._blocks)):
            texts = self._texts[place] if place < len(self._texts) else self._unpack(place)
            mark_matches(found, place * BLOCK, *texts, wanted)
        mark_matches(found, len(self._blocks) * BLOCK, *join_texts(self._open_texts), wanted)
        return bytes(found)

    def _lines(self, place: int) -> list[bytes]:
        if place == len(self._blocks):
            return self._open
        return zlib.decompress(self._blocks[place]).split(b"\n")[:-1]

    def _unpack(self, place: int) -> tuple[bytes, list[int]]:
        return join_texts([lower_case(read_object(line) or {}) for line in self._lines(place)])


def mark_matches(found: bytearray, start: int, text: bytes, ends: Sequence[int], wanted: bytes) -> None:
    """Set found[start + i] to 1 where text i, which ends at ends[i] of the joined text, has what is wanted."""
    at = text.find(wanted)
    while at >= 0:
        place = bisect_right(ends, at)
        found[start + place] = 1
        at = text.find(wanted, ends[place])


def join_texts(texts: Iterable[bytes]) -> tuple[bytes, list[int]]:
    """Return texts as one, and where each ends."""
    parts = [text + b"\0" for text in texts]
    return b"".join(parts), list(accumulate(map(len, parts)))


def lower_case(record: Record) -> bytes:
    """Return what a search reads of a rollout: prompt, completion and turns in lower case."""
    text = "\0".join(part.text for part in parts_of_rollout(record, Masks()))
    return text.lower().encode("utf-8", "surrogatepass")
