"""Which process keeps the others waiting, judged from the signs that all of them give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A process is slow once the others have waited so long for it, and it takes so many times as long as they did.
SLOW_SECONDS = 30.0
SLOW_FACTOR = 3.0


@dataclass(frozen=True)
class Sign:
    """What a process says of itself: its place (see rlvr.model.progress), and a number that grows with each sign.

    waits: for other processes. where: the line of rlvr that its training has come to. left: it has done its part.
    """

    number: int
    step: int
    phase: str
    entered: int
    beats: int
    waits: bool = False
    where: str = ""
    left: bool = False

    @property
    def place(self) -> str:
        """The place in words."""
        return f"{self.phase} of step {self.step}" if self.step else self.phase


@dataclass
class Seen:
    """The last sign of a process, and when the judge first saw it, its place, and the phase that it is in."""

    sign: Sign
    heard: float
    moved: float
    began: float


class Judge:
    """Finds the processes that the others wait for. Times are seconds of the judge's own clock."""

    def __init__(self, count: int, timeout: float) -> None:
        self.count, self.timeout = count, timeout
        self.seen: dict[int, Seen] = {}
        self._behind: tuple[Sequence[int], int] = ((), 0)
        self._since = 0.0
        self._warned: set[tuple[Sequence[int], str]] = set()

    def hear(self, signs: Mapping[int, Sign], now: float) -> None:
        """Take the present signs, by process. One that has not given any yet is at the preparation."""
        unheard = Sign(0, 0, "preparation", 0, 0)
        for rank in range(self.count):
            seen, sign = self.seen.get(rank), signs.get(rank, unheard)
            if seen is None:
                seen = self.seen[rank] = Seen(sign, now, now, now)
            if sign is unheard:
                continue
            if sign.number != seen.sign.number:
                seen.heard = now
            if (sign.entered, sign.beats) != (seen.sign.entered, seen.sign.beats):
                seen.moved = now
            if sign.entered != seen.sign.entered:
                seen.began = now
            seen.sign = sign

    def last(self, now: float) -> list[int]:
        """Return the processes that the others wait for, as far as that can be told.

        Those that give no sign; else, of those in the earliest phase, the ones that do not wait for others; else, of
        these, the ones that have done least.
        """
        at_work = {rank: seen for rank, seen in self.seen.items() if not seen.sign.left}
        silent = [rank for rank, seen in at_work.items() if now - seen.heard > self.timeout]
        if silent or not at_work:
            return sorted(silent)
        earliest = min(seen.sign.entered for seen in at_work.values())
        behind = {rank: seen.sign for rank, seen in at_work.items() if seen.sign.entered == earliest}
        busy = [rank for rank, sign in behind.items() if not sign.waits]
        least = min(sign.beats for sign in behind.values())
        return sorted(busy or [rank for rank, sign in behind.items() if sign.beats == least])

    def stalled(self, now: float) -> str:
        """Return the line that names the processes without which nothing goes on; "" while something does.

        What any process does counts: one that has been waited for, and has just arrived, is not waited for any more.
        """
        last = self.last(now)
        if not last or now - max(seen.moved for seen in self.seen.values()) <= self.timeout:
            return ""
        silent = now - max(self.seen[rank].heard for rank in last) > self.timeout / 2
        sign = self.seen[last[0]].sign
        verb, place = (
            ("gives no sign", f"last in {sign.place}") if silent else ("makes no progress", f"in {sign.place}")
        )
        where = f" ({sign.where})" if sign.where else ""
        return (
            f"{self.name(last)} {verb if len(last) == 1 else verb.replace('s ', ' ', 1)} for {self.timeout:g} s, "
            f"{place}{where}; run the same command to resume from the last checkpoint, with a longer "
            "--run.stall-timeout if that was work"
        )

    def slow(self, now: float) -> str:
        """Return a line on a process that takes much longer than the others, once for each of its phases; else ""."""
        last = self.last(now)
        if not last or 2 * len(last) > self.count or self.count == 1:
            self._behind = ((), 0)
            return ""
        sign, began = self.seen[last[0]].sign, self.seen[last[0]].began
        behind = (tuple(last), sign.entered)
        if behind != self._behind:
            self._behind, self._since = behind, now
        took, others = now - began, self._since - began
        named = (tuple(last), sign.phase)
        if now - self._since <= SLOW_SECONDS or took <= SLOW_FACTOR * others or named in self._warned:
            return ""
        self._warned.add(named)
        where = f" ({sign.where})" if sign.where else ""
        return f"the others wait for {self.name(last)}: {took:.0f} s in {sign.place}, theirs took {others:.0f} s{where}"

    def name(self, ranks: Sequence[int]) -> str:
        """Return processes in words."""
        numbers = ", ".join(map(str, ranks))
        if self.count == 1:
            return "this process"
        return f"process{'es' if len(ranks) > 1 else ''} {numbers} of {self.count}"
