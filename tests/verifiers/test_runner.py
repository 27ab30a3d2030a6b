"""The runner and its pool: order, deadlines, poison, threads, processes left behind."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from rlvr.types import Problem, Status, Verdict, correct, incorrect
from rlvr.verifiers.runner import ErrorBudget, Runner, VerifierErrors
from rlvr.verifiers.runner.base import check_references, verify_one
from rlvr.verifiers.runner.server import PoolError
from tests.helpers.files import ROOT

SOURCE = """
import os, signal, subprocess, sys, time
from rlvr.types import Verdict, correct, incorrect

def record(problem, text):
    with open(problem.info["log"], "a") as file:
        file.write(text + "\\n")

class Poison:
    isolate = True

    def __init__(self, where=""):
        self.where = where

    def __call__(self, problem, completion):
        match completion:
            case "hang":
                while True:
                    pass
            case "hang and tell":
                record(problem, f"{os.getpid()} {os.getppid()}")
                while True:
                    pass
            case "allocate":
                return bool(bytearray(8 << 30))
            case "grow":
                held = []
                while True:
                    held.append(bytearray(1 << 20))
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(0)
            case "sys.exit":
                sys.exit(0)
            case "kill once":
                if not os.path.exists(problem.info["log"]):
                    record(problem, "killed")
                    os.kill(os.getpid(), signal.SIGKILL)
                return True
            case "raise":
                raise KeyError("no such thing")
            case "record":
                record(problem, "judged")
                return True
            case "pid":
                return correct(str(os.getpid()))
            case "modules":
                return correct(",".join(sorted({"torch", "pytest", "__mp_main__"} & set(sys.modules))))
            case "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
                return True
            case "daemon":
                child = subprocess.Popen(["sleep", "600"])
                record(problem, f"{child.pid}")
                while True:
                    pass
            case "background":
                child = subprocess.Popen(["sleep", "600"])
                record(problem, f"{child.pid}")
                return True
            case "warm":
                return correct(f"{self.where}{os.environ.get('OMP_NUM_THREADS')}")
            case "print":
                print("noise on stdout")
                return True
            case "sleep":
                time.sleep(0.2)
                return True
            case "strange verdict":
                return Verdict("correct", 1.0, parts={"x": lambda: 0})
        return correct(completion) if completion == problem.reference else incorrect(extracted=completion)

class Quick(Poison):
    def fast_path(self, problem, completion):
        if completion == "broken quick":
            raise ValueError("quick failed")
        return correct("quick") if completion == "easy" else None

class Warm(Poison):
    def warm_up(self):
        self.where = "warm "

class Broken:
    isolate = True
    def __reduce__(self):
        return (exec, ("raise RuntimeError('cannot be built here')",))
    def __call__(self, problem, completion):
        return True
"""


@pytest.fixture(scope="module")
def poison(tmp_path_factory):
    """A user's module with verifiers that misbehave."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "user_verifiers.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("user_verifiers")
    sys.path.remove(str(folder))


def pairs_of(count: int, start: int = 0) -> list[tuple[Problem, str]]:
    """Pairs that are right where the number is even; each completion says its number."""
    return [(Problem(str(i), "", str(i) if i % 2 == 0 else "odd"), str(i)) for i in range(start, start + count)]


def as_expected(verdicts: list[Verdict], start: int = 0) -> bool:
    return all(
        verdict.extracted == str(i) and verdict.correct == (i % 2 == 0) for i, verdict in enumerate(verdicts, start)
    )


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_within(seconds: float, pids: list[int]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.02)
    return False


def test_verdicts_come_in_order(poison):
    """Three workers and several messages do not mix up the answers; each has a duration, each status is counted."""
    with Runner(poison.Poison(), workers=3) as runner:
        verdicts = runner.verify(pairs_of(3000))
        assert as_expected(verdicts)
        assert all(verdict.seconds > 0 for verdict in verdicts)
        assert runner.counts == {Status.CORRECT: 1500, Status.INCORRECT: 1500}
        assert runner.verify([]) == []


@pytest.mark.parametrize(
    ("completion", "status"),
    [
        ("hang", Status.TIMEOUT),
        ("allocate", Status.LIMIT),
        ("grow", Status.LIMIT),
        ("kill", Status.LIMIT),
        ("exit", Status.LIMIT),
        ("raise", Status.ERROR),
        ("sys.exit", Status.ERROR),
        ("strange verdict", Status.ERROR),
    ],
)
def test_one_bad_item_costs_one_item(poison, completion, status):
    """What hangs, blows up or kills its worker gets its own verdict, and its neighbours theirs."""
    pairs = pairs_of(60)
    pairs[7] = (pairs[7][0], completion)
    with Runner(poison.Poison(), timeout=1.0 if completion == "hang" else 30.0, memory_mb=256) as runner:
        verdicts = runner.verify(pairs)
    assert verdicts[7].status is status
    assert as_expected(verdicts[:7])
    assert as_expected(verdicts[8:], 8)


def test_timeout_tells_how_long_it_took(poison):
    """The deadline counts from the item's dispatch, not from the batch's start."""
    with Runner(poison.Poison(), workers=1, timeout=0.5) as runner:
        runner.verify(pairs_of(1))
        verdicts = runner.verify([(Problem(str(i), "", ""), "hang") for i in range(3)])
    assert [verdict.status for verdict in verdicts] == [Status.TIMEOUT] * 3
    assert all(0.5 <= verdict.seconds < 1.5 for verdict in verdicts)
    assert verdicts[0].reason == "no verdict within 0.5 s"


def test_slow_items_that_queue_do_not_time_out(poison):
    """Ten items of 0.2 s in one worker take longer than the deadline of each, and all finish."""
    with Runner(poison.Poison(), workers=1, timeout=1.0) as runner:
        verdicts = runner.verify([(Problem(str(i), "", ""), "sleep") for i in range(10)])
    assert all(verdict.correct for verdict in verdicts)


def test_death_by_accident_is_tried_again(poison, tmp_path):
    """A worker that is killed once costs nothing; the item is judged by another."""
    with Runner(poison.Poison()) as runner:
        [verdict] = runner.verify([(Problem("1", "", "", {"log": str(tmp_path / "log")}), "kill once")])
    assert verdict.correct


def test_identical_pairs_are_judged_once(poison, tmp_path):
    """A group that says the same eight times is one check; equal problems count as the same."""
    log = tmp_path / "log"
    pairs = [(Problem("1", "", "", {"log": str(log)}), "record") for _ in range(8)]
    with Runner(poison.Poison()) as runner:
        assert all(verdict.correct for verdict in runner.verify(pairs))
        assert log.read_text() == "judged\n"
        assert runner.counts[Status.CORRECT] == 8
        runner.verify([*pairs, (Problem("1", "", "other", {"log": str(log)}), "record")])
    assert log.read_text() == "judged\n" * 3


def test_several_threads_share_a_runner(poison):
    """Each caller gets its own verdicts, in its own order, with a hang among them."""
    found: dict[int, list[Verdict]] = {}
    with Runner(poison.Poison(), timeout=1.0) as runner:

        def call(k: int) -> None:
            pairs = pairs_of(400, 1000 * k)
            pairs[100] = (pairs[100][0], "hang")
            found[k] = runner.verify(pairs)

        threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for k in range(4):
        assert found[k][100].status is Status.TIMEOUT
        assert as_expected(found[k][:100], 1000 * k)
        assert as_expected(found[k][101:], 1000 * k + 101)


def test_workers_outlive_the_thread_that_first_called(poison):
    """The kernel's parent-death signal goes by threads; the pool's own thread is the parent."""
    with Runner(poison.Poison()) as runner:
        found: list[Verdict] = []
        thread = threading.Thread(target=lambda: found.extend(runner.verify([(Problem("1", "", ""), "pid")])))
        thread.start()
        thread.join()
        [again] = runner.verify([(Problem("2", "", ""), "pid")])
    assert found[0].extracted == again.extracted


def test_the_event_loop_goes_on(poison):
    """While a completion hangs, other tasks run."""

    async def main() -> tuple[list[Verdict], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        with Runner(poison.Poison(), timeout=0.5) as runner:
            verdicts = await runner.averify([(Problem("1", "", ""), "hang"), *pairs_of(10)])
        ticking.cancel()
        return verdicts, ticks

    verdicts, ticks = asyncio.run(main())
    assert verdicts[0].status is Status.TIMEOUT
    assert as_expected(verdicts[1:])
    assert ticks >= 10


def test_quick_decides_in_the_callers_process(poison):
    """What `fast_path` leaves open goes to the pool; an exception in it is an error like any other."""
    pairs = [(Problem("1", "", "x"), c) for c in ("easy", "pid", "broken quick")]
    with Runner(poison.Quick()) as runner:
        easy, pid, broken = runner.verify(pairs)
    assert easy.extracted == "quick"
    assert pid.extracted is not None
    assert int(pid.extracted) != os.getpid()
    assert (broken.status, broken.reason) == (Status.ERROR, "ValueError: quick failed")


def test_workers_hold_neither_torch_nor_the_callers_main(poison):
    """A worker imports the verifier's module and no more."""
    with Runner(poison.Poison()) as runner:
        [verdict] = runner.verify([(Problem("1", "", ""), "modules")])
    assert verdict.extracted == ""


def test_workers_ignore_ctrl_c_and_print_to_stderr(poison, capfd):
    """An interrupt is for the caller, and the caller's standard output is its own."""
    with Runner(poison.Poison()) as runner:
        verdicts = runner.verify([(Problem("1", "", ""), "interrupt"), (Problem("1", "", ""), "print")])
    assert all(verdict.correct for verdict in verdicts)
    assert capfd.readouterr().out == ""


def test_what_a_verifier_started_dies_with_its_worker(poison, tmp_path):
    """A time-out ends the whole process group."""
    log = tmp_path / "log"
    with Runner(poison.Poison(), timeout=1.0) as runner:
        [verdict] = runner.verify([(Problem("1", "", "", {"log": str(log)}), "daemon")])
        assert verdict.status is Status.TIMEOUT
        assert gone_within(2, [int(log.read_text())])


def test_what_a_verifier_left_running_dies_with_the_runner(poison, tmp_path):
    """A verdict was given in time, so no deadline ended what goes on behind it: closing the runner does."""
    log = tmp_path / "log"
    with Runner(poison.Poison()) as runner:
        [verdict] = runner.verify([(Problem("1", "", "", {"log": str(log)}), "background")])
        started = [int(log.read_text())]
        assert verdict.correct
        assert all(map(alive, started))
    assert gone_within(2, started)


def test_warm_up_runs_before_the_workers_are_forked(poison):
    """And numerical libraries get one thread in processes that fork."""
    with Runner(poison.Warm()) as runner:
        [verdict] = runner.verify([(Problem("1", "", ""), "warm")])
    assert verdict.extracted == "warm 1"


def test_no_file_descriptor_is_left(poison):
    """Replaced workers and closed runners leave as many open files as there were."""
    Runner(poison.Poison()).close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with Runner(poison.Poison(), recycle_after=1) as runner:
            runner.verify([*pairs_of(10), (Problem("1", "", ""), "kill")])
    assert len(os.listdir("/proc/self/fd")) == before


def test_workers_are_replaced_after_so_many_items(poison):
    """A leak in a verifier cannot grow without end."""
    with Runner(poison.Poison(), workers=1, recycle_after=10) as runner:
        verdicts = runner.verify([(Problem(str(i), "", ""), "pid") for i in range(100)])
    worked = Counter(verdict.extracted for verdict in verdicts)
    assert len(worked) >= 10
    assert max(worked.values()) <= 10


def test_large_completions_pass(poison):
    """Messages larger than any buffer arrive whole, both ways."""
    text = "x" * 8_000_000
    with Runner(poison.Poison()) as runner:
        verdicts = runner.verify([(Problem(str(i), "", text), text + str(i)) for i in range(4)])
    assert [verdict.extracted == text + str(i) for i, verdict in enumerate(verdicts)] == [True] * 4


def test_a_caller_that_holds_the_interpreter_makes_nothing_late(poison):
    """The pool's thread cannot run meanwhile: messages stay half sent and answers unread for longer than a deadline."""
    text, found = "x" * 1_500_000, []
    with Runner(poison.Poison(), timeout=0.7) as runner:
        runner.verify(pairs_of(2))
        large = [(Problem(str(i), "", text), text) for i in range(4)]
        thread = threading.Thread(target=lambda: found.extend(runner.verify([*large, *pairs_of(200)])))
        thread.start()
        while thread.is_alive():
            ctypes.PyDLL(None).usleep(900_000)
            time.sleep(0.02)
    assert all(verdict.correct for verdict in found[:4])
    assert as_expected(found[4:])


def test_a_problem_that_cannot_be_sent_is_an_error(poison):
    """It costs its own verdict only."""
    with Runner(poison.Poison()) as runner:
        bad, good = runner.verify([(Problem("1", "", threading.Lock()), "x"), *pairs_of(1)])
    assert bad.status is Status.ERROR
    assert good.correct


def test_a_verifier_that_cannot_be_loaded_says_why(poison):
    """The worker's traceback reaches the caller."""
    with (
        Runner(poison.Broken()) as runner,
        pytest.raises(PoolError, match="cannot be built here"),
    ):
        runner.verify(pairs_of(1))


def test_a_closed_runner_refuses(poison):
    """And closing twice does no harm."""
    runner = Runner(poison.Poison())
    [verdict] = runner.verify([(Problem("1", "", ""), "pid")])
    runner.close()
    runner.close()
    assert verdict.extracted is not None
    assert gone_within(2, [int(verdict.extracted)])
    with pytest.raises(RuntimeError, match="closed"):
        runner.verify(pairs_of(1))


def test_closing_ends_a_call_under_way(poison):
    """A thread that waits for a verdict is not left waiting."""
    runner = Runner(poison.Poison(), timeout=60)
    raised: list[BaseException] = []

    def call() -> None:
        try:
            runner.verify([(Problem("1", "", ""), "hang")])
        except RuntimeError as problem:
            raised.append(problem)

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.5)
    runner.close()
    thread.join(10)
    assert not thread.is_alive()
    assert "closed" in str(raised[0])


def test_a_dead_server_is_replaced(poison, tmp_path):
    """Even the process that forks the workers may be lost (to the kernel's memory killer) without losing a verdict."""
    log = tmp_path / "log"
    with Runner(poison.Poison(), workers=1, timeout=3) as runner:
        found: list[Verdict] = []
        pairs = [(Problem("1", "", "", {"log": str(log)}), "hang and tell"), *pairs_of(20)]
        thread = threading.Thread(target=lambda: found.extend(runner.verify(pairs)))
        thread.start()
        while not (log.exists() and log.read_text()):
            time.sleep(0.01)
        os.kill(int(log.read_text().split()[1]), signal.SIGKILL)
        thread.join()
    assert found[0].status is Status.TIMEOUT
    assert as_expected(found[1:])


SCRIPT = """
import sys, time
sys.path.insert(0, {folder!r})
import user_verifiers
from rlvr.types import Problem
from rlvr.verifiers import Runner
runner = Runner(user_verifiers.Poison(), timeout={timeout})
print(runner.verify([(Problem("1", "", "", {{"log": {log!r}}}), {completion!r})])[0].status)
"""


def script(poison, log: Path, completion: str, timeout: float = 5) -> str:
    folder = str(Path(poison.__file__).parent)
    return SCRIPT.format(folder=folder, log=str(log), completion=completion, timeout=timeout)


@pytest.mark.parametrize("way", ["file", "-c", "stdin"])
def test_works_however_the_program_was_started(poison, tmp_path, way):
    """No main guard is needed: workers do not run the script again. A runner that is not closed does no harm."""
    log, text = tmp_path / "log", script(poison, tmp_path / "log", "record")
    (tmp_path / "script.py").write_text(text)
    command = {"file": [str(tmp_path / "script.py")], "-c": ["-c", text], "stdin": ["-"]}[way]
    done = subprocess.run(
        [sys.executable, *command],
        input=text if way == "stdin" else "",
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("correct\n", "", 0)
    assert log.read_text() == "judged\n"


@pytest.mark.parametrize("completion", ["hang and tell", "daemon"])
def test_no_worker_outlives_a_killed_parent(poison, tmp_path, completion):
    """After SIGKILL of the program its workers, their server and what they started are gone within two seconds."""
    log = tmp_path / "log"
    program = subprocess.Popen(
        [sys.executable, "-c", script(poison, log, completion, timeout=600)], cwd=ROOT, stdin=subprocess.DEVNULL
    )
    while not (log.exists() and log.read_text().endswith("\n")):
        assert program.poll() is None
        time.sleep(0.02)
    pids = [int(pid) for pid in log.read_text().split()]
    assert all(map(alive, pids))
    program.kill()
    program.wait()
    assert gone_within(2, pids)


def test_a_verifier_of_the_script_itself(tmp_path):
    """In the caller's process, where it opts out, and in workers, which do not import the script."""
    text = """
from rlvr.types import Problem
from rlvr.verifiers import Runner
class Mine:
    isolate = {isolate}
    def __call__(self, problem, completion):
        return completion == problem.reference
print(Runner(Mine()).verify([(Problem("1", "", "x"), "x")])[0].status)
"""
    results = [
        subprocess.run(
            [sys.executable, "-c", text.format(isolate=isolate)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        for isolate in (False, True)
    ]
    assert [result.stdout for result in results] == ["correct\n"] * 2


def test_plain_functions_are_verifiers():
    """Their bools and floats become verdicts."""
    with Runner(lambda problem, completion: float(completion)) as runner:
        verdicts = runner.verify([(Problem("1", "", ""), c) for c in ("1", "0", "0.25", "x")])
    assert [v.status for v in verdicts] == [Status.CORRECT, Status.INCORRECT, Status.PARTIAL, Status.ERROR]
    assert verdicts[2].score == 0.25


class OwnBatch:
    """Brings its own concurrency."""

    def __init__(self, lost: int = 0) -> None:
        self.calls: list[int] = []
        self.lost = lost

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        raise AssertionError("verify_batch is to be used")

    def verify_batch(self, pairs: list[tuple[Problem, str]]) -> list[Verdict]:
        self.calls.append(len(pairs))
        return [correct(completion) for _, completion in pairs][: len(pairs) - self.lost]


def test_verify_batch_gets_all_distinct_pairs_at_once():
    """A verifier with its own concurrency is called once."""
    verifier = OwnBatch()
    with Runner(verifier) as runner:
        assert [v.extracted for v in runner.verify([*pairs_of(5), *pairs_of(3)])] == list("01234012")
    assert verifier.calls == [5]


def test_verify_batch_that_loses_a_verdict_is_an_error():
    """Verdicts cannot be matched to completions then: none counts."""
    with Runner(OwnBatch(lost=1)) as runner:
        verdicts = runner.verify(pairs_of(3))
    assert [v.status for v in verdicts] == [Status.ERROR] * 3
    assert "2 verdicts for 3 pairs" in verdicts[0].reason


def failing(problem: Problem, completion: str) -> bool:
    raise ZeroDivisionError(completion)


def test_an_exception_is_logged_once_per_kind(caplog):
    """The first with its traceback; the rest are verdicts."""
    verdicts = [verify_one(failing, Problem("1", "", ""), str(i)) for i in range(3)]
    assert [v.reason for v in verdicts] == ["ZeroDivisionError: 0", "ZeroDivisionError: 1", "ZeroDivisionError: 2"]
    assert all(v.score is None and v.seconds > 0 for v in verdicts)
    assert len(caplog.records) == 1
    assert "Traceback" in caplog.text
    assert "test_runner.failing" in caplog.text


def test_what_is_not_a_verdict_is_an_error():
    """A string or None from a verifier is its bug."""
    assert verify_one(lambda p, c: None, Problem("1", "", ""), "").status is Status.ERROR
    assert verify_one(lambda p, c: "yes", Problem("1", "", ""), "").status is Status.ERROR
    assert verify_one(lambda p, c: float("nan"), Problem("1", "", ""), "").status is Status.ERROR


def test_budget_stops_a_run_whose_verdicts_are_errors():
    """2 % of 100 are two errors; the third is one too many."""
    budget = ErrorBudget(0.02)
    for bad in (0, 1, 1):
        budget.add([incorrect()] * (33 - bad) + [verify_one(failing, Problem("1", "", ""), "")] * bad)
        budget.check()
    budget.add([verify_one(failing, Problem("1", "", ""), "late")])
    with pytest.raises(VerifierErrors, match=r"3 of 100 verdicts are verifier errors, above the budget of 2\.0%"):
        budget.check()


def test_budget_waits_for_a_fair_sample():
    """One error among the first ten says little; all ten of them say enough."""
    budget = ErrorBudget(0.02)
    budget.add([correct()] * 9 + [verify_one(failing, Problem("1", "", ""), "")])
    budget.check()
    with Runner(failing, error_budget=0.02) as runner, pytest.raises(VerifierErrors, match="10 of 10"):
        runner.verify(pairs_of(10))


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"timeout": 0}, {"memory_mb": -1}, {"error_budget": 1.5}])
def test_settings_are_checked(wrong):
    """A pool without workers would wait for ever."""
    with pytest.raises(ValueError, match="expected"):
        Runner(failing, **wrong)


def test_check_references_names_the_problem():
    """Bad data is found when it is loaded, not in the middle of a run."""

    class Even:
        def __call__(self, problem: Problem, completion: str) -> bool:
            return True

        def check_reference(self, reference: int) -> None:
            if reference % 2:
                raise ValueError(f"{reference} is odd")

    check_references(Even(), [Problem("a", "", 2)])
    with pytest.raises(ValueError, match="problem 'b': 3 is odd"):
        check_references(Even(), [Problem("a", "", 2), Problem("b", "", 3)])
    check_references(failing, [Problem("a", "", None)])


POISON = {"hang": Status.TIMEOUT, "allocate": Status.LIMIT, "kill": Status.LIMIT}


def ten_thousand() -> tuple[list[tuple[Problem, str]], dict[int, Status]]:
    pairs = pairs_of(10_000)
    bad = {}
    for i, place in enumerate(range(50, 10_000, 100)):
        completion, status = list(POISON.items())[i % 3]
        pairs[place] = (pairs[place][0], completion)
        bad[place] = status
    return pairs, bad


def check_ten_thousand(verdicts: list[Verdict], bad: dict[int, Status]) -> None:
    assert len(bad) == 100
    assert {place: verdicts[place].status for place in bad} == bad
    for i, verdict in enumerate(verdicts):
        assert i in bad or (verdict.extracted == str(i) and verdict.correct == (i % 2 == 0)), i


@pytest.mark.slow
@pytest.mark.parametrize("caller", ["main", "thread", "asyncio"])
def test_a_hundred_poison_items_among_ten_thousand(poison, caller):
    """Each costs one timeout or limit, and the whole no more time than the hangs' deadlines and some seconds."""
    pairs, bad = ten_thousand()
    verdicts: list[Verdict] = []
    with Runner(poison.Poison(), workers=2, timeout=0.5) as runner:
        start = time.monotonic()
        if caller == "main":
            verdicts = runner.verify(pairs)
        elif caller == "thread":
            thread = threading.Thread(target=lambda: verdicts.extend(runner.verify(pairs)))
            thread.start()
            thread.join()
        else:
            verdicts = asyncio.run(runner.averify(pairs))
        seconds = time.monotonic() - start
    check_ten_thousand(verdicts, bad)
    hangs = sum(status is Status.TIMEOUT for status in bad.values())
    assert seconds < hangs * 0.5 / 2 + 20
