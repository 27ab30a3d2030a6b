"""Whom to blame when a worker process dies: the completion that it was given, or the verifier.

A completion must not stop a run, and a verifier that crashes on whatever it is given must not look like wrong answers.
An item whose worker died is tried again. When it has cost a second worker, the empty completion of the same problem is
tried as a control. The completion is to blame (status limit, score 0) if the control survives and another item gets a
verdict before a second one costs two workers. Otherwise the verifier is (status error, no score).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlvr.types import error, limit
from rlvr.verifiers.runner.base import Failure, log_failure
from rlvr.verifiers.runner.server import Ending
from rlvr.verifiers.runner.state import Item, Submission

TRIES = 2
FEW = 3  # so many items may cost their workers before they must be fewer than the verdicts


@dataclass(frozen=True, slots=True)
class _Suspect:
    item: Item
    ending: Ending
    seconds: float


class Deaths:
    """The deaths of a pool's workers, and the items whose verdict depends on what happens next."""

    def __init__(self) -> None:
        self._verdicts = 0
        self._deadly = 0  # items that cost TRIES workers
        self._in_a_row = 0  # of these, without a verdict between
        self._tested: dict[Item, _Suspect] = {}  # their control is under way
        self._held: list[_Suspect] = []  # their control survived

    def died(self, item: Item, ending: Ending, seconds: float) -> Item | None:
        """Record that a worker died on `item`; return the item to run next because of it, if any."""
        item.deaths += 1
        if item.deaths < TRIES:
            return item
        if item.control_of is not None:
            _blame_verifier(self._tested.pop(item.control_of), "also on an empty completion")
            return None
        suspect = _Suspect(item, ending, seconds)
        if ending.out_of_memory:
            _blame_completion(suspect)
            return None
        self._deadly += 1
        self._in_a_row += 1
        if self._verifier_fails():
            _blame_verifier(suspect, "on one completion after another")
            self.decide()
            return None
        self._tested[item] = suspect
        return Item((item.payload[0], ""), item.submission, item.index, control_of=item)

    def survived(self, control: Item) -> None:
        """Record that a control got a verdict, or ran out of time: the worker lived."""
        assert control.control_of is not None
        self._held.append(self._tested.pop(control.control_of))
        if self._in_a_row == 0 or self._verifier_fails():
            self.decide()

    def verdict(self) -> None:
        """Record a verdict on an item that is no control."""
        self._verdicts += 1
        self._in_a_row = 0
        self.decide()

    def decide(self) -> None:
        """Settle the held items by what is known now."""
        for suspect in self._held:
            if self._verifier_fails():
                _blame_verifier(suspect, "on one completion after another")
            else:
                _blame_completion(suspect)
        self._held.clear()

    @property
    def holds(self) -> bool:
        """Whether items wait for `decide`."""
        return bool(self._held)

    def submissions(self) -> Iterator[Submission]:
        """Those of the held items."""
        return (suspect.item.submission for suspect in self._held)

    def _verifier_fails(self) -> bool:
        return self._in_a_row > 1 or self._deadly > max(FEW, self._verdicts)


def _blame_verifier(suspect: _Suspect, where: str) -> None:
    reason = f"the worker process {suspect.ending.text}, {where}"
    log_failure(Failure(f"the worker process {suspect.ending.text}", f"{reason}: the verifier crashes"))
    suspect.item.settle(error(reason).timed(suspect.seconds))


def _blame_completion(suspect: _Suspect) -> None:
    reason = f"the worker process {suspect.ending.text}, twice"
    suspect.item.settle(limit(reason).timed(suspect.seconds))
