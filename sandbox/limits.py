"""Data types of the sandbox: jobs, limits, results, isolation levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rlvr.printable import in_one_line

MAX_DETAIL = 400  # characters
MAX_WALL = 5  # times the seconds of a run, on a machine that is busy with others
MAX_PROGRAM = 1 << 20  # characters


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one run. Raises ValueError for a limit that is not positive."""

    seconds: float = 5.0
    """Wall-clock time without that in which the run was ready and no processor was free; processor time of all its
    processes together where that is more. At most five times as much by the clock (MAX_WALL)."""
    memory_mb: int = 1024
    """Address space of each process, preloaded modules included."""
    total_memory_mb: int = 0
    """Memory in use of all processes together, measured every 50 ms; 0 for twice `memory_mb`."""
    processes: int = 128
    """Simultaneous processes and threads, the program's main thread included."""
    files: int = 256
    """Open files of each process."""
    file_mb: int = 16
    """Size of one file; the scratch directory holds four times that."""
    output_kb: int = 1024
    """stdout and stderr, each."""
    result_kb: int = 4096
    """Encoded size of the values of all calls together."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0 and (name, getattr(self, name)) != ("total_memory_mb", 0):
                raise ValueError(f"limit {name} {getattr(self, name)}: expected a number above 0")

    @property
    def together_mb(self) -> int:
        """Memory of all processes together, in MB."""
        return self.total_memory_mb or 2 * self.memory_mb


class RunStatus(StrEnum):
    """How a run ended. SANDBOX_ERROR: the program never started, so no program can cause it."""

    OK = "ok"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    CRASH = "crash"
    COMPILE_ERROR = "compile_error"
    SANDBOX_ERROR = "sandbox_error"


@dataclass(frozen=True, slots=True)
class Call:
    """A call to make after the program: `entry` (dotted name) with `args` and `kwargs`, or an expression's source.

    Evaluated in the program's namespace. Arguments are plain data (see inside/plain.py).
    """

    entry: str = ""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    expression: str = ""

    def __post_init__(self) -> None:
        if bool(self.entry) == bool(self.expression):
            raise ValueError("a call has either an entry or an expression")


@dataclass(frozen=True, slots=True)
class Returned:
    """Value of a call in exact builtin types, or the name of the exception it raised (`raised` not empty).

    `too_large`: there is a value, which exceeds the bounds of plain data (inside/bounds.py).
    """

    value: Any = None
    raised: str = ""
    too_large: bool = False

    def __post_init__(self) -> None:
        # The program chooses the name.
        object.__setattr__(self, "raised", in_one_line(self.raised)[:MAX_DETAIL])


@dataclass(frozen=True, slots=True)
class Job:
    """A program to run, its input, and calls to make after it.

    `prelude` is code that runs before the program, `setup` code that runs after it, both in its namespace. A job must
    not contain expected values: the program can read everything in it.
    """

    program: str
    stdin: str = ""
    calls: tuple[Call, ...] = ()
    setup: str = ""
    limits: Limits = field(default_factory=Limits)
    prelude: str = ""


@dataclass(frozen=True, slots=True)
class TestJob:
    """A trusted test program, run in a second sandbox, that calls into the sandbox of `job.program`.

    In `test`, each of `names` is a proxy for the program's object of that name. A call of one of `classes` returns a
    proxy that can be used as an instance; any other returned object that is not plain data has no usable methods or
    items. `exceptions` are those of the names that the tests catch. With `objects` the program's own operators decide
    comparisons between its objects: only for tests that ask for that, since they cannot be secured.
    `Result.tests_passed` tells whether the tests passed.
    """

    __test__ = False

    job: Job
    test: str
    names: tuple[str, ...]
    classes: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    objects: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of a run. `returned` has one entry per answered call, in order.

    `level` is the isolation it ran under (see Level); `seconds` is wall-clock time. `tests_passed` is set for a TestJob
    only: None if the test program did not finish. `detail` says in one line what went wrong, control characters as
    escapes such as \\x1b.
    """

    status: RunStatus
    stdout: str = ""
    stderr: str = ""
    returned: tuple[Returned, ...] = ()
    exit_code: int | None = None
    level: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    detail: str = ""
    tests_passed: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", in_one_line(self.detail)[:MAX_DETAIL])


@dataclass(frozen=True, slots=True)
class Level:
    """Isolation level of this machine, as found by the self-test.

    3: namespaces, Landlock, seccomp and rlimits. 2: no namespaces. 1: only seccomp and rlimits. 0: only rlimits.
    `missing`: what the next level would need.
    """

    number: int
    missing: tuple[str, ...] = ()


class Executor(Protocol):
    """Anything that runs jobs: a Pool on this machine, or a RayExecutor over several."""

    def run_many(self, jobs: Sequence[Job | TestJob]) -> list[Result]:
        """Return the results of `jobs` in their order."""
        ...
