"""What one run could tell a later one, or one beside it, by traces in the kernel."""

from __future__ import annotations

import pytest

from tests.helpers.users import PLACES, place

# Each prints what a run sees before it leaves its own trace. A file that every run can read is `shared`.
TRACES = {
    "flock": """
import fcntl
held = os.open(shared, os.O_RDONLY)
def seen():
    try: fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError: return "locked"
    return "free"
""",
    "a lock on a device": """
import fcntl
held = os.open("/dev/null", os.O_RDWR)
def seen():
    try: fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError: return "locked"
    return "free"
""",
    "a read lock that is asked for": """
import fcntl, struct
held = os.open(shared, os.O_RDONLY)
def seen():
    fcntl.lockf(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    try: told = fcntl.fcntl(held, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    except OSError: return "free"
    return struct.unpack("hhqqi4x", told)
""",
    "a lock of an open file description": """
import fcntl, struct
held = os.open("/dev/null", os.O_RDWR)
def seen():
    try: fcntl.fcntl(held, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    except OSError: return "locked"
    return "free"
""",
}
HOLD = "shared = os.__file__\n{trace}\nprint(seen(), flush=True)\ntime.sleep({seconds})"


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize(("user", "number"), PLACES)
def test_no_lock_is_seen_by_another_run(user: str, number: int, trace: str):
    """Two runs at once, in slots of their own: neither sees the other's lock."""
    program = "import os, time\n" + HOLD.format(trace=TRACES[trace], seconds=1)
    with place(user, number, slots=2) as pool:
        answers = pool.run_many([{"program": program}] * 2)
    assert [answer.stdout for answer in answers] == ["free\n"] * 2, answers[0].stderr


CACHE = {
    "reading without waiting": "os.preadv(os.open(p, os.O_RDONLY), [bytearray(1)], 0, os.RWF_NOWAIT)",
    "mincore": """
buffer = mmap.mmap(os.open(p, os.O_RDONLY), 4096, prot=mmap.PROT_READ)
address = ctypes.addressof(ctypes.c_char.from_buffer(bytearray(8)))
error(libc.mincore(ctypes.c_void_p(address & ~4095), ctypes.c_size_t(4096), ctypes.create_string_buffer(8)))
""",
    "cachestat": "error(libc.syscall(451, os.open(p, os.O_RDONLY), (ctypes.c_ulong * 2)(), (ctypes.c_ulong * 5)(), 0))",
}


@pytest.mark.parametrize("what", CACHE)
@pytest.mark.parametrize(("user", "number"), PLACES)
def test_no_program_asks_what_is_cached(user: str, number: int, what: str):
    """Which pages of shared files are in memory tells what others have read. (Timing tells it too.)"""
    program = f"""
import ctypes, mmap, os
libc = ctypes.CDLL(None)
p = os.__file__
def error(result):
    if result: raise OSError
try: exec({CACHE[what]!r})
except (OSError, ValueError): print("refused")
"""
    with place(user, number) as pool:
        answer = pool.run(program)
    assert answer.stdout == "refused\n", answer.stderr


@pytest.mark.parametrize(("user", "number"), PLACES)
def test_pages_of_shared_files_are_not_dropped(user: str, number: int):
    """An advice to the page cache is heard and not followed, so that no run drops what another then misses."""
    program = (
        "import os\nf = os.open(os.__file__, os.O_RDONLY)\nos.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)\nprint(1)"
    )
    with place(user, number) as pool:
        assert pool.run(program).stdout == "1\n"


BEFORE = {
    "processes": "for _ in range(7):\n    if os.fork() == 0: os._exit(0)\n    os.wait()",
    "files": "for n in range(500): open('a' * 200 + str(n), 'w').close()",
    "nothing": "pass",
    "a grown directory": "for n in range(500): os.mkdir('b' * 200 + str(n))",
    "no directory": "os.rmdir(os.getcwd())",
}
LOOK = """
import os
found = os.stat(".")
print(PID and os.getpid(), found.st_size, found.st_nlink, sorted(os.listdir(".")))
print(os.path.getmtime(".") >= START)
"""


@pytest.mark.parametrize(("user", "number"), PLACES)
def test_a_run_finds_no_trace_of_the_one_before(user: str, number: int):
    """Neither the process numbers, where a namespace counts them, nor the directory, which is a new one, tell of it."""
    seen = set()
    with place(user, number) as pool:
        for before in BEFORE.values():
            pool.run("import os\n" + before)
            look = LOOK.replace("PID", str(number == 3))
            answer = pool.run(f"import time\n{look.replace('START', 'time.time() - 1')}")
            assert answer.status == "ok", answer.stderr
            seen.add(answer.stdout)
    assert len(seen) == 1, seen
