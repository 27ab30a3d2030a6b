"""Confine this process, then become another program: what `rlvr.sandbox.external` starts.

The program is one process, which starts no others, opens no sockets, reads `read`, writes `write`, and runs nothing but
itself. On the status pipe: `R` when confined, or `E` and a text. The pipe closes when the program starts.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from typing import Any, NoReturn

from . import isolation, kernel, landlock, seccomp, syscalls

EXIT_REFUSED = 125


def main(text: str) -> NoReturn:
    """Confine this process as the JSON object `text` says, and execute its `command`. Does not return."""
    job: dict[str, Any] = json.loads(text)
    status = job["status"]
    os.set_inheritable(status, False)
    try:
        _confine(job)
        os.write(status, b"R")
        os.execve(job["command"][0], job["command"], job["environment"])
    except (OSError, LookupError) as error:
        os.write(status, f"E{error}".encode())
    os._exit(EXIT_REFUSED)


def _confine(job: dict[str, Any]) -> None:
    version = landlock.abi()
    if not version:
        raise OSError("this kernel has no Landlock, which confines other programs")
    for number in (signal.SIGXFSZ, signal.SIGPIPE):
        # Python ignores both, and what is ignored stays so in the program.
        signal.signal(number, signal.SIG_DFL)
    # Before the change of user: paths may be the caller's alone.
    executes = [job["command"][0], *job["loaders"]]
    rules = landlock.Grants(version, job["read"], job["write"], isolation.DEVICES, executes)
    ruleset = rules.create()
    isolation.limit_all()
    for what, value in (
        (resource.RLIMIT_AS, job["memory_mb"] << 20),
        (resource.RLIMIT_CPU, job["seconds"]),
        (resource.RLIMIT_NPROC, job["tasks"]),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_FSIZE, job["file_kb"] << 10),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))
    if job["uid"] is not None:
        os.setgroups([])
        os.setresgid(job["uid"], job["uid"], job["uid"])
        os.setresuid(job["uid"], job["uid"], job["uid"])
    kernel.capabilities_ready(0)()
    # After the change of user, which resets it.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != job["parent"]:
        raise OSError("the caller has ended")
    landlock.restrict(ruleset)
    own_pid = None if version >= 6 else os.getpid()
    seccomp.install_ready(seccomp.build(syscalls.architecture(), own_pid, one_process=True))()
