"""The time of a run on a machine that is busy with others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rlvr.sandbox import Job, Limits, Pool, RunStatus, TestJob
from tests.helpers.files import ROOT
from tests.helpers.machine import busy_processors
from tests.helpers.programs import runs_programs

pytestmark = runs_programs

COMPUTE = "import time\ndef f():\n    while time.process_time() < 0.45: pass\n    return 1\n"


@pytest.fixture
def busy() -> Iterator[None]:
    """Processes that leave a program about a third of a core."""
    with busy_processors():
        yield


def test_waiting_for_a_processor_is_not_the_time_of_a_run(pool: Pool, busy: None):
    """A program that computes for less than its limit ends well, however long that takes by the clock."""
    result = pool.run(Job(COMPUTE + "print(f())", limits=Limits(seconds=1)))
    if result.seconds < 1:
        pytest.skip("the others did not keep it waiting")
    assert (result.status, result.stdout) == (RunStatus.OK, "1\n")
    tested = pool.run(TestJob(Job(COMPUTE, limits=Limits(seconds=1)), "assert f() == 1", ("f",)))
    assert tested.tests_passed, tested.detail


@pytest.mark.parametrize(
    ("program", "longest"),
    [
        ("import time\ntime.sleep(60)", 30.0),
        ("while True: pass", 30.0),
        ("import os\nfor _ in range(3): os.fork()\nwhile True: pass", 30.0),
    ],
)
def test_runs_end_on_a_busy_machine_too(pool: Pool, busy: None, program: str, longest: float):
    """One that sleeps after its time by the clock; one that computes after its processor time, or five times that."""
    result = pool.run(Job(program, limits=Limits(seconds=1)))
    assert result.status is RunStatus.TIMEOUT
    assert result.seconds < longest


def test_a_run_is_a_session_of_its_own(pool: Pool):
    """The scheduler (autogroup) then shares the processors between runs, however many processes one of them starts."""
    if pool.level.number < 3:
        pytest.skip("level 3 alone ends a run without its process group")
    result = pool.run(Job("import os\nprint(os.getsid(0) == os.getpgrp() == os.getpid())"))
    assert result.stdout == "True\n"


@pytest.mark.parametrize(("idle", "starved"), [("while True: pass", True), ("import time\ntime.sleep(60)", False)])
def test_a_process_that_waits_for_a_processor_is_told_from_one_that_sleeps(idle: str, starved: bool):
    """Both have used nothing; the one that waits has the lowest priority on a processor that another one keeps busy."""
    processor = min(os.sched_getaffinity(0))
    pin = f"import os\nos.sched_setaffinity(0, [{processor}])\n"
    lowest = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
    watch = (
        "import subprocess, sys, time\nfrom rlvr.sandbox.jail.usage import Meter\nmeter = Meter()\n"
        "meter.begin(counts_sockets=False, uid=None)\n"
        f"child = subprocess.Popen([sys.executable, '-S', '-c', {pin + lowest + idle!r}])\n"
        "time.sleep(1)\nfound = [meter.is_starved() for _ in range(20)]\nchild.kill()\nprint(any(found))"
    )
    other = subprocess.Popen([sys.executable, "-c", f"{pin}while True: pass"])
    try:
        done = subprocess.run([sys.executable, "-c", watch], capture_output=True, text=True, timeout=60, cwd=ROOT)
    finally:
        other.kill()
        other.wait()
    assert (done.stdout, done.stderr) == (f"{starved}\n", "")
