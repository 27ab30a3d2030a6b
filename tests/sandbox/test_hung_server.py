"""A fork server that does not answer is ended, with all its processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from rlvr.sandbox import Pool, client
from tests.helpers.programs import LEVELS, available


def group(leader: int) -> set[int]:
    """Processes of a process group."""
    found = set()
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] != "Z":
            found.add(int(number))
    return found


@pytest.mark.parametrize("number", LEVELS)
def test_a_stopped_server_does_not_outlive_its_pool(number: int, monkeypatch: pytest.MonkeyPatch):
    """Closing the pool waits for a while, then kills the server and its keeper."""
    available(number)
    monkeypatch.setattr(client, "_STOP_SECONDS", 0.5)
    with Pool(1, level=number) as pool:
        pool.warm()
        leader = pool._all[0].server("program").process.pid
        servers = group(leader)
        assert servers
        for pid in servers:
            os.kill(pid, signal.SIGSTOP)
    # Killed, they take a moment to end.
    until = time.monotonic() + 60
    while group(leader) and time.monotonic() < until:
        time.sleep(0.01)
    assert not group(leader)
