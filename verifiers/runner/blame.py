"""Who is to blame when a worker process dies or hangs: the completion that it was given, its problem, or the verifier.

One completion must not stop a run. A verifier that fails on every input must not look like wrong answers. So a
*control* is run for the problem: the reference's own answer, or an empty completion if the reference is neither text
nor a number. It has twice the time. If a worker died on an item, the item itself is tried once more before the control.

- The control dies or hangs, too: *error*, without a score. The other items of the problem are errors and are not run.
  Nor are the other items of a call if this happens on two problems and the verifier has never given a verdict.
- The control has a verdict: the completion is to blame. A death is *limit*, a hang *timeout*, both with score 0. While
  the verifier has not given a verdict on any other item this proves little, since a control may run through other code
  than completions do. So the item is held until there is such a verdict, or until no other item is left. In the second
  case it is *error* if more than FEW items were held.
- A worker that runs out of memory while it reads or answers an item: *limit*, without a control.

What is known of a problem is forgotten when the pool is idle: the machine may have been busy, and a service may be
back. The first call in a process may import packages. If first calls are slow, they get as much additional time, and an
item that missed its deadline in a first call is run once more.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlvr.core.types import Status, Verdict, error, limit, timeout

from .base import Failure, log_failure
from .processes import Ending, Item, Submission

TRIES = 2  # workers that an item may cost
FEW = 3  # failed items that say nothing yet about a verifier that has given no verdict
CONTROL_TIME = 2  # time of a control, in deadlines of an item; also the most that the start of a process may add
SLOW_START = 0.5  # from this share of the deadline on, a first call counts as slow
NOT_CHECKED = (Status.LIMIT, Status.TIMEOUT, Status.ERROR)  # such a verdict does not show that the verifier works
ADVICE = (
    "the verifier hangs, or is slower than its time limit; imports at the top of its module, and its method warm_up, "
    "do not count against the limit: move slow starts there"
)


class Blame:
    """The items on which a worker died or hung, and what is known of their problems and of the verifier.

    timeout: seconds for an item.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._worked = False  # a verdict on any item
        self._start_seconds = 0.0  # the slowest first call of a process
        self._controls: dict[Item, list[Item]] = {}  # in progress, with the failed items of their problem
        self._cleared: set[bytes] = set()  # problems whose control has a verdict
        self._broken: dict[bytes, str] = {}  # problems whose control has none, and what was tried
        self._broken_for: list[object] = []  # the callers of these controls
        self._held: list[Item] = []
        self._num_unchecked = 0  # items that were held before there was any verdict

    def seconds(self, item: Item, first: bool) -> float:
        """Return the time that an item has. first: it is the first call of its process."""
        allowed = CONTROL_TIME * self._timeout if item in self._controls else self._timeout
        slow = first and self._start_seconds >= SLOW_START * self._timeout
        return allowed + min(self._start_seconds, CONTROL_TIME * self._timeout) * slow

    def report_start(self, seconds: float) -> None:
        self._start_seconds = max(self._start_seconds, seconds)

    def report_death(self, item: Item, ending: Ending, seconds: float) -> Item | None:
        """Record that a worker died on an item; return the item to run next because of it, if any."""
        item.deaths += 1
        if item.deaths < TRIES:
            return item
        item.fault = limit(f"the worker process {ending.text}, twice").with_seconds(seconds)
        item.late_at_start = False
        if ending.out_of_memory and item not in self._controls:
            item.settle(item.fault)
            return None
        return self._report_failure(item, f"and the worker process {ending.text}")

    def report_deadline(self, item: Item, seconds: float, first: bool) -> Item | None:
        """Record that an item's deadline has passed; return the item to run next because of it, if any."""
        item.fault = timeout(f"no verdict within {self._timeout:g} s").with_seconds(seconds)
        item.late_at_start = first and not item.late_at_start
        return self._report_failure(item, f"nor within {CONTROL_TIME * self._timeout:g} s")

    def report_verdict(self, item: Item, status: Status) -> list[Item]:
        """Record that an item has a verdict; return the items to run again because of it."""
        if item in self._controls:
            self._cleared.add(item.call.problem)
            return [again for waiting in self._controls.pop(item) if (again := self._blame_completion(waiting))]
        if status not in NOT_CHECKED and not self._worked:
            self._worked = True
            self._settle_held()
        return []

    def is_control(self, item: Item) -> bool:
        return item in self._controls

    def decide(self) -> None:
        """Settle the held items by what is known now, and forget the problems: no item waits or is in progress."""
        self._settle_held()
        self._cleared.clear()
        self._broken.clear()
        self._broken_for.clear()

    def settle_broken(self, item: Item) -> bool:
        """Settle an item as an error if the verifier fails on its problem, or on everything; otherwise return False."""
        reason = self._broken.get(item.call.problem)
        if reason is None and not self._worked and self._broken_for.count(item.submission.caller) > 1:
            reason = next(iter(self._broken.values()))
        if reason is None or item in self._controls:
            return False
        item.settle(error(reason).with_seconds(item.fault.seconds if item.fault else 0.0))
        return True

    def submissions(self) -> Iterator[Submission]:
        """Return the submissions of the items without a verdict that are not in the pool."""
        yield from (item.submission for item in self._held)
        yield from (item.submission for waiting in self._controls.values() for item in waiting)

    def _report_failure(self, item: Item, how: str) -> Item | None:
        """Decide about an item that has failed; return the item to run next. how: what happened to a control."""
        if item in self._controls:
            self._blame_verifier(item, how)
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

    def _blame_verifier(self, control: Item, how: str) -> None:
        """Settle the failed items of a problem whose control has no verdict."""
        waiting = self._controls.pop(control)
        on = "the reference's own answer" if control.call.completion else "an empty completion"
        self._broken_for.append(control.submission.caller)
        self._broken[control.call.problem] = reason = f"{_fault(waiting[0]).reason}, {how} on {on}"
        _log(waiting[0], reason)
        for item in waiting:
            self.settle_broken(item)

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
            verdict = _fault(item)
            if not self._worked and self._num_unchecked > FEW:
                verdict = error(f"{verdict.reason}, on one completion after another").with_seconds(verdict.seconds)
                _log(item, verdict.reason)
            item.settle(verdict)
        self._held.clear()


def _fault(item: Item) -> Verdict:
    assert item.fault is not None
    return item.fault


def _log(item: Item, reason: str) -> None:
    advice = ADVICE if _fault(item).status is Status.TIMEOUT else "the verifier crashes"
    log_failure(Failure(_fault(item).reason, f"{reason}: {advice}"))
