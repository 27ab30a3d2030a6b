"""Servers of `rlvr serve` and training commands as processes, with the real vLLM."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.files import ROOT

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TORCH_COMPILE_DISABLE": "1"}


def rlvr(*arguments: str) -> list[str]:
    """The command line of rlvr."""
    return [sys.executable, "-m", "rlvr", *arguments]


def torchrun(processes: int, *command: str) -> list[str]:
    """The command line of several processes on this machine."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*start, *command]


@contextmanager
def serve_command(model: Path, logs: Path, *flags: str) -> Iterator[tuple[list[str], subprocess.Popen[str]]]:
    """URLs that `rlvr serve` prints once its servers answer, and its process."""
    command = rlvr("serve", str(model), "--log-dir", str(logs), *flags)
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        told = process.stdout.readline()
        urls = re.findall(r"http://\S+", told)
        assert urls, told + process.communicate(timeout=60)[0]
        yield urls, process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def children(pid: int) -> dict[int, str]:
    """The command lines of a process's children, whose parts end with NUL, by their ids."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found[int(folder.name)] = (folder / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def server_at(pid: int, url: str) -> int:
    """The child of a process that serves at a URL."""
    port = url.rpartition(":")[2]
    [child] = [child for child, command in children(pid).items() if port in command.split("\0")]
    return child
