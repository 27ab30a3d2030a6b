"""rlvr.sandbox: isolated execution of model-written programs.

    from rlvr.sandbox import Limits, run
    run("print(input()[::-1])", stdin="abc", limits=Limits(seconds=2)).stdout    # 'cba\\n'

Each program runs in its own process, forked from a warm server and isolated by namespaces, Landlock, seccomp and
resource limits. `level()` tells which of these layers this machine offers. Not covered: kernel bugs, side channels
(timing, machine load, at level 2 the names of existing files), and programs with hard-coded answers to known tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from .limits import (
    Call,
    Executor,
    Job,
    Level,
    Limits,
    Result,
    Returned,
    RunStatus,
    SandboxUnavailable,
    TestJob,
)
from .pool import Pool
from .selftest import level
from .session import Session

__all__ = [
    "Call",
    "Executor",
    "Job",
    "Level",
    "Limits",
    "Pool",
    "Result",
    "Returned",
    "RunStatus",
    "SandboxUnavailable",
    "Session",
    "TestJob",
    "level",
    "run",
    "run_many",
]


@cache
def _shared_pool() -> Pool:
    """Return the pool behind `run` and `run_many`: one slot per core, closed at exit."""
    return Pool()


def run(program: str, *, stdin: str = "", limits: Limits | None = None) -> Result:
    """Run one program with `stdin` and return its Result. Raises SandboxUnavailable below level 2."""
    return run_many([Job(program, stdin, limits=limits or Limits())])[0]


def run_many(jobs: Sequence[Job | TestJob]) -> list[Result]:
    """Run jobs in parallel, one per core, and return their results in the same order."""
    return _shared_pool().run_many(jobs)
