"""Limits that the kernel counts for a user: no run uses up what another needs."""

from __future__ import annotations

import os

import pytest

from rlvr.sandbox import host
from tests.helpers.users import PLACES, place

# Each takes all it can get of something, and holds it.
GREEDY = {
    "processes": "while True:\n    try:\n        if os.fork() == 0: time.sleep(9)\n    except OSError: time.sleep(.01)",
    "threads": "while True:\n    try: threading.Thread(target=time.sleep, args=(9,)).start()\n"
    "    except RuntimeError: time.sleep(.01)",
    "timers": "while libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0: pass\ntime.sleep(9)",
    "raw timers": "while libc.syscall(222, 1, None, ctypes.byref(ctypes.c_int())) == 0: pass\ntime.sleep(9)",
    "signals": "signal.pthread_sigmask(0, range(1, 65))\n"
    "for _ in range(200000): os.kill(os.getpid(), 40)\ntime.sleep(9)",
    "descriptors": "held = []\nwhile True:\n    try: held.append(os.pipe())\n    except OSError: break\ntime.sleep(9)",
    "maps": "held = []\nwhile True:\n    try: held.append(mmap.mmap(-1, 99))\n    except OSError: break\ntime.sleep(9)",
}
HONEST = """
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
@pytest.mark.parametrize(("user", "number"), PLACES)
def test_no_run_starves_another(user: str, number: int, kind: str):
    """A greedy run beside an honest one that starts when the greedy one has taken all it gets."""
    greedy = f"import ctypes, mmap, os, signal, threading, time\nlibc = ctypes.CDLL(None)\n{GREEDY[kind]}"
    with place(user, number, slots=3) as pool:
        found = pool.run_many([{"program": greedy, "seconds": 2.5}, *[{"program": HONEST, "seconds": 20.0}] * 2])
    assert [answer.stdout for answer in found[1:]] == ["done\n"] * 2, found[1:]
    assert found[0].status != "sandbox_error"


@pytest.mark.parametrize(("user", "number"), PLACES)
def test_there_is_little_to_take(user: str, number: int):
    """No timers, few queued signals, and processes up to the limit, wherever the run is."""
    program = """
import ctypes, resource
print(ctypes.CDLL(None).syscall(222, 1, None, ctypes.byref(ctypes.c_int())), resource.getrlimit(11))
"""
    with place(user, number) as pool:
        assert pool.run(program).stdout == "-1 (128, 128)\n"


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
