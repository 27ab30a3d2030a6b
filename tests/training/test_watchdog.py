"""Processes that hang, are slow or die are named, with their place; those that work are left alone."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from accelerate import Accelerator

import rlvr.training.supervision.watchdog
from rlvr.core.heartbeat import HEARTBEAT, beat, enter
from rlvr.core.types import RunError
from rlvr.train import train
from rlvr.training.run import Run
from rlvr.training.supervision.watchdog import Judge, Sign, position, watching
from tests.helpers.processes import run_processes
from tests.helpers.runs import with_settings
from tests.helpers.sharded import ALONE, make_run

pytestmark = pytest.mark.usefixtures("one_thread")
TIMEOUT = 15.0  # above what a step takes on a busy machine, once one has been trained


def sign(number: int, entered: int = 5, beats: int = 9, **more) -> Sign:
    """Return a sign of step 3."""
    return Sign(number, 3, "sampling" if entered < 6 else "verification", entered, beats, **more)


def heard(judge: Judge, seconds: int, *rows: dict) -> None:
    """Let a judge hear signs each second: by process the place (or a function of the second), `stops` without any."""
    for now in range(seconds + 1):
        signs = {}
        for rank, row in enumerate(rows):
            row = dict(row)
            if now < row.pop("stops", seconds + 1):
                signs[rank] = sign(now, **{k: v(now) if callable(v) else v for k, v in row.items()})
        judge.hear(signs, float(now))


def test_the_process_in_the_earliest_phase_is_named() -> None:
    """It stands still, the others wait for it in a later phase; before the timeout nothing is said."""
    rows = ({"entered": 6, "waits": True}, {"where": "a.py:3, f"}, {"entered": 6, "waits": True})
    judge = Judge(3, 60)
    heard(judge, 60, *rows)
    assert judge.describe_stall(60.0) == ""
    heard(judge := Judge(3, 60), 61, *rows)
    assert re.match(
        r"process 1 of 3 makes no progress for 60 s, in sampling of step 3 \(a\.py:3, f\); ", judge.describe_stall(61)
    )


def test_the_process_that_does_not_wait_is_named() -> None:
    """All are in the same phase, and two of them in a collective; of several that wait, those that have done least."""
    heard(judge := Judge(3, 10), 20, {"waits": True}, {"waits": True}, {})
    assert judge.describe_stall(20.0).startswith("process 2 of 3 makes no progress")
    heard(judge := Judge(3, 10), 20, *({"waits": True, "beats": beats} for beats in (4, 4, 5)))
    assert judge.describe_stall(20.0).startswith("processes 0, 1 of 3 make no progress")


def test_a_process_without_signs_is_named() -> None:
    """Whatever phase it was in: also a later one than the others, which wait for it there."""
    heard(judge := Judge(3, 10), 20, {"entered": 6, "waits": True}, {"entered": 6, "waits": True}, {"stops": 5})
    assert judge.describe_stall(20.0).startswith("process 2 of 3 gives no sign for 10 s, last in sampling of step 3")


def test_a_process_that_never_gave_a_sign_is_named() -> None:
    """It has not begun, and the others wait for it further on."""
    heard(judge := Judge(3, 10), 20, {"waits": True}, {"waits": True}, {"stops": 0})
    assert judge.describe_stall(20.0).startswith("process 2 of 3 gives no sign for 10 s, last in preparation; ")


@pytest.mark.parametrize("count", [1, 3])
def test_work_is_no_stall(count: int) -> None:
    """A long phase, as long as something is done in it; and processes that have done their part."""
    working = {"beats": lambda now: 9 + now // 8}
    heard(judge := Judge(count, 10), 300, working, *[{"entered": 6, "waits": True}] * (count - 1))
    assert judge.describe_stall(300.0) == ""
    heard(judge := Judge(count, 10), 300, *[{"left": True, "stops": 5}] * count)
    assert judge.describe_stall(300.0) == ""


def test_who_has_waited_long_is_not_blamed_at_the_end_of_it() -> None:
    """A process has worked for longer than the timeout, and arrives where the others wait."""
    late = {"entered": lambda now: 5 if now < 30 else 6, "beats": lambda now: 10 + now}
    for arrives in ({"waits": True}, {"waits": False}):
        heard(judge := Judge(2, 10), 30, {"entered": 6, "waits": True}, {**late, **arrives})
        assert judge.describe_stall(30.0) == ""
    heard(judge := Judge(2, 10), 30, {"entered": 6, "waits": False}, {**late, "waits": True})
    assert judge.describe_stall(30.0) == ""


def test_places_are_those_of_the_code() -> None:
    """Phase, step and the line of rlvr; a thread that has ended is nowhere."""
    seen, thread = [], threading.get_ident()
    with ThreadPoolExecutor() as another:
        run_inside(lambda: seen.append((HEARTBEAT.phase, HEARTBEAT.step, another.submit(position, thread).result())))
    phase, step, (waits, where) = seen[0]
    assert (phase, step, waits) == ("sampling", 1, False)
    assert re.fullmatch(r"sampling/torch_sampler\.py:\d+, generate", where)
    assert position(-1) == (False, "")


def run_inside(call) -> None:
    """Call a function while the first step of a run samples."""
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), run={"steps": 1})
        inside(run, 1, call)
        train(run)


def warm_run(folder: Path, shard: int = 1) -> Run:
    """Return a run of three steps that has trained the first one."""
    run = make_run(folder, shard)
    steps, run.config = run.config, with_settings(run.config, run={"steps": 1})
    train(run)
    run.config = steps
    return run


def inside(run, step: int, call) -> None:
    """Have a run call a function when it samples for a step."""
    draw = run.worker.sampler.stream

    def stream(*args):
        if run.reporter.last_step == step - 1:
            call()
        return draw(*args)

    run.worker.sampler.stream = stream


HANGS = ["asleep in sampling", "stopped in sampling", "asleep in the update"]


@pytest.mark.parametrize(
    "how,shard,rank_of", [(HANGS[0], 1, 0), (HANGS[0], 3, 2), (HANGS[1], 1, 1), (HANGS[1], 3, 0), (HANGS[2], 3, 1)]
)
def test_a_process_that_hangs_is_named(tmp_path: Path, how: str, shard: int, rank_of: int, capfd) -> None:
    """Of three, in the second step: each of the others, and the one that sleeps, ends with a line that names it."""

    def hang() -> None:
        if how.startswith("asleep"):
            time.sleep(600)
        time.sleep(3)  # so that it has told where it is
        killed_after(tmp_path, [rank for rank in range(3) if rank != rank_of])
        os.kill(os.getpid(), signal.SIGSTOP)

    def work(rank: int) -> str:
        (tmp_path / f"pid {rank}").write_text(str(os.getpid()))
        run = warm_run(tmp_path / "run", shard)
        if rank == rank_of and how.endswith("sampling"):
            inside(run, 2, hang)
        elif rank == rank_of:
            update = run.learner.optimizer.step
            run.learner.optimizer.step = lambda: hang() if HEARTBEAT.step == 2 else update()
        # One that sees a connection close before it reads why.
        with pytest.raises(RunError) as caught, watching(Accelerator(cpu=True), TIMEOUT):
            train(run, 1)
        return str(caught.value)

    start = time.monotonic()
    ends = run_processes(3, work)
    assert ends[rank_of] is None
    assert time.monotonic() - start < 90
    verb = "gives no sign for 15 s, last" if how.startswith("stopped") else "makes no progress for 15 s,"
    place = "sampling" if how.endswith("sampling") else "update"
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    lines += [f"error: {line}" for line in ends if line]
    assert len(lines) >= 2
    told = rf"error: process {rank_of} of 3 {verb} in {place} of step 2 "
    assert [line for line in lines if not re.match(told, line)] == []


def killed_after(folder: Path, others: list[int]) -> None:
    """Fork a process that kills this one once the others have ended, after a minute at the latest."""
    stopped, pids = os.getpid(), [int((folder / f"pid {rank}").read_text()) for rank in others]
    if os.fork():
        return
    os.closerange(0, 1000)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(alive(pid) for pid in pids):
        time.sleep(0.2)
    os.kill(stopped, signal.SIGKILL)
    os._exit(0)


def alive(pid: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_process_is_watched_too(capfd) -> None:
    """It ends with the line where it makes no progress, and not while it does."""

    def work(rank: int) -> str:
        with watching(ALONE, 1.0):
            enter("sampling", 4)
            for _ in range(20):
                time.sleep(0.1)
                beat()
            print("worked", flush=True)
            time.sleep(60)
        return "not ended"

    assert run_processes(1, work) == [None]
    out, err = capfd.readouterr()
    assert "worked" in out
    assert "error: this process makes no progress for 1 s, in sampling of step 4" in err


@pytest.mark.parametrize("error", [ValueError("a bad value"), RuntimeError("Connection closed"), RunError("a line")])
def test_errors_within_stay_what_they_are(error: Exception) -> None:
    """The watch ends with what it watches."""
    with pytest.raises(type(error), match=str(error)), watching(ALONE, 60.0):
        raise error


@pytest.mark.parametrize("shard", [1, 3], ids=["replicas", "shards"])
@pytest.mark.parametrize("dies", [0, 2])
def test_a_process_that_dies_is_named(tmp_path: Path, dies: int, shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three, one is killed while it samples; within a minute each of the others ends with a line that names it."""
    monkeypatch.setattr(rlvr.training.supervision.watchdog, "SECONDS", 3.0)

    def work(rank: int) -> tuple[str, float]:
        run = make_run(tmp_path, shard)
        if rank == dies:
            draw = run.worker.sampler.stream

            def last_line(*args):
                if run.reporter.last_step == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                return draw(*args)

            run.worker.sampler.stream = last_line
        start = time.monotonic()
        with pytest.raises(RunError) as caught, watching(Accelerator(cpu=True), 60.0):
            train(run)
        return str(caught.value), time.monotonic() - start

    results = run_processes(3, work)
    assert results[dies] is None
    lines = [result[0] for rank, result in enumerate(results) if rank != dies]
    assert all(line.startswith(f"process {dies} of 3 died or hung") and "\n" not in line for line in lines)
    assert all(result[1] < 60 for result in results if result)
