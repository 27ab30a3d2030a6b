"""What servers prepare for their children, and what these therefore no longer do, leaves every run as it was."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from pathlib import Path

import pytest

from rlvr.sandbox import Job, Limits, Pool, RunStatus
from tests.helpers.programs import available

# Of a process: number of its parent, and what the kernel tells of its rights.
RIGHTS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")


def read_status(path: Path) -> dict[str, str]:
    """Return the lines "name: value" of a file in /proc; none where the process has ended."""
    try:
        rows = [line.partition(":") for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in rows}


def numbers() -> set[str]:
    """The processes of this machine."""
    return {path.name for path in Path("/proc").glob("[0-9]*")}


def youngest_descendant(before: set[str]) -> Path:
    """Return the directory in /proc of the last of the chain of children that starts here, without those of before."""
    known = {
        path.parent: read_status(path) for path in Path("/proc").glob("[0-9]*/status") if path.parent.name not in before
    }
    found, parent = Path("/proc/self"), str(os.getpid())
    while children := [path for path, row in known.items() if row.get("PPid") == parent]:
        found = children[-1]
        parent = found.name
    return found


def read_prepared(before: set[str], limits: Limits, runs: threading.Thread) -> tuple[dict[str, str], str]:
    """Return what the kernel tells of a run's process once that has its limits; what it told last if it never has."""
    found: tuple[dict[str, str], str] = {}, ""
    while runs.is_alive() and not (str(limits.memory_mb << 20) in found[1] and found[0].get("Seccomp") == "2"):
        process = youngest_descendant(before)
        with contextlib.suppress(OSError):
            found = read_status(process / "status"), (process / "limits").read_text()
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("number", [3, 2])
def test_a_run_has_no_rights_and_its_own_limits(number: int):
    """What the server has done once for all runs holds in each, and the limits are those of the run."""
    available(number)
    limits, before = Limits(seconds=2, memory_mb=300, files=40, file_mb=3), numbers()
    with Pool(1, level=number) as pool:
        pool.run(Job("pass"))
        thread = threading.Thread(target=pool.run, args=[Job("import time; time.sleep(1.5)", limits=limits)])
        thread.start()
        rights, limited = read_prepared(before, limits, thread)
        thread.join()
    empty = ["CapInh", "CapPrm", "CapEff", "CapAmb"] + ["CapBnd"] * (number == 3)
    assert {name: int(rights[name], 16) for name in empty} == dict.fromkeys(empty, 0)
    assert (rights["NoNewPrivs"], rights["Seccomp"]) == ("1", "2")
    rows = {line[:25].strip(): line[25:].split()[:2] for line in limited.splitlines()}
    assert rows["Max address space"] == [str(300 << 20)] * 2
    assert rows["Max open files"] == ["40", "40"]
    assert rows["Max file size"] == [str(3 << 20)] * 2
    assert rows["Max cpu time"] == ["4", "4"]
    assert rows["Max core file size"] == rows["Max locked memory"] == rows["Max msgqueue size"] == ["0", "0"]
    assert rows["Max pending signals"] == ["128", "128"]


def test_runs_with_different_limits_have_their_own(pool: Pool):
    """The limits prepared for one run are not those of the next."""
    program = "from resource import *; print(getrlimit(RLIMIT_NOFILE), getrlimit(RLIMIT_AS))"
    numbers = (30, 50, 30, *range(60, 72), 50)
    jobs = [Job(program, limits=Limits(files=files, memory_mb=200 + files)) for files in numbers]
    for job, result in zip(jobs, pool.run_many(jobs)):
        files, memory = job.limits.files, job.limits.memory_mb << 20
        assert result.stdout == f"({files}, {files}) ({memory}, {memory})\n"


def test_a_program_finds_nothing_of_the_rehearsal(pool: Pool):
    """Neither modules of this project nor what the server has compiled and printed in advance."""
    program = (
        "import sys, linecache, traceback\n"
        "print(sorted(name for name in sys.modules if 'rlvr' in name), len(linecache.cache), sys.stdin.tell())\n"
        "print(sorted(name for name in globals() if not name.startswith('__')), sys.stdin.read())"
    )
    result = pool.run(Job(program, "abc"))
    assert result.stdout == "[] 2 0\n['linecache', 'sys', 'traceback'] abc\n", result.stderr


def test_a_program_has_no_descriptor_of_the_server_whatever_its_number():
    """The number of the server's connection is that in the caller, who may have many files open."""
    available(3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 600:
        resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(400)]
    program = (
        "import os\nfound = []\nfor number in range(3, 1000):\n"
        "    try: os.fstat(number); found.append(number)\n    except OSError: pass\nprint(found)"
    )
    try:
        for number in (3, 2):
            with Pool(1, level=number) as pool:
                assert pool.run(Job(program)).stdout == "[]\n"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_batch_keeps_its_order_and_reports_the_first_failure():
    """Results come in the order of the jobs; an exception ends the wait, and jobs not begun are not run."""
    available(3)
    with Pool(2, level=3) as pool:
        jobs = [Job(f"import time; time.sleep({0.1 * (number % 3)}); print({number})") for number in range(7)]
        assert [result.stdout for result in pool.run_many(jobs)] == [f"{number}\n" for number in range(7)]
        slow = Job("import time; time.sleep(1)", limits=Limits(seconds=3))
        start = time.monotonic()
        with pytest.raises(AttributeError):
            pool.run_many([None, *[slow] * 40])  # type: ignore[list-item]
        assert time.monotonic() - start < 15
        assert pool.run(Job("print(1)")).status is RunStatus.OK
