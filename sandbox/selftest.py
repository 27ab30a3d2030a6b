"""Find the isolation level of this machine by trying forbidden actions, not from version numbers."""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
from functools import cache

from .client import ServerDied, ServerRefused, ServerSetting
from .execution import Slot, run_job
from .limits import Job, Level, Limits, RunStatus, SandboxUnavailable

logger = logging.getLogger("rlvr.sandbox")

# Each line that this program prints, but for the last, is a forbidden action that succeeded.
_PROGRAM = """
import ctypes, os, socket
def attempt(name, action):
    try:
        action()
    except OSError:
        return
    print(name)
attempt("file", lambda: open({secret!r}).read())
attempt("write", lambda: open({outside!r}, "w").write("x"))
attempt("network", lambda: socket.create_connection(("127.0.0.1", {port}), 1))
attempt("signal", lambda: os.kill({pid}, 0))
attempt("exec", lambda: os.execv("/bin/true", ["true"]))
attempt("environment", lambda: os.environ["RLVR_CANARY"] if "RLVR_CANARY" in os.environ else open("/nowhere"))
libc = ctypes.CDLL(None)
if libc.ptrace(0, 0, 0, 0) == 0:
    print("ptrace")
if libc.unshare(0x10000000) == 0:
    print("unshare")
try:
    block = bytearray(8 << 30)
    print("memory")
except MemoryError:
    pass
open("scratch", "w").write("x")
print("end")
"""
# Actions that a level does not prevent: without Landlock and namespaces, files are accessible.
_EXPECTED = {3: set(), 2: set(), 1: {"file", "write", "signal"}}
_NEEDS = {
    3: "user, mount, pid, network and IPC namespaces (kernel.unprivileged_userns_clone, user.max_user_namespaces, "
    "AppArmor's restriction of user namespaces, or the container's seccomp profile may refuse them)",
    2: "Landlock (Linux 5.13 or later with landlock in the lsm= list, not refused by the container's seccomp profile)",
    1: "seccomp filters on x86-64 or aarch64 Linux",
}


@cache
def level() -> Level:
    """Return the best level whose self-test passes, with what the next one needs. Takes about 0.2 s, once."""
    missing: list[str] = []
    for number in (3, 2, 1):
        failure = probe(number)
        if failure is None:
            return Level(number, tuple(missing))
        missing = [f"for level {number}: {_NEEDS[number]}; self-test: {failure}"]
    return Level(0, tuple(missing))


def probe(number: int) -> str | None:
    """Run the self-test at a level. Returns None if it holds, else what went wrong."""
    if sys.platform != "linux":
        return f"the system is {sys.platform}"
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as listener:
        os.chmod(directory, 0o777)
        secret = os.path.join(directory, "secret")
        with open(secret, "w") as file:
            file.write("canary")
        os.chmod(secret, 0o666)
        program = _PROGRAM.format(
            secret=secret,
            outside=os.path.join(directory, "written"),
            port=listener.getsockname()[1],
            pid=os.getpid(),
        )
        try:
            return _run(number, program)
        except (ServerRefused, ServerDied) as error:
            return str(error)


def _run(number: int, program: str) -> str | None:
    slot = Slot(ServerSetting(number))
    try:
        result = run_job(slot, Job(program, limits=Limits(seconds=10)))
    finally:
        slot.close()
    lines = result.stdout.split()
    if result.status is not RunStatus.OK or lines[-1:] != ["end"]:
        return f"{result.status} {result.detail} {result.stderr.strip()[-200:]}".strip()
    broken = set(lines[:-1]) - _EXPECTED[number]
    return f"a program could use: {', '.join(sorted(broken))}" if broken else None


@cache
def _warn_once(text: str) -> None:
    logger.warning(text)


def choose_level(wanted: int | None, *, allow_weak: bool) -> Level:
    """Return the level to use. Raises SandboxUnavailable if it is below 2 and the caller has not allowed that."""
    found = level()
    if wanted is not None and (isinstance(wanted, bool) or wanted not in (1, 2, 3)):
        raise ValueError(f"sandbox level {wanted!r:.80}: expected 1, 2 or 3")
    number = found.number if wanted is None else wanted
    # What a better level would need says nothing where the caller asked for less than the machine offers.
    lacks = f"{_lacks(found)} " if number == found.number and found.missing else ""
    if number == 0:
        raise SandboxUnavailable(f"this machine cannot isolate programs. {_lacks(found)}")
    if number > found.number:
        raise SandboxUnavailable(
            f"sandbox level {number} requested, but this machine offers {found.number}. {_lacks(found)}"
        )
    if number == 1 and not allow_weak:
        only = "this machine offers only seccomp and rlimits (level 1)"
        raise SandboxUnavailable(
            f"{only if number == found.number else 'level 1 was requested'}: programs could read this user's files. "
            f"{lacks}Pass allow_weak=True to run them anyway."
        )
    if number < 3:
        _warn_once(f"sandbox level {number} of 3. {lacks}".strip())
    return Level(number, found.missing if number == found.number else ())


def _lacks(found: Level) -> str:
    return " ".join(f"Missing {line}." for line in found.missing)
