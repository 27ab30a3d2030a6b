"""Limits on what all processes of a run use together."""

from __future__ import annotations

import pytest

from rlvr.sandbox import Limits
from tests.helpers.users import PLACES, place

# Each lets several processes of a run hold 300 MB; none alone is above its limit of 500.
HOGS = {
    "children": "for _ in range(6):\n    if os.fork() == 0: hold(300); time.sleep(30)\ntime.sleep(30)",
    "a chain of children": "for _ in range(6):\n    hold(300)\n    if os.fork(): time.sleep(30)\n    kept.clear()",
    "orphans": "for _ in range(6):\n    if os.fork() == 0:\n        if os.fork() == 0: hold(300); time.sleep(30)\n"
    "        os._exit(0)\n    os.wait()\ntime.sleep(30)",
    "daemons": "for _ in range(6):\n    if os.fork() == 0:\n        os.setsid(); os.setpgid(0, 0)\n"
    "        os.close(1); os.close(2)\n        hold(300); time.sleep(30)\ntime.sleep(30)",
    "copies on writing": "x = hold(300)\nfor _ in range(6):\n    if os.fork() == 0:\n"
    "        x[::4096] = b'y' * len(x[::4096])\n        time.sleep(30)\ntime.sleep(30)",
    "threads of children": "import threading\nfor _ in range(6):\n    if os.fork() == 0:\n"
    "        threading.Thread(target=hold, args=(300,)).start()\n        time.sleep(30)\ntime.sleep(30)",
    "a dead main thread": "import ctypes, threading\nfor _ in range(6):\n    if os.fork() == 0:\n"
    "        threading.Thread(target=lambda: (hold(300), time.sleep(30))).start()\n"
    "        ctypes.CDLL(None).syscall(60, 0)\ntime.sleep(30)",
    "a thread that outlives the first": "import ctypes, threading\nfor _ in range(6):\n    if os.fork() == 0:\n"
    "        threading.Thread(target=lambda: (time.sleep(.3), hold(300), time.sleep(30))).start()\n"
    "        ctypes.CDLL(None).syscall(60, 0)\ntime.sleep(30)",
    "processes that hop": "for _ in range(6):\n    if os.fork() == 0:\n        hold(300)\n"
    "        while True:\n            if os.fork(): os._exit(0)\ntime.sleep(30)",
    "a pool": "import multiprocessing\nwith multiprocessing.Pool(6) as workers:\n    workers.map(work, range(6))",
}
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
@pytest.mark.parametrize(("user", "number"), PLACES)
def test_memory_is_limited_for_all_processes_together(user: str, number: int, kind: str):
    """Six processes of 300 MB end by the limit of 1,000 MB; each could have 500."""
    with place(user, number) as pool:
        answer = pool.run(HOG + HOGS[kind], memory_mb=500, seconds=10)
    assert (answer.status, answer.detail) == ("memory", "over 1000 MB in all processes together"), answer.stderr


SHARED = {
    "by mmap": "m = ctypes.CDLL(None).mmap; m.restype = ctypes.c_void_p\n"
    "r = m(None, ctypes.c_size_t(64 << 20), 3, 0x21, -1, 0)\nprint(r == ctypes.c_void_p(-1).value)",
    "by mmap, validated": "m = ctypes.CDLL(None).mmap; m.restype = ctypes.c_void_p\n"
    "r = m(None, ctypes.c_size_t(64 << 20), 3, 0x23, -1, 0)\nprint(r == ctypes.c_void_p(-1).value)",
    "by a device": "try: os.open('/dev/zero', os.O_RDWR)\nexcept OSError: print(True)",
    "by a map of Python": "try: mmap.mmap(-1, 500 << 20)[::4096] = bytes(500 << 8)\nexcept OSError: print(True)",
    "by the class behind": "try: mmap.mmap.__mro__[1](-1, 1 << 20)\nexcept OSError: print(True)",
    "by memfd": "try: os.memfd_create('x')\nexcept OSError: print(True)",
    "by SysV": "print(ctypes.CDLL(None).shmget(0, 4096, 0o1600) < 0)",
}


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize(("user", "number"), PLACES)
def test_no_memory_is_shared_without_being_counted(user: str, number: int, kind: str):
    """A process that maps shared memory and does not touch it keeps it, without being charged for it."""
    with place(user, number) as pool:
        answer = pool.run(f"import ctypes, mmap, os\n{SHARED[kind]}")
    assert answer.stdout == "True\n", answer


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


@pytest.mark.parametrize(("user", "number"), PLACES)
def test_sockets_of_moderate_use_run(user: str, number: int):
    """Event loops, pairs, and pipes of multiprocessing that are in use."""
    program = """
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
"""
    with place(user, number) as pool:
        answer = pool.run(program, memory_mb=256, total_memory_mb=256)
    assert (answer.status, answer.stdout) == ("ok", "1000\n" * 6), answer


@pytest.mark.parametrize(("user", "number"), PLACES)
def test_maps_of_python_are_shared_as_ever(user: str, number: int):
    """`mmap.mmap(-1)` of moderate size works, in its forms, and is shared with children."""
    program = """
import mmap, os
maps = [mmap.mmap(-1, 8192), mmap.mmap(-1, 8192, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS),
        mmap.mmap(-1, 8192, flags=mmap.MAP_SHARED), mmap.mmap(-1, 8192, access=mmap.ACCESS_WRITE),
        mmap.mmap(-1, 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE)]
if os.fork() == 0:
    for number, map in enumerate(maps): map[0] = number + 1
    os._exit(0)
os.wait()
print([map[0] for map in maps], isinstance(maps[0], mmap.mmap), os.listdir("."))
"""
    with place(user, number) as pool:
        answer = pool.run(program)
    assert answer.stdout == "[1, 2, 3, 4, 0, 0] True []\n", answer.stderr


@pytest.mark.parametrize(("user", "number"), PLACES)
def test_processes_of_moderate_size_run(user: str, number: int):
    """A pool of eight workers beside a parent of 100 MB."""
    program = """
import multiprocessing, time
x = bytearray(100 << 20)
x[::4096] = b"x" * len(x[::4096])
def work(n): time.sleep(.1); return len(x) * n
if __name__ == "__main__":
    with multiprocessing.Pool(8) as workers: print(sum(workers.map(work, range(10))) >> 20)
"""
    with place(user, number) as pool:
        answer = pool.run(program)
    assert (answer.status, answer.stdout) == ("ok", "4500\n"), answer


def test_the_total_is_a_limit_of_its_own():
    """By default twice that of a process; a negative one is refused."""
    assert Limits(memory_mb=300).together_mb == 600
    assert Limits(memory_mb=300, total_memory_mb=450).together_mb == 450
    with pytest.raises(ValueError, match="limit total_memory_mb -1: expected a whole number from 0"):
        Limits(total_memory_mb=-1)
    with place("self", 3) as pool:
        hog = HOG + "if os.fork() == 0: hold(150)\nelse: hold(150)\ntime.sleep(20)"
        answer = pool.run(hog, memory_mb=400, total_memory_mb=200)
    assert (answer.status, answer.detail) == ("memory", "over 200 MB in all processes together")
