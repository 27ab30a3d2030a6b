"""Data types of the sandbox: jobs, limits, results, isolation levels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rlvr.core.printable import in_one_line
from rlvr.core.types import RunError

MAX_DETAIL = 400  # characters
MAX_WALL = 5  # times the seconds of a run, on a machine that is busy with others
MAX_PROGRAM = 1 << 20  # characters
MOST = 10**9  # of anything that is counted; more is a mistake
LEAST_SECONDS, MOST_SECONDS = 0.001, 86_400.0
LEAST_FILES = 8  # what isolation itself opens in the process of the program
MOST_SLOTS = 1024
_IMPORTS_PYTEST = re.compile(r"\bpytest\b")
_DEFINES_TESTS = re.compile(r"\bpytest\b|\bunittest\b|^\s*(async )?def test|^\s*class ", re.M)
BYTES = "surrogateescape"


def check_count(name: str, value: object, least: int = 1, most: int = MOST) -> None:
    """Raise ValueError for anything but a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} {_shorten(value)}: expected a whole number from {least:,} to {most:,}")


def check_seconds(name: str, value: object, least: float = LEAST_SECONDS, most: float = MOST_SECONDS) -> None:
    """Raise ValueError for anything but a number of seconds within bounds; NaN is in none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} {_shorten(value)}: expected a number above 0 ({least:g} to {most:,.0f} seconds)")


def check_text(name: str, value: object) -> None:
    """Raise ValueError for anything but text."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is a {type(value).__name__}; expected text")


def encode(what: str, text: str, errors: str = "strict") -> bytes:
    """Return text in UTF-8. Raises ValueError, which begins with `what`, for a lone surrogate.

    errors: BYTES lets surrogates from U+DC80 to U+DCFF stand for the bytes 0x80 to 0xFF, which are no text in UTF-8.
    """
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError as error:
        found = ord(error.object[error.start])
        raise ValueError(f"{what} is not text in UTF-8: it holds the lone surrogate \\u{found:04x}") from None


def check_names(name: str, value: object) -> None:
    """Raise ValueError for anything but a list or tuple of texts, such as a single text."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{name} {_shorten(value)}: expected a list of names")


def _shorten(value: object) -> str:
    return repr(value)[:80] if not isinstance(value, int) or abs(value) < 1 << 64 else "of more than 64 bits"


class SandboxUnavailable(RunError):
    """This machine cannot provide the requested isolation."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one run. Raises ValueError for a limit that is no number or out of bounds."""

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
        check_seconds("limit seconds", self.seconds)
        for name in self.__slots__[1:]:
            check_count(f"limit {name}", getattr(self, name), {"total_memory_mb": 0, "files": LEAST_FILES}.get(name, 1))

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
    """A call of a function after the program, by its dotted name. Arguments are plain data (see wire/values.py)."""

    entry: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Returned:
    """Value of a call in exact builtin types, or the name of the exception it raised (`raised` not empty).

    `too_large`: there is a value, which exceeds the bounds of plain data (wire/values.py).
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
    not contain expected values: the program can read everything in it. Raises ValueError for a part of another type,
    and for `stdin` that is no text in UTF-8 (see `encode`).
    """

    program: str
    stdin: str = ""
    calls: tuple[Call, ...] = ()
    setup: str = ""
    limits: Limits = field(default_factory=Limits)
    prelude: str = ""

    def __post_init__(self) -> None:
        for name in ("program", "stdin", "setup", "prelude"):
            check_text(name, getattr(self, name))
        if not isinstance(self.limits, Limits):
            raise ValueError(f"limits of a job: a {type(self.limits).__name__}; expected Limits")
        if not all(isinstance(call, Call) for call in self.calls):
            raise ValueError(f"calls of a job {self.calls!r:.80}: expected a tuple of Call")
        encode("stdin", self.stdin, BYTES)


@dataclass(frozen=True, slots=True)
class TestJob:
    """A test program for the program of `job`. `Result.tests_passed` tells whether the tests passed.

    In a second sandbox, where it is trusted, each of `names` calls the program's function of that name, and only plain
    values cross; what one of `classes` returns stays with the program, and is used by its number. With `together` the
    test program runs after the program in the same process, as in plain Python: the program can forge the result.
    """

    __test__ = False

    job: Job
    test: str
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    together: bool = False

    @property
    def uses_pytest(self) -> bool:
        """Whether the test program imports pytest, or defines tests that pytest is to find."""
        return bool((_DEFINES_TESTS if self.together else _IMPORTS_PYTEST).search(self.test))


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of a run. `returned` has one entry per answered call, in order.

    `level` is the isolation it ran under (see Level); `seconds` is wall-clock time. `tests_passed` is set for a TestJob
    only: None if the test program did not finish. `checks`: how many of its checks held, how many are written, and the
    number of the first that did not; tests that run together with the program are one. `detail` says in one line what
    went wrong, control characters as escapes such as \\x1b.
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
    checks: tuple[int, int, int] = (0, 1, 1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", in_one_line(self.detail)[:MAX_DETAIL])


@dataclass(frozen=True, slots=True)
class Level:
    """Isolation level of this machine, as found by the self-test.

    3: namespaces, Landlock, seccomp and rlimits. 2: no namespaces. 1: only seccomp and rlimits. 0: none.
    `missing`: what the next level would need.
    """

    number: int
    missing: tuple[str, ...] = ()


class Executor(Protocol):
    """Anything that runs jobs: a Pool on this machine, or a RayExecutor over several."""

    def run_many(self, jobs: Sequence[Job | TestJob]) -> list[Result]:
        """Return the results of `jobs` in their order."""
        ...
