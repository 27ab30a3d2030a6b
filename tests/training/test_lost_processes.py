"""A process that dies ends the others soon, in a line that names it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from accelerate import Accelerator

import rlvr.training.supervision.watchdog
from rlvr.core.types import RunError
from rlvr.train import train
from rlvr.training.supervision.watchdog import naming_lost
from tests.helpers.processes import run_processes
from tests.helpers.sharded import ALONE, make_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("shard", [1, 3], ids=["replicas", "shards"])
@pytest.mark.parametrize("dies", [0, 2])
def test_a_process_that_dies_is_named(tmp_path: Path, dies: int, shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three, one is killed while it samples; within a minute each of the others ends with a line that names it."""
    monkeypatch.setattr(rlvr.training.supervision.watchdog, "SECONDS", 3.0)

    def work(rank: int) -> tuple[str, float]:
        run = make_run(tmp_path, shard)
        if rank == dies:
            draw = run.worker.sampler.stream

            def last(*args):
                if run.reporter.last_step == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                return draw(*args)

            run.worker.sampler.stream = last
        start = time.monotonic()
        with pytest.raises(RunError) as caught, naming_lost(Accelerator(cpu=True)):
            train(run)
        return str(caught.value), time.monotonic() - start

    results = run_processes(3, work)
    assert results[dies] is None
    lines = [result[0] for rank, result in enumerate(results) if rank != dies]
    assert all(line.startswith(f"process {dies} of 3 died or hung") and "\n" not in line for line in lines)
    assert all(result[1] < 60 for result in results if result)


@pytest.mark.parametrize("message", ["Connection closed by peer", "a matrix has the wrong shape"])
def test_other_errors_stay_what_they_are(message: str) -> None:
    """Those of one process, and those that say nothing of a connection."""
    with pytest.raises(RuntimeError, match=message) as caught, naming_lost(ALONE):
        raise RuntimeError(message)
    assert not isinstance(caught.value, RunError)
