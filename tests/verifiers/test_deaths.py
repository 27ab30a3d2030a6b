"""Worker processes that die: whether the completion or the verifier is to blame."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable

import pytest

from rlvr.core.types import Problem, Status, Verdict, correct
from rlvr.verifiers import Runner, VerifierErrors
from rlvr.verifiers.runner.blame import Deaths
from rlvr.verifiers.runner.processes import Call, Ending, Item, Submission


def pairs(*completions: str) -> list[tuple[Problem, str]]:
    return [(Problem(str(i), "", "x"), completion) for i, completion in enumerate(completions)]


def statuses(verifier: Callable[[Problem, str], bool], *completions: str, workers: int = 1) -> list[Status]:
    with Runner(verifier, workers=workers) as runner:
        return [verdict.status for verdict in runner.verify(pairs(*completions))]


WAYS: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_verifier_that_always_dies_is_an_error(way, workers):
    """No verdict has a score, and the budget stops the run; it is not a batch of wrong answers."""
    die = WAYS[way]

    def crashes(problem: Problem, completion: str) -> bool:
        return bool(die())

    with Runner(crashes, workers=workers, error_budget=0.02) as runner:
        with pytest.raises(VerifierErrors, match=r"the worker process (was killed|ended).* 6 of 6 verdicts "):
            runner.verify(pairs(*"abcdef"))
        assert runner.counts == {Status.ERROR: 6}


@pytest.mark.parametrize("completions", [["a"], ["a", "b"], ["", "a"]])
def test_few_items_are_enough_to_tell(completions):
    """A batch of one: the empty completion kills the worker too."""

    def crashes(problem: Problem, completion: str) -> bool:
        os._exit(1)

    assert statuses(crashes, *completions) == [Status.ERROR] * len(completions)


def poisoned(problem: Problem, completion: str) -> bool:
    if "poison" in completion:
        os._exit(1)
    return completion == problem.reference


@pytest.mark.parametrize("place", [0, 1, 4])
def test_a_poisonous_completion_scores_zero(place):
    """Wherever it comes in the batch, the first item of a fresh pool included, the others get their verdicts."""
    completions = ["x"] * 5
    completions[place] = "poison"
    expected = [Status.CORRECT] * 5
    expected[place] = Status.LIMIT
    for workers in (1, 2):
        assert statuses(poisoned, *completions, workers=workers) == expected


def test_a_poisonous_completion_without_company_scores_zero():
    """Nothing else tells than the empty completion of the same problem, which gets a verdict."""
    with Runner(poisoned) as runner:
        [verdict] = runner.verify(pairs("poison"))
        assert (verdict.status, verdict.score) == (Status.LIMIT, 0.0)
        assert verdict.reason == "the worker process ended with exit code 1, twice"
        assert runner.verify(pairs("x"))[0].correct


def test_dying_on_a_second_item_is_an_error():
    """The empty completion takes a way of its own in many verifiers, so that surviving it is not enough."""

    def crashes(problem: Problem, completion: str) -> bool:
        if completion:
            os._exit(1)
        return False

    assert statuses(crashes, *"abcd") == [Status.ERROR] * 4


def test_dying_on_most_items_is_an_error():
    """Also where each is alone in its batch, and the empty completion gets a verdict."""

    def crashes(problem: Problem, completion: str) -> bool:
        if completion:
            os._exit(1)
        return False

    with Runner(crashes, workers=1) as runner:
        found = [runner.verify([pair])[0].status for pair in pairs(*"abcdef")]
    assert found == [Status.LIMIT, *[Status.ERROR] * 5]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_few_poisonous_completions_in_a_row_score_zero(workers):
    """At the start, where no verdict is known, in the middle and at the end, as in one group of a step."""
    some = list("xyxyxy")
    completions = ["poison 1", "poison 2", *some, "poison 3", "poison 4", "poison 5", *some, "poison 6", "poison 7"]
    right = {"x": Status.CORRECT, "y": Status.INCORRECT}
    for _ in range(5):
        found = statuses(poisoned, *completions, workers=workers)
        assert found == [right.get(completion, Status.LIMIT) for completion in completions]


@pytest.mark.parametrize("last", ["verdict", "nothing else"])
def test_two_workers_that_die_side_by_side(last):
    """Both items had a verdict before them and none between their deaths, as when one worker was slow to start."""
    killed = Ending("was killed by signal 9")
    deaths = Deaths(workers=2)
    submission = Submission([None, None], 2)
    one, two = (Item(Call(b"", "poison"), submission, i) for i in range(2))
    deaths.report_verdict()
    assert [deaths.report_death(item, killed, 0.1) for item in (one, two)] == [one, two]
    controls = [deaths.report_death(item, killed, 0.1) for item in (one, two)]
    for control in controls:
        assert control is not None
        assert control.call == Call(b"", "")
        deaths.report_survival(control)
    assert submission.verdicts == [None, None]
    if last == "verdict":
        deaths.report_verdict()
    else:
        deaths.decide()
    assert [verdict and verdict.status for verdict in submission.wait()] == [Status.LIMIT] * 2


def deaths_after_the_verdicts(pattern: str) -> list[Status]:
    """The items `pattern` of one submission ("v": a verdict, "d": deadly), all verdicts before the first death."""
    deaths = Deaths(workers=2)
    submission = Submission([None] * len(pattern), len(pattern))
    items = [Item(Call(b"", "a completion"), submission, i) for i in range(len(pattern))]
    for item, way in zip(items, pattern, strict=True):
        if way == "v":
            item.settle(correct("1"))
            deaths.report_verdict()
    for item, way in zip(items, pattern, strict=True):
        if way == "d":
            assert deaths.report_death(item, Ending("was killed by signal 9"), 0.1) is item
            control = deaths.report_death(item, Ending("was killed by signal 9"), 0.1)
            assert control is not None
            deaths.report_survival(control)
    deaths.decide()
    return [verdict.status for verdict in submission.wait() if verdict is not None]


@pytest.mark.parametrize("pattern", ["ddvvddvvddvv", "dddvdddvvvvv", "vvvvvvddd"])
def test_deaths_that_are_told_late_count_in_the_order_of_the_items(pattern):
    """As where a busy machine tells of the first death after all other items were verified."""
    expected = [Status.CORRECT if way == "v" else Status.LIMIT for way in pattern]
    assert deaths_after_the_verdicts(pattern) == expected


def test_a_long_row_is_the_verifiers_doing_whenever_it_is_told():
    assert deaths_after_the_verdicts("vvvvvddddvvvv").count(Status.ERROR) == 4


def test_a_problem_that_kills_is_not_the_completions_doing():
    """Its empty completion kills the worker as well; other problems are verified."""

    def crashes(problem: Problem, completion: str) -> bool:
        if problem.id == "1":
            os._exit(1)
        return True

    assert statuses(crashes, "a", "b", "c") == [Status.CORRECT, Status.ERROR, Status.CORRECT]


def test_a_verifier_that_dies_in_the_first_call_of_each_process_is_an_error():
    """Every worker is fresh after a death, so that no item gets through."""
    calls: list[str] = []

    def crashes(problem: Problem, completion: str) -> bool:
        calls.append(completion)
        if len(calls) == 1:
            os._exit(1)
        return True

    assert statuses(crashes, *"abc", workers=2) == [Status.ERROR] * 3


def test_completions_too_large_to_read_score_zero():
    """The worker runs out of memory before the verifier is called, on each of them: that is their size."""
    big = "x" * 40_000_000
    with Runner(poisoned, workers=1, memory_mb=24) as runner:
        verdicts = runner.verify(pairs(big + "a", big + "b", big + "c"))
    assert [verdict.status for verdict in verdicts] == [Status.LIMIT] * 3
    assert verdicts[0].reason == "the worker process ran out of memory, twice"


def test_a_verifier_that_starts_to_die_later_is_an_error():
    """Verdicts of earlier batches do not excuse it for ever."""

    def crashes(problem: Problem, completion: str) -> bool:
        if completion.startswith("late"):
            os._exit(1)
        return True

    with Runner(crashes, workers=1) as runner:
        assert all(verdict.correct for verdict in runner.verify(pairs(*map(str, range(50)))))
        late = runner.verify(pairs(*(f"late{i}" for i in range(5))))
    assert [verdict.status for verdict in late] == [Status.ERROR] * 5


def test_several_callers_each_get_their_verdicts():
    """Deaths in one thread's pairs leave the others' alone."""
    found: dict[int, list[Verdict]] = {}
    with Runner(poisoned, workers=2) as runner:

        def call(k: int) -> None:
            found[k] = runner.verify([(Problem(f"{k}.{i}", "", "x"), "poison" if i == 7 else "x") for i in range(40)])

        threads = [threading.Thread(target=call, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for verdicts in found.values():
        assert [i for i, verdict in enumerate(verdicts) if not verdict.correct] == [7]
        assert verdicts[7].status is Status.LIMIT
