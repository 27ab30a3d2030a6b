"""What one run could take from others or tell them: as this user and as one without privileges, at levels 3 and 2."""

from __future__ import annotations

import os

import pytest

from rlvr.sandbox import Limits, host
from tests.helpers.programs import read_programs
from tests.helpers.users import Place, place

# Each lets several processes of a run hold 300 MB; none alone is above its limit of 500.
HOGS = read_programs("hogs")
HOG = """
import os, time
kept = []
def hold(megabytes):
    kept.append(bytearray(megabytes << 20))
    kept[-1][::4096] = b'x' * len(kept[-1][::4096])
    return kept[-1]
def work(_):
    hold(300); time.sleep(30)
"""


@pytest.mark.parametrize("kind", HOGS)
def test_memory_is_limited_for_all_processes_together(placed: Place, kind: str):
    """Six processes of 300 MB end by the limit of 1,000 MB; each could have 500."""
    answer = placed.run(HOG + HOGS[kind], memory_mb=500, seconds=10)
    assert (answer.status, answer.detail) == ("memory", "over 1000 MB in all processes together"), answer.stderr


def test_the_total_is_a_limit_of_its_own(placed: Place):
    """By default twice that of a process."""
    assert Limits(memory_mb=300).together_mb == 600
    assert Limits(memory_mb=300, total_memory_mb=450).together_mb == 450
    hog = HOG + "if os.fork() == 0: hold(150)\nelse: hold(150)\ntime.sleep(20)"
    answer = placed.run(hog, memory_mb=400, total_memory_mb=200)
    assert (answer.status, answer.detail) == ("memory", "over 200 MB in all processes together")


# Each keeps data in sockets, where no process holds it.
SENT = {
    "in both ends": "for s in pair: fill(s)\n        held += pair",
    "in one end": "fill(pair[0])\n        held += pair",
    "by an end that is closed": "fill(pair[0]); pair[0].close()\n        held.append(pair[1])",
    "in small pieces, by an end that is closed": "fill(pair[0], 1); pair[0].close()\n        held.append(pair[1])",
}


@pytest.mark.parametrize("kind", SENT)
@pytest.mark.parametrize("user", ["self", "nobody"])
def test_what_sockets_hold_counts(user: str, kind: str):
    """Forty processes with as many sockets as they may have: the network namespace is the run's own."""
    program = f"""
import os, socket, time
def fill(s, size=60000):
    s.setblocking(False)
    try:
        while True: s.send(b"x" * size)
    except BlockingIOError: pass
for _ in range(40):
    if os.fork() == 0: break
held = []
try:
    for _ in range(200):
        pair = socket.socketpair()
        {SENT[kind]}
except OSError: pass
time.sleep(5)
"""
    with place(user, 3) as pool:
        answer = pool.run(program, memory_mb=256, total_memory_mb=400, seconds=8)
    assert (answer.status, answer.detail) == ("memory", "over 400 MB in all processes together"), answer


# Programs that use what is counted, within the limits: name -> program, what it prints, limits.
HONEST = {
    "sockets": (
        """
import asyncio, multiprocessing, socket
async def main():
    a, b = socket.socketpair()
    for s in (a, b): s.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(a, b"x" * 1000)
    return len(await loop.sock_recv(b, 2000))
for _ in range(5): print(asyncio.run(main()))
one, other = multiprocessing.Pipe()
one.send("x" * 1000)
print(len(other.recv()))
""",
        "1000\n" * 6,
        {"memory_mb": 256, "total_memory_mb": 256},
    ),
    "shared maps": (
        """
import mmap, os
maps = [mmap.mmap(-1, 8192), mmap.mmap(-1, 8192, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS),
        mmap.mmap(-1, 8192, flags=mmap.MAP_SHARED), mmap.mmap(-1, 8192, access=mmap.ACCESS_WRITE),
        mmap.mmap(-1, 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE)]
if os.fork() == 0:
    for number, map in enumerate(maps): map[0] = number + 1
    os._exit(0)
os.wait()
print([map[0] for map in maps], isinstance(maps[0], mmap.mmap), os.listdir("."))
""",
        "[1, 2, 3, 4, 0, 0] True []\n",
        {},
    ),
    "a pool of eight workers beside a parent of 100 MB": (
        """
import multiprocessing, time
x = bytearray(100 << 20)
x[::4096] = b"x" * len(x[::4096])
def work(n): time.sleep(.1); return len(x) * n
if __name__ == "__main__":
    with multiprocessing.Pool(8) as workers: print(sum(workers.map(work, range(10))) >> 20)
""",
        "4500\n",
        {},
    ),
}


@pytest.mark.parametrize("kind", HONEST)
def test_moderate_use_is_not_held_against_a_program(placed: Place, kind: str):
    program, printed, limits = HONEST[kind]
    answer = placed.run(program, **limits)
    assert (answer.status, answer.stdout) == ("ok", printed), answer


# Each takes all it can get of something, and holds it.
GREEDY = read_programs("greedy")
BESIDE = """
import os, signal, threading, time
time.sleep(.6)
for _ in range(5):
    threads = [threading.Thread(target=time.sleep, args=(.01,)) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    if os.fork() == 0: os._exit(0)
    os.wait()
    got = []
    signal.signal(signal.SIGALRM, lambda *_: got.append(1))
    signal.setitimer(signal.ITIMER_REAL, .01)
    time.sleep(.03)
    assert got
    os.close(os.open("f", os.O_CREAT | os.O_RDWR))
    [os.close(end) for end in os.pipe()]
print("done")
"""


@pytest.mark.parametrize("kind", GREEDY)
def test_no_run_starves_another(placed: Place, kind: str):
    """A greedy run beside honest ones that start when the greedy one has taken all it gets."""
    greedy = f"import ctypes, mmap, os, signal, threading, time\nlibc = ctypes.CDLL(None)\n{GREEDY[kind]}"
    found = placed.run_many([{"program": greedy, "seconds": 2.5}, *[{"program": BESIDE, "seconds": 20.0}] * 2])
    assert [answer.stdout for answer in found[1:]] == ["done\n"] * 2, found[1:]
    assert found[0].status != "sandbox_error"


def test_a_user_id_in_use_is_not_given_out_again():
    """However many servers were started: ids are those of no living process."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    first = host.new_uid()
    assert first is not None
    child = os.fork()
    if child == 0:
        os.setresuid(first, first, first)
        os.read(os.pipe()[0], 1)
        os._exit(0)
    try:
        while first not in host._users():
            pass
        assert first not in {host.new_uid() for _ in range(2 * host._SERVERS_EACH)}
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


# What must be refused: each raises OSError, or calls `error` with what is true then.
REFUSED = read_programs("refused")
TRY = f"""
import ctypes, mmap, os, resource, signal, threading
libc = ctypes.CDLL(None)
map = libc.mmap; map.restype = ctypes.c_void_p; FAILED = ctypes.c_void_p(-1).value
libc.fallocate64.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
p, seen = os.__file__, []
f = os.open("f", os.O_RDWR | os.O_CREAT)
def error(result):
    if result: raise OSError
for name, attempt in {REFUSED!r}.items():
    try: exec(attempt)
    except (OSError, ValueError): continue
    print(name)
print(os.fstat(f).st_blocks)
os.posix_fallocate(f, 0, 1 << 16)
print(os.fstat(f).st_size)
os.posix_fadvise(os.open(p, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
print("heard and not followed")
"""


def test_what_takes_from_others_or_tells_of_them_is_refused(placed: Place):
    """Memory that nobody is charged for, dumps, timers, signals, what is cached, hidden space. Allocation works."""
    answer = placed.run(TRY)
    assert answer.stdout == "0\n65536\nheard and not followed\n", answer


# Each of four ways to lock a file that all runs share: None, or an error where another run holds the lock.
LOCKS = """
import fcntl, os, struct, time
shared, device = os.open(os.__file__, os.O_RDONLY), os.open("/dev/null", os.O_RDWR)
lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
def told():
    fcntl.lockf(shared, fcntl.LOCK_SH | fcntl.LOCK_NB)
    try: return fcntl.fcntl(shared, fcntl.F_GETLK, lock)
    except OSError: return None
for attempt in (lambda: fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB),
                lambda: fcntl.lockf(device, fcntl.LOCK_EX | fcntl.LOCK_NB),
                told,
                lambda: fcntl.fcntl(device, 37, lock) and None):
    try: print(attempt(), flush=True)
    except OSError as error: print(error, flush=True)
time.sleep(1)
"""


def test_no_lock_is_seen_by_another_run(placed: Place):
    """Two runs at once: neither sees the other's locks."""
    answers = placed.run_many([{"program": LOCKS}] * 2)
    assert [answer.stdout for answer in answers] == ["None\n" * 4] * 2, answers


BEFORE = read_programs("traces")
LOOK = """
import os, time
found = os.stat(".")
print(PID and os.getpid(), found.st_size, found.st_nlink, sorted(os.listdir(".")))
print(os.path.getmtime(".") >= time.time() - 1)
"""


def test_a_run_finds_no_trace_of_the_one_before(placed: Place):
    """Neither the process numbers, where a namespace counts them, nor the directory, which is a new one, tell of it."""
    seen = set()
    for before in BEFORE.values():
        placed.run("import os\n" + before)
        answer = placed.run(LOOK.replace("PID", str(placed.level == 3)))
        assert answer.status == "ok", answer.stderr
        seen.add(answer.stdout)
    assert len(seen) == 1, seen
