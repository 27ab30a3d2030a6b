"""Thousands of honest runs among hostile ones."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rlvr.sandbox import Job, Limits, Pool, RunStatus, TestJob, host, level

runs_programs = pytest.mark.skipif(
    sys.platform != "linux" or level().number < 2, reason="programs cannot be isolated here"
)


def left_behind() -> tuple[set[int], set[str]]:
    """Our servers, processes of their users, and their directories."""
    processes = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            user = os.stat(f"/proc/{name}").st_uid
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        ours = host._FIRST_UID + os.getpid() * host._SERVERS_EACH
        if ours <= user < ours + host._SERVERS_EACH or parent == os.getpid():
            processes.add(int(name))
    directories = (host.scratch_parent() or tempfile.gettempdir(), tempfile.gettempdir())
    return processes, {
        name for path in directories for name in os.listdir(path) if name.startswith(f"rlvr-sandbox-{os.getpid()}-")
    }


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@runs_programs
@pytest.mark.slow
def test_honest_programs_among_hostile_ones():
    """2,000 honest runs and 300 bombs, daemons and kill attempts on four slots: no honest verdict is wrong.

    Afterwards no process and no directory is left, and this process has not grown.
    """
    before, memory = left_behind(), resident_mb()
    honest = Job("n = int(input())\nprint(sum(i * i for i in range(n)))", "100\n")
    hostile = [
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)",
        "import os, signal\nfor p in range(2000):\n    try: os.kill(p, signal.SIGKILL)\n    except OSError: pass",
        "import os, signal\nos.kill(-1, signal.SIGKILL)",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "for n in range(10 ** 6): open(f'f{n}', 'wb').write(bytes(1 << 20))",
    ]
    jobs: list[Job | TestJob] = []
    for number in range(2300):
        bad = number % 23 in (3, 11, 19)
        limits = Limits(seconds=0.2)
        jobs.append(Job(hostile[number // 23 % len(hostile)], limits=limits) if bad else honest)
    with Pool(4) as pool:
        results = pool.run_many(jobs)
    good = [result for job, result in zip(jobs, results) if job is honest]
    assert len(good) == 2000
    assert {(result.status, result.stdout) for result in good} == {(RunStatus.OK, "328350\n")}
    assert not [result for result in results if result.status is RunStatus.SANDBOX_ERROR]
    time.sleep(0.5)
    processes, directories = left_behind()
    assert not processes - before[0]
    assert not directories - before[1]
    assert resident_mb() - memory < 64
