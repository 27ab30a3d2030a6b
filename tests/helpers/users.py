"""The sandbox as this user and as one without privileges, at each level: where programs must stay contained."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from rlvr.sandbox import level
from tests.helpers.files import ROOT

NOBODY = 65534
PLACES = [("self", 3), ("self", 2), ("nobody", 3), ("nobody", 2)]
# Reads jobs, one a line, and answers each with its result; "many" runs all of one line at once.
_SERVICE = """
import dataclasses, json, sys
from rlvr.sandbox import Call, Job, Limits, Pool, host
setting = json.loads(sys.argv[1])
readable = host.readable_paths() + tuple(setting.pop("read"))
host.readable_paths = lambda: readable
def made(row):
    calls = tuple(map(Call, row.pop("calls", ())))
    return Job(row.pop("program"), row.pop("stdin", ""), calls=calls, limits=Limits(**row))
with Pool(**setting) as pool:
    print("ready", flush=True)
    for line in sys.stdin:
        results = pool.run_many([made(row) for row in json.loads(line)])
        found = [{**dataclasses.asdict(result), "returned": len(result.returned)} for result in results]
        print(json.dumps(found), flush=True)
"""


@dataclass(frozen=True)
class Answer:
    """What a run gave, as far as it crosses from one process to another."""

    status: str
    stdout: str
    stderr: str
    detail: str
    seconds: float


class Place:
    """A pool in a process of its own, of this user or of one without privileges."""

    def __init__(self, process: subprocess.Popen[str], user: str, number: int) -> None:
        self.process = process
        self.user = user
        self.level = number

    def run_many(self, rows: Sequence[dict[str, Any]]) -> list[Answer]:
        """Run programs at once; each row is a program with its stdin and limits."""
        assert self.process.stdout
        self.send(rows)
        found = json.loads(self.process.stdout.readline())
        return [Answer(**{name: row[name] for name in Answer.__dataclass_fields__}) for row in found]

    def send(self, rows: Sequence[dict[str, Any]]) -> None:
        """Start programs without waiting for them."""
        assert self.process.stdin
        print(json.dumps([{"seconds": 5.0, **row} for row in rows]), file=self.process.stdin, flush=True)

    def run(self, program: str, **row: Any) -> Answer:
        """Run one program."""
        return self.run_many([{"program": program, **row}])[0]


@contextmanager
def place(user: str, number: int, slots: int = 1, read: Sequence[str] = (), **setting: Any) -> Iterator[Place]:
    """A pool of `user` ("self" or "nobody") at a level; skips the test where it is not to be had.

    `read`: paths that programs may read besides the usual ones.
    """
    python, options = sys.executable, {}
    if level().number < number:
        pytest.skip(f"this machine gives sandbox level {level().number}")
    if user == "nobody":
        if os.geteuid() != 0:
            pytest.skip("only root can be another user")
        # The system's interpreter: that of an environment may be below /root.
        python = shutil.which("python3", path="/usr/bin") or "/usr/bin/python3"
        options = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    text = json.dumps({"slots": slots, "level": number, "read": list(read), **setting})
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [python, "-c", _SERVICE, text]
    try:
        process = subprocess.Popen(command, env=environment, cwd="/", **pipes, **options)  # type: ignore[call-overload]
    except OSError as problem:
        pytest.skip(f"no interpreter that another user may run: {problem}")
    with process:
        if process.stdout.readline() != "ready\n":
            reason = process.stderr.read().strip().splitlines()[-1:]
            pytest.skip(f"no pool of {user} at level {number}: {' '.join(reason)}")
        try:
            yield Place(process, user, number)
        finally:
            process.stdin.close()
            process.wait(60)
