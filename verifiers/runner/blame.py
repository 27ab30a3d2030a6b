"""Who is to blame when a worker process dies or hangs: the completion that it was given, or the verifier.

One completion must not stop a run. A verifier that fails on every input must not look like wrong answers. So a
*control* is run: an answer to the same problem that every verifier should be able to check.

|            | a worker died (`Deaths`)                   | no verdict at the deadline (`Hangs`)                     |
|------------|--------------------------------------------|----------------------------------------------------------|
| first      | the item is tried again                    | -                                                        |
| control    | an empty completion                        | the reference's answer, else an empty completion; in     |
|            |                                            | twice the time                                           |
| completion | status limit, score 0; at once if it ran   | status timeout, score 0                                  |
| verifier   | status error, no score: the control died   | status error, no score: the control has no verdict       |
|            | too; such items follow one another without | either; or the verifier has hung on one completion after |
|            | a verdict between; they outnumber verdicts | another and has never given a verdict                    |

Workers run side by side, and one may start late. So a few failures in a row say nothing about the verifier while other
items wait or are in progress. Such items are *held* until a verdict clears the verifier, or until no other item is
left. For deaths the order of the items counts then, not the order of the verdicts: all other items may be done before
the first death is reported.

A hang is known for its problem: the other items of a problem whose control hangs are errors and are not run. Nor are
the other items of a call, if the verifier hangs on two problems and has never given a verdict. This knowledge ends when
the pool is idle: the machine may have been busy, and a service may be back.

The first call in a process may import packages. Where such calls are slow, they get that much more time, and an item
that was late in one is run once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rlvr.core.types import Status, error, limit, timeout

from .base import Failure, log_failure
from .processes import Ending, Item, Submission

TRIES = 2  # workers that an item may cost
FEW = 3  # deadly items (or one for each worker, if there are more workers) that say nothing yet about the verifier
CONTROL_TIME = 2  # time of a control, in deadlines of an item; also the most that the start of a process may add
SLOW_START = 0.5  # from this share of the deadline on, a first call counts as slow
NOT_CHECKED = (Status.LIMIT, Status.TIMEOUT, Status.ERROR)  # such a verdict does not show that the verifier works
ADVICE = (
    "the verifier hangs, or is slower than its time limit; import large packages at the top of its module or in its "
    "method warm_up, which do not count"
)


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An item that cost TRIES workers."""

    item: Item
    ending: Ending
    seconds: float

    def blame_verifier(self, where: str = "on one completion after another") -> None:
        """Settle the item as an error, and log it."""
        reason = f"the worker process {self.ending.text}, {where}"
        log_failure(Failure(f"the worker process {self.ending.text}", f"{reason}: the verifier crashes"))
        self.item.settle(error(reason).with_seconds(self.seconds))

    def blame_completion(self) -> None:
        """Settle the item with score 0."""
        self.item.settle(limit(f"the worker process {self.ending.text}, twice").with_seconds(self.seconds))


class Deaths:
    """The deaths of a pool's workers, and the items whose verdict depends on what happens next.

    workers: how many run at a time.
    """

    def __init__(self, workers: int) -> None:
        self._few = max(FEW, workers)
        self._verdicts = 0
        self._deadly = 0  # items that cost TRIES workers
        self._in_a_row = 0  # of these, without a verdict since the first death of the first
        self._tested: dict[Item, _Suspect] = {}  # their control is in progress
        self._held: list[_Suspect] = []  # their control survived

    def report_death(self, item: Item, ending: Ending, seconds: float) -> Item | None:
        """Record that a worker died on `item`; return the item to run next because of it, if any."""
        item.deaths += 1
        if item.deaths < TRIES:
            item.verdicts_before = self._verdicts
            return item
        if item.control_of is not None:
            self._tested.pop(item.control_of).blame_verifier("also on an empty completion")
            return None
        suspect = _Suspect(item, ending, seconds)
        if ending.out_of_memory:
            suspect.blame_completion()
            return None
        self._deadly += 1
        self._in_a_row += item.verdicts_before == self._verdicts
        self._tested[item] = suspect
        return Item(item.call._replace(completion=""), item.submission, item.index, control_of=item)

    def report_survival(self, control: Item) -> None:
        """Record that the worker of a control lived: it got a verdict, or ran out of time."""
        assert control.control_of is not None
        self._held.append(self._tested.pop(control.control_of))
        if self._in_a_row == 0 and not self._outnumber():
            self._settle_held(_Suspect.blame_completion)

    def report_verdict(self) -> None:
        """Record a verdict on an item that is not a control."""
        self._verdicts += 1
        self._in_a_row = 0
        if not self._outnumber():
            self._settle_held(_Suspect.blame_completion)

    def decide(self) -> None:
        """Settle the held items by what is known now: no other item waits or is in progress."""
        few = self._few if self._verdicts else 1
        in_a_row = self._in_a_row > few and self._longest_row() > few
        blames_verifier = in_a_row or self._outnumber()
        self._settle_held(_Suspect.blame_verifier if blames_verifier else _Suspect.blame_completion)

    def _longest_row(self) -> int:
        """Return how many deadly items follow one another in the order in which they were submitted."""
        order = {submission: place for place, submission in enumerate(dict.fromkeys(self.submissions()))}
        items = sorted((suspect.item for suspect in self._held), key=lambda item: (order[item.submission], item.index))
        longest, row = 0, max(0, self._in_a_row - len(items))
        before: Item | None = None
        for item in items:
            row = 1 if _has_verdict_between(before, item) else row + 1
            longest = max(longest, row)
            before = item
        return longest

    def _settle_held(self, blame: Callable[[_Suspect], None]) -> None:
        for suspect in self._held:
            blame(suspect)
        self._held.clear()

    def submissions(self) -> Iterator[Submission]:
        """Return the submissions of the held items."""
        return (suspect.item.submission for suspect in self._held)

    def _outnumber(self) -> bool:
        return self._deadly > max(self._few, self._verdicts)


def _has_verdict_between(before: Item | None, item: Item) -> bool:
    """Whether a verdict is known of an item after `before` (None: of an earlier submission) and before `item`."""
    between = item.submission.verdicts[: item.index]
    if before is not None and before.submission is item.submission:
        between = between[before.index + 1 :]
    elif before is not None:
        between += before.submission.verdicts[before.index + 1 :]
    return any(verdict is not None and verdict.status not in NOT_CHECKED for verdict in between)


class Hangs:
    """The items that had no verdict at their deadline, and what is known of their problems and of the verifier.

    timeout: seconds for an item.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._late = f"no verdict within {timeout:g} s"
        self._worked = False  # a verdict on any item
        self._start_seconds = 0.0  # the slowest first call of a process
        self._controls: dict[Item, list[Item]] = {}  # in progress, with the late items of their problem
        self._cleared: set[bytes] = set()  # problems whose control has a verdict
        self._broken: dict[bytes, str] = {}  # problems whose control has none, and what was tried
        self._hung: list[Submission] = []  # the submissions of these controls
        self._held: list[Item] = []
        self._num_unchecked = 0  # items that were late before there was any verdict

    def seconds(self, item: Item, first: bool) -> float:
        """Return the time that an item has. first: it is the first call of its process."""
        allowed = CONTROL_TIME * self._timeout if item in self._controls else self._timeout
        slow = first and self._start_seconds >= SLOW_START * self._timeout
        return allowed + min(self._start_seconds, CONTROL_TIME * self._timeout) * slow

    def report_start(self, seconds: float) -> None:
        """Record how long the first call of a process took."""
        self._start_seconds = max(self._start_seconds, seconds)

    def is_control(self, item: Item) -> bool:
        """Whether an item is a control of this object."""
        return item in self._controls

    def report_deadline(self, item: Item, seconds: float, first: bool) -> Item | None:
        """Record that an item's deadline has passed; return the item to run next because of it, if any."""
        item.late_after, item.late_at_start = seconds, first and not item.late_at_start
        if item in self._controls:
            self._blame_verifier(item, f"nor within {CONTROL_TIME * self._timeout:g} s")
            return None
        problem = item.call.problem
        if self.settle_broken(item):
            return None
        if problem in self._cleared:
            return self._blame_completion(item)
        for control, waiting in self._controls.items():
            if control.call.problem == problem:
                waiting.append(item)
                return None
        control = Item(item.call._replace(completion=item.call.answer or ""), item.submission, item.index)
        self._controls[control] = [item]
        return control

    def report_control_verdict(self, control: Item) -> list[Item]:
        """Record that a control has a verdict; return the items to run again."""
        waiting = self._controls.pop(control)
        self._cleared.add(control.call.problem)
        return [again for item in waiting if (again := self._blame_completion(item))]

    def report_control_death(self, control: Item, ending: Ending) -> Item | None:
        """Record that a worker died on a control; return it if it is to be run again."""
        control.deaths += 1
        if control.deaths < TRIES:
            return control
        self._blame_verifier(control, f"and the worker process {ending.text}")
        return None

    def _blame_verifier(self, control: Item, how: str) -> None:
        """Settle the late items of a problem whose control has no verdict. how: what happened, in words."""
        waiting = self._controls.pop(control)
        on = "the reference's own answer" if control.call.completion else "an empty completion"
        self._hung.append(control.submission)
        self._broken[control.call.problem] = reason = f"{self._late}, {how} on {on}"
        log_failure(Failure("no verdict in time", f"{reason}: {ADVICE}"))
        for item in waiting:
            self.settle_broken(item)

    def settle_broken(self, item: Item) -> bool:
        """Settle an item as an error if the verifier hangs on its problem, or on everything; otherwise return False."""
        reason = self._broken.get(item.call.problem)
        if reason is None and not self._worked and self._hung.count(item.submission) > 1:
            reason = next(iter(self._broken.values()))
        if reason is None or item in self._controls:
            return False
        item.settle(error(reason).with_seconds(item.late_after))
        return True

    def report_verdict(self, status: Status) -> None:
        """Record a verdict on an item that is not a control."""
        if status not in NOT_CHECKED and not self._worked:
            self._worked = True
            self._settle_held()

    def decide(self) -> None:
        """Settle the held items by what is known now, and forget the problems: no item waits or is in progress."""
        self._settle_held()
        self._cleared.clear()
        self._broken.clear()
        self._hung.clear()

    def _blame_completion(self, item: Item) -> Item | None:
        """Settle or hold an item; return it if it is to be run again because the start of its process was slow."""
        if item.late_at_start and self._start_seconds >= SLOW_START * self._timeout:
            return item
        self._held.append(item)
        if self._worked:
            self._settle_held()
        else:
            self._num_unchecked += 1
        return None

    def _settle_held(self) -> None:
        for item in self._held:
            if self._worked or self._num_unchecked <= FEW:
                verdict = timeout(self._late)
            else:
                verdict = error(f"{self._late}, on one completion after another")
                log_failure(Failure("no verdict in time", f"{verdict.reason}: {ADVICE}"))
            item.settle(verdict.with_seconds(item.late_after))
        self._held.clear()

    def submissions(self) -> Iterator[Submission]:
        """Return the submissions of the items without a verdict that are not in the pool."""
        yield from (item.submission for item in self._held)
        yield from (item.submission for waiting in self._controls.values() for item in waiting)
