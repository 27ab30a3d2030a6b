"""The runner's worker processes: what they hold, what they leave behind, what becomes of them when others die."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from rlvr.core.types import Problem, Status, Verdict
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.processes import PoolError
from rlvr.verifiers.runner.worker import seconds_waited
from tests.helpers.files import ROOT
from tests.helpers.machine import alive, as_expected, busy_processors, gone_within, pairs_of


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
        assert gone_within(60, [int(log.read_text())])


def test_a_killed_worker_is_gone_when_the_next_one_works(poison, tmp_path):
    """Its end takes a while where it held much memory; what it has marked as its own is free afterwards."""
    log = {"log": str(tmp_path / "pid")}
    with Runner(poison.Poison(), workers=1, timeout=2, memory_mb=2048) as runner:
        late, lives = runner.verify([(Problem(text, "", "", info=log), text) for text in ("hang, large", "lives")])
    assert late.status is Status.TIMEOUT
    assert lives.status is Status.INCORRECT


def test_what_a_verifier_left_running_dies_with_the_runner(poison, tmp_path):
    """A verdict was given in time, so no deadline ended what goes on behind it: closing the runner does."""
    log = tmp_path / "log"
    with Runner(poison.Poison()) as runner:
        [verdict] = runner.verify([(Problem("1", "", "", {"log": str(log)}), "background")])
        started = [int(log.read_text())]
        assert verdict.correct
        assert all(map(alive, started))
    assert gone_within(60, started)


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
    assert gone_within(60, [int(verdict.extracted)])
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
from rlvr.core.types import Problem
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
    """After SIGKILL of the program its workers, their server and what they started are gone."""
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
    assert gone_within(60, pids)


# The deadline of a verification on a machine that is busy with others.

TIMEOUT = 1.0


def rests(problem: Problem, completion: str) -> bool:
    """A verifier that hangs on some completions without computing."""
    if completion.startswith("hang"):
        time.sleep(600)
    return True


def test_hanging_programs_wait_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless told otherwise a worker runs for each core: of 20 on 16 cores two wait in turn, and not ten."""
    monkeypatch.setattr("rlvr.verifiers.runner.runner.count_cores", lambda: 16)
    pairs = [(Problem("p", "", "", {}), f"hang {i}" if i % 5 == 0 else f"{i}") for i in range(100)]
    with Runner(rests, timeout=2.0) as runner:
        start = time.perf_counter()
        verdicts = runner.verify(pairs)
        seconds = time.perf_counter() - start
    assert [v.status for v in verdicts] == ["timeout" if i % 5 == 0 else "correct" for i in range(100)]
    assert seconds < 12, seconds  # with two workers 20


def computes(problem: Problem, completion: str) -> bool:
    """Use half of the time limit, of a processor."""
    until = time.process_time() + TIMEOUT / 2
    while time.process_time() < until:
        pass
    return True


def sleeps(problem: Problem, completion: str) -> bool:
    """Wait, for no processor."""
    time.sleep(60)
    return True


def loops(problem: Problem, completion: str) -> bool:
    """Compute without an end."""
    while True:
        pass


def test_waiting_for_a_processor_is_not_the_time_of_a_verification() -> None:
    """One that computes for less than its limit has its verdict, however long that takes by the clock."""
    with busy_processors(), Runner(computes, workers=2, timeout=TIMEOUT) as runner:
        found = runner.verify([(Problem(str(i), "", "x"), "") for i in range(6)])
    if max(verdict.seconds for verdict in found) < TIMEOUT:
        pytest.skip("the others did not keep it waiting")
    assert {verdict.status for verdict in found} == {Status.CORRECT}


@pytest.mark.parametrize("verifier", [sleeps, loops])
def test_a_verification_without_an_end_is_ended_on_a_busy_machine_too(verifier) -> None:
    """At its deadline, also where the process always waits for a processor."""
    with busy_processors(), Runner(verifier, workers=1, timeout=TIMEOUT) as runner:
        [verdict] = runner.verify([(Problem("1", "", "x"), "")])
    assert verdict.status is Status.ERROR
    assert verdict.reason.startswith("no verdict within 1 s")


def test_a_process_that_is_gone_has_waited_for_nothing() -> None:
    """As where the system has no such statistics."""
    assert seconds_waited(2**22 + 1) == 0


# Signals while a verifier loops.

WAITING = """
import os, signal, sys, threading, time
from rlvr.training.supervision.signals import StopRequest
from rlvr.core.types import Problem
from rlvr.verifiers import Runner

def loops(problem, completion):
    open({log!r}, "w").write("looping")
    while True:
        pass
loops.isolate = {isolate}
with StopRequest().handling_signals() as stop, Runner(loops, timeout=600) as runner:
    stop.work = "step 1"
    runner.verify([(Problem("1", "", ""), "")])
"""


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_a_run_whose_verifier_loops(tmp_path, isolate, number):
    """In workers and in the caller's own process: the first asks for the end of the step, the second ends it."""
    log = tmp_path / "log"
    text = WAITING.format(log=str(log), isolate=isolate)
    program = subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        while not (log.exists() and log.read_text()):
            assert program.poll() is None
            time.sleep(0.02)
        program.send_signal(number)
        time.sleep(0.3)
        assert program.poll() is None
        program.send_signal(number)
        _, told = program.communicate(timeout=120)
    finally:
        program.kill()
        program.wait()
    assert b"finishing step 1, then stopping" in told
    assert b"stopped now: step 1 is lost" in told
