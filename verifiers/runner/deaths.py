"""Whom to blame when a worker process dies: the completion that it was given, or the verifier.

A completion must not stop a run, and a verifier that crashes on whatever it is given must not look like wrong answers.
An item whose worker died is tried again. When it has cost a second worker, the empty completion of the same problem is
tried as a control. The verifier is to blame (status error, no score) if the control dies too, if such items follow one
another without any verdict between, or if they outnumber the verdicts. Otherwise the completion is to blame (status
limit, score 0), as it is where the worker ran out of memory while reading it.

Workers run side by side, and one may start late: a few such items in a row tell nothing about the verifier while other
items wait or are in progress. They are held until a verdict clears the verifier, or no other item is left. Then what
counts is the order of the items, not that of the verdicts: all items but the deadly ones may be done before the first
worker is known to have died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlvr.types import Status, error, limit
from rlvr.verifiers.runner.base import Failure, log_failure
from rlvr.verifiers.runner.server import Ending
from rlvr.verifiers.runner.state import Item, Submission

TRIES = 2  # workers that an item may cost
FEW = 3  # deadly items (or one for each worker, if these are more) that do not show yet that the verifier fails

NOT_CHECKED = (Status.LIMIT, Status.TIMEOUT, Status.ERROR)  # such a verdict does not show that the verifier works


@dataclass(frozen=True, slots=True)
class _Suspect:
    item: Item
    ending: Ending
    seconds: float


class Deaths:
    """The deaths of a pool's workers, and the items whose verdict depends on what happens next.

    `workers`: how many run at a time.
    """

    def __init__(self, workers: int) -> None:
        self._few = max(FEW, workers)
        self._verdicts = 0
        self._deadly = 0  # items that cost TRIES workers
        self._in_a_row = 0  # of these, without a verdict since the first death of the first
        self._tested: dict[Item, _Suspect] = {}  # their control is under way
        self._held: list[_Suspect] = []  # their control survived

    def died(self, item: Item, ending: Ending, seconds: float) -> Item | None:
        """Record that a worker died on `item`; return the item to run next because of it, if any."""
        item.deaths += 1
        if item.deaths < TRIES:
            item.verdicts_before = self._verdicts
            return item
        if item.control_of is not None:
            _blame_verifier(self._tested.pop(item.control_of), "also on an empty completion")
            return None
        suspect = _Suspect(item, ending, seconds)
        if ending.out_of_memory:
            _blame_completion(suspect)
            return None
        self._deadly += 1
        self._in_a_row += item.verdicts_before == self._verdicts
        self._tested[item] = suspect
        return Item(item.call._replace(completion=""), item.submission, item.index, control_of=item)

    def survived(self, control: Item) -> None:
        """Record that a control got a verdict, or ran out of time: the worker lived."""
        assert control.control_of is not None
        self._held.append(self._tested.pop(control.control_of))
        if self._in_a_row == 0 and not self._outnumber():
            self._settle_held(_blame_completion)

    def verdict(self) -> None:
        """Record a verdict on an item that is not a control."""
        self._verdicts += 1
        self._in_a_row = 0
        if not self._outnumber():
            self._settle_held(_blame_completion)

    def decide(self) -> None:
        """Settle the held items by what is known now: no other item waits or is in progress."""
        few = self._few if self._verdicts else 1
        in_a_row = self._in_a_row > few and self._longest_row() > few
        self._settle_held(_blame_verifier if in_a_row or self._outnumber() else _blame_completion)

    def _longest_row(self) -> int:
        """Return how many deadly items follow one another in the order in which they were submitted."""
        order = {submission: place for place, submission in enumerate(dict.fromkeys(self.submissions()))}
        items = sorted((suspect.item for suspect in self._held), key=lambda item: (order[item.submission], item.index))
        longest, row = 0, max(0, self._in_a_row - len(items))
        before: Item | None = None
        for item in items:
            row = 1 if _verdict_between(before, item) else row + 1
            longest = max(longest, row)
            before = item
        return longest

    def _settle_held(self, blame: Callable[[_Suspect], None]) -> None:
        for suspect in self._held:
            blame(suspect)
        self._held.clear()

    @property
    def holds(self) -> bool:
        """Whether items wait for `decide`."""
        return bool(self._held)

    def submissions(self) -> Iterator[Submission]:
        """Return the submissions of the held items."""
        return (suspect.item.submission for suspect in self._held)

    def _outnumber(self) -> bool:
        return self._deadly > max(self._few, self._verdicts)


def _verdict_between(before: Item | None, item: Item) -> bool:
    """Whether a verdict is known of an item after `before` (None: of an earlier submission) and before `item`."""
    between = item.submission.verdicts[: item.index]
    if before is not None and before.submission is item.submission:
        between = between[before.index + 1 :]
    elif before is not None:
        between += before.submission.verdicts[before.index + 1 :]
    return any(verdict is not None and verdict.status not in NOT_CHECKED for verdict in between)


def _blame_verifier(suspect: _Suspect, where: str = "on one completion after another") -> None:
    reason = f"the worker process {suspect.ending.text}, {where}"
    log_failure(Failure(f"the worker process {suspect.ending.text}", f"{reason}: the verifier crashes"))
    suspect.item.settle(error(reason).timed(suspect.seconds))


def _blame_completion(suspect: _Suspect) -> None:
    reason = f"the worker process {suspect.ending.text}, twice"
    suspect.item.settle(limit(reason).timed(suspect.seconds))
