"""The Ray executor on a local cluster of two workers."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rlvr.sandbox import Call, Job, Limits, TestJob, level, ray_executor
from rlvr.sandbox.limits import RunStatus
from rlvr.sandbox.ray_executor import RayExecutor

pytestmark = pytest.mark.ray


def test_without_ray_the_error_names_the_extra() -> None:
    """Where Ray cannot be imported the executor says what to install."""
    program = (
        "import sys; sys.modules['ray'] = None\n"
        "from rlvr.sandbox.ray_executor import RayExecutor\n"
        "try: RayExecutor(1)\n"
        "except ImportError as problem: print(problem)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install -e '.[ray]'" in done.stdout


@pytest.fixture(scope="module")
def executor() -> Iterator[RayExecutor]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install -e '.[ray]'")
    if level().number < 2:
        pytest.skip("no sandbox of level 2 on this machine")
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with RayExecutor(2, batch=4) as made:
        yield made
    ray.shutdown()


def pids(executor: RayExecutor) -> list[int]:
    """Process ids of the workers, once Ray has restarted those that a test before killed."""
    import ray

    def pid(worker: Any) -> int:
        while True:
            try:
                return ray.get(worker.__ray_call__.remote(lambda _: os.getpid()))  # type: ignore[no-any-return]
            except ray.exceptions.ActorUnavailableError:
                time.sleep(0.1)

    return [pid(worker) for worker in executor._workers]


def test_results_come_in_order_from_two_workers(executor: RayExecutor) -> None:
    """Fifty programs over two processes; each result belongs to its job, and carries its level."""
    assert len(set(pids(executor))) == 2
    results = executor.run_many([Job(f"print({i})") for i in range(50)])
    assert [result.stdout for result in results] == [f"{i}\n" for i in range(50)]
    assert executor.run_many([]) == []
    assert {result.level for result in results} == {level().number} == set(executor.levels)


def test_calls_and_tests_cross_the_cluster(executor: RayExecutor) -> None:
    """Values come back as they do from a local pool, and so does the end of a test program."""
    program = "def add(a, b): return a + b"
    tests = "def check(candidate):\n    assert candidate(2, 3) == 5\ncheck(add)\n"
    called, right, wrong = executor.run_many(
        [
            Job(program, calls=(Call("add", (2, 3)),)),
            TestJob(Job(program), tests, ("add",)),
            TestJob(Job(program.replace("+", "-")), tests, ("add",)),
        ]
    )
    assert called.returned[0].value == 5
    assert (right.tests_passed, wrong.tests_passed) == (True, False)


def test_a_worker_that_dies_costs_a_retry_not_a_result(executor: RayExecutor) -> None:
    """One worker is killed while jobs run; every result is there and right."""
    victim = pids(executor)[0]
    first = executor.run_many([Job("print(1)")])
    os.kill(victim, signal.SIGKILL)
    jobs = [Job(f"import time; time.sleep(0.05); print({i})", limits=Limits(seconds=10)) for i in range(24)]
    results = executor.run_many(jobs)
    assert first[0].stdout == "1\n"
    assert [(result.status, result.stdout) for result in results] == [(RunStatus.OK, f"{i}\n") for i in range(24)]


def test_all_workers_that_die_come_back(executor: RayExecutor) -> None:
    """Ray refuses calls of a worker that it restarts: these cost no batch an attempt, however many wait."""
    for victim in pids(executor):
        os.kill(victim, signal.SIGKILL)
    results = executor.run_many([Job(f"print({i})") for i in range(60)])
    assert [(result.status, result.stdout) for result in results] == [(RunStatus.OK, f"{i}\n") for i in range(60)]


def test_workers_that_never_come_back_end_the_wait(executor: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """When Ray restarts nobody the jobs are SANDBOX_ERROR after a while, those of a worker that lives are right."""
    import ray

    monkeypatch.setattr(ray_executor, "_RETURN", 0.5)
    with RayExecutor(2, batch=1) as one:
        ray.kill(one._workers[0])
        assert [result.stdout for result in one.run_many([Job("print(1)")] * 8)] == ["1\n"] * 8
        ray.kill(one._workers[1])
        results = one.run_many([Job("print(1)")] * 8)
    assert {(result.status, result.detail) for result in results} == {
        (RunStatus.SANDBOX_ERROR, "the worker of the cluster died")
    }
