"""What programs cannot do, and that nothing of them stays behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rlvr.sandbox import Job, Limits, Pool, RunStatus, TestJob, host
from tests.helpers.programs import LEVELS, available, outcome, prints_only, read_programs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


CANNOT = read_programs("cannot")


def test_what_a_program_cannot_do(pool: Pool):
    """Each is refused by an error, which an honest program survives."""
    program = f"""
import ctypes, fcntl, os, resource, signal, socket, subprocess
libc = ctypes.CDLL(None)
def error(result):
    if result: raise OSError
for what, attempt in {CANNOT!r}.items():
    try: exec(attempt)
    except (OSError, ValueError): continue
    print("it can", what)
print("end")
"""
    prints_only(pool, program, "end\n")


# Python's functions succeed, so that copies of files do, and change no modes.
MODES = """
import os, pathlib, shutil
f = os.open("f", os.O_CREAT | os.O_RDWR, 0o640)
before = os.stat(".").st_mode
for change in (
    lambda: os.chmod("f", 0o6777), lambda: os.fchmod(f, 0o6777), lambda: os.chmod(f, 0o6777),
    lambda: pathlib.Path("f").chmod(0o6777), lambda: shutil.copymode(".", "f"), lambda: os.chmod(".", 0o6777),
    lambda: (shutil.copy("f", "g"), os.replace("g", "f")),
):
    change()
    print(os.stat("f").st_mode & 0o7022, os.stat(".").st_mode == before)
"""


def test_modes_stay_as_they_are(pool: Pool):
    prints_only(pool, MODES, "0 True\n" * 7)


def test_no_capabilities_no_new_privileges_no_descriptors(pool: Pool):
    """A program starts with nothing in hand."""
    program = """
import ctypes, os
libc = ctypes.CDLL(None)
print(libc.prctl(39, 0, 0, 0, 0))
data = (ctypes.c_uint32 * 6)()
libc.capget(ctypes.byref((ctypes.c_uint32 * 2)(0x20080522, 0)), data)
print(list(data))
found = []
for number in range(3, 1024):
    try: os.fstat(number); found.append(number)
    except OSError: pass
print(found, sorted(os.environ))
"""
    result = outcome(pool, program)
    first, capabilities, rest = result.stdout.splitlines()
    assert (first, capabilities) == ("1", "[0, 0, 0, 0, 0, 0]")
    assert rest.startswith("[] ['HOME', 'LANG', ")


def test_network_canary_is_never_reached(pool: Pool):
    """A listener on this machine sees no connection, whatever the program tries."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        outcome(pool, f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 1)")
        with pytest.raises(TimeoutError):
            listener.accept()


def test_kill_of_everything_reaches_no_one_else(pool: Pool):
    """kill(-1) ends at most the run itself; the server takes the next job."""
    with subprocess.Popen(["sleep", "60"]) as canary:
        outcome(pool, "import os, signal\nfor s in (2, 9, 15, 19): os.kill(-1, s)")
        outcome(pool, "import os\nfor p in range(1, 50):\n  try: os.kill(p, 2)\n  except OSError: pass")
        alive = canary.poll() is None
        canary.kill()
    assert alive
    prints_only(pool, "print(1)", "1\n")


def test_processes_are_limited_and_ended_with_the_run(pool: Pool, tmp_path: Path):
    """A bomb runs into the limit, a daemon dies with its run even after setsid and a double fork."""
    bomb = """
import os, time
started = 0
for _ in range(400):
    try:
        if os.fork() == 0: time.sleep(60); os._exit(0)
    except OSError: break
    started += 1
print(started)
"""
    result = outcome(pool, bomb)
    # Where all runs have this user, the server ends the run: the kernel's limit is one for all of them.
    ended = (result.status, result.detail) == (RunStatus.CRASH, f"over {Limits().processes} processes and threads")
    assert ended or 0 < int(result.stdout) < 400
    daemon = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1); os.close(2)
        time.sleep(60)
    os._exit(0)
print('started')
"""
    result = outcome(pool, daemon)
    assert result.stdout == "started\n"
    assert result.seconds < 30  # the daemon sleeps for 60


def test_the_scratch_directory_is_limited(pool: Pool):
    """A program that fills its directory gets an error or is ended."""
    program = """
import time
written = 0
for number in range(1000):
    with open(f'f{number}', 'wb') as file: written += file.write(bytes(4 << 20))
    time.sleep(.005)
"""
    result = outcome(pool, program, file_mb=4)
    assert result.status in (RunStatus.CRASH, RunStatus.OUTPUT_LIMIT)


@pytest.mark.parametrize("number", LEVELS)
def test_older_landlock_still_keeps_signals_in(number: int):
    """Before Landlock knew signals (version 6), seccomp or the pid namespace keeps them from others."""
    available(number)
    program = """
import os, signal, threading
reached = []
for target in (os.getppid(), 1, -1):
    for number in (signal.SIGINT, signal.SIGTERM):
        try: os.kill(target, number); reached.append(target)
        except OSError: pass
threading.Thread(target=print, args=('thread',)).start()
"""
    with Pool(1, level=number, landlock_at_most=5) as pool:
        first = pool._all[0].server("program").process.pid
        outcome(pool, program)
        assert pool._all[0].server("program").process.pid == first
        prints_only(pool, "import threading\nthreading.Thread(target=print, args=('thread',)).start()", "thread\n")


def scratch_directories() -> set[str]:
    parents = (host.scratch_parent() or tempfile.gettempdir(), tempfile.gettempdir())
    return {name for path in parents for name in os.listdir(path) if name.startswith(f"rlvr-sandbox-{os.getpid()}-")}


def test_nothing_stays_behind(tmp_path: Path):
    """No process, no descriptor and no directory is left when a pool is closed."""
    available(2)
    before = set(os.listdir("/proc/self/fd")), scratch_directories()
    with Pool(2, level=2) as pool:
        pool.run_many([Job("open('x', 'w').write('y')")] * 4 + [TestJob(Job("def f(): return 1"), "f()", ("f",))])
        pids = [slot.server(role).process.pid for slot in pool._all for role in ("program", "tests")]
    time.sleep(0.05)
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    after = set(os.listdir("/proc/self/fd")), scratch_directories()
    assert after == before
