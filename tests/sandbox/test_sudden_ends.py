"""What is left when processes of the sandbox are killed from outside: nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.sandbox import host
from tests.helpers.users import PLACES, place

MARK = f"left-{os.getpid()}"
# Starts processes that would live on, and names them: children, orphans, a daemon, and one that hops.
PROGRAM = f"""
import ctypes, os, signal, time
def name(): ctypes.CDLL(None).prctl(15, b"{MARK}", 0, 0, 0)
for _ in range(3):
    if os.fork() == 0: name(); time.sleep(300)
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0: name(); time.sleep(300)
        os._exit(0)
if os.fork() == 0:
    os.setsid(); os.setpgid(0, 0); signal.pthread_sigmask(0, range(1, 64))
    if os.fork() == 0: os.close(0); os.close(1); os.close(2); name(); time.sleep(300)
    os._exit(0)
if os.fork() == 0:
    name()
    while True:
        time.sleep(.02)
        if os.fork(): os._exit(0)
name()
time.sleep(300)
"""


def named_processes() -> set[int]:
    """Processes that a program has named."""
    found = set()
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{number}/comm").read_text().strip() == MARK:
                found.add(int(number))
        except OSError:
            continue
    return found


def children_of(parents: set[int]) -> set[int]:
    """All descendants, by /proc."""
    rows = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            rows.append((int(number), parent_of(int(number))))
        except OSError:
            continue
    found: set[int] = set()
    while new := {pid for pid, parent in rows if parent in parents | found} - found:
        found |= new
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def directories(pid: int) -> list[str]:
    """Scratch directories of a caller."""
    parents = {host.scratch_parent() or tempfile.gettempdir(), tempfile.gettempdir()}
    return [name for path in parents for name in os.listdir(path) if name.startswith(f"rlvr-sandbox-{pid}-")]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    assert not named_processes()
    yield
    for pid in named_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def until(condition: object, seconds: float) -> bool:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.02)
    return bool(condition())  # type: ignore[operator]


@pytest.mark.parametrize("victims", ["caller", "caller and server", "server"])
@pytest.mark.parametrize(("user", "number"), PLACES)
def test_nothing_outlives_a_caller_or_server_that_is_killed(user: str, number: int, victims: str):
    """SIGKILL at the same instant: of the caller, of the fork server, of both."""
    with place(user, number) as pool:
        assert pool.process.stdin
        pool.send([{"program": PROGRAM, "seconds": 60.0}])
        assert until(lambda: len(named_processes()) >= 8, 60)
        caller = pool.process.pid
        # A run has a process group of its own; the servers are in that of their first process, at level 2 the keeper.
        servers = {pid for pid in children_of({caller}) if parent_of(os.getpgid(pid)) == caller}
        inner = {pid for pid in servers if os.getpgid(pid) != pid} or servers
        for victim in [*([caller] if "caller" in victims else []), *(inner if "server" in victims else [])]:
            # The server may have noticed already that its caller is gone.
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        if "caller" not in victims:
            # The run is done again in another server, and is ended with the pool.
            time.sleep(0.5)
            os.kill(caller, signal.SIGKILL)
        assert until(lambda: not named_processes(), 60)
        assert until(lambda: not directories(caller), 60)
