"""rlvr.sandbox as its users see it: what runs give, and what holds them."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from rlvr.sandbox import Call, Job, Pool, RunStatus, SandboxUnavailable, level
from tests.helpers.programs import available, outcome, prints_only

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


def test_stdin_goes_in_and_stdout_comes_out(pool: Pool):
    """A program reads its input, writes both streams, and the result says at which level it ran."""
    result = outcome(pool, "import sys\nprint(input()[::-1])\nprint('note', file=sys.stderr)", "abc\n")
    assert (result.status, result.stdout, result.stderr, result.exit_code) == (RunStatus.OK, "cba\n", "note\n", 0)
    assert result.level == pool.level.number


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("while True: pass", RunStatus.TIMEOUT),
        ("import time, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)", RunStatus.TIMEOUT),
        ("x = 10 ** 10 ** 8", RunStatus.TIMEOUT),
        ("x = bytearray(8 << 30)", RunStatus.MEMORY),
        ("while True: print('y' * 1000)", RunStatus.OUTPUT_LIMIT),
        ("import sys\nwhile True: sys.stderr.write('y' * 1000)", RunStatus.OUTPUT_LIMIT),
        ("def f(:", RunStatus.COMPILE_ERROR),
        ("x = '\\ud800' + '\0'", RunStatus.COMPILE_ERROR),
        ("#" * (1 << 21), RunStatus.COMPILE_ERROR),
        ("raise KeyError(3)", RunStatus.CRASH),
        ("import os; os.abort()", RunStatus.CRASH),
        ("import ctypes; ctypes.string_at(0)", RunStatus.CRASH),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", RunStatus.CRASH),
        ("import sys; sys.exit('no')", RunStatus.CRASH),
        ("import sys; sys.exit(0)", RunStatus.OK),
        ("", RunStatus.OK),
    ],
)
def test_how_a_run_ends(pool: Pool, program: str, status: RunStatus):
    """Each kind of end has its status; none of them is the sandbox's error."""
    assert outcome(pool, program, seconds=0.5).status is status


@pytest.mark.parametrize("code", [1, 86, 120, 137, 255])
def test_no_exit_code_claims_a_sandbox_error(pool: Pool, code: int):
    """A program cannot have itself retried and masked."""
    assert outcome(pool, f"import os; os._exit({code})").status in (RunStatus.CRASH, RunStatus.MEMORY)


def test_exit_ends_with_threads_and_hooks_done(pool: Pool):
    """As in the interpreter: threads that are not daemons are waited for, exit functions run, output is flushed."""
    program = """
import atexit, threading, time
atexit.register(print, 'hook')
threading.Thread(target=lambda: (time.sleep(.1), print('thread'))).start()
print('main')
"""
    prints_only(pool, program, "main\nthread\nhook\n")


def test_processes_of_the_standard_library_work(pool: Pool):
    """multiprocessing, its queues and locks, process pools and asyncio do not need what the sandbox refuses."""
    program = """
import asyncio, concurrent.futures, multiprocessing
def square(x): return x * x
if __name__ == '__main__':
    with multiprocessing.Pool(2) as workers: print(sum(workers.map(square, range(10))))
    with concurrent.futures.ProcessPoolExecutor(2) as workers: print(list(workers.map(square, [1, 2, 3])))
    async def later(): await asyncio.sleep(.01); return 4
    print(asyncio.run(later()))
"""
    prints_only(pool, program, "285\n[1, 4, 9]\n4\n")


def test_a_run_sees_nothing_of_the_one_before(pool: Pool):
    """Files, the working directory and modules begin afresh, however deep the files lie."""
    program = """
import os, sys, math
print(sorted(os.listdir('.')), getattr(math, 'mark', None))
math.mark = 1
for n in range(300):
    os.mkdir('d'); os.chdir('d')
open('left', 'w').write('x')
"""
    for _ in range(2):
        prints_only(pool, program, "[] None\n")


LITTER = {
    "many directories": "for n in range(20000): os.mkdir(str(n)); open(f'{n}/x', 'w').close()",
    "a deep directory": "for n in range(5000): os.mkdir('d'); os.chdir('d')\nopen('x', 'w').write('y')",
    "a closed directory": "os.mkdir('a'); os.mkdir('a/b'); os.umask(0o777); os.mkdir('c', 0); open('a/b/f', 'w')",
}


@pytest.mark.parametrize("what", LITTER)
def test_litter_does_not_cost_the_server(pool: Pool, what: str):
    """No way of leaving files behind makes the clean-up slow, or fail."""
    result = outcome(pool, f"import os\n{LITTER[what]}")
    assert result.status in (RunStatus.OK, RunStatus.CRASH, RunStatus.OUTPUT_LIMIT)
    assert result.seconds < 30
    server = pool._all[0].server("program").process.pid
    prints_only(pool, "import os; print(os.listdir('.'))", "[]\n")
    assert pool._all[0].server("program").process.pid == server


def test_a_server_killed_from_outside_costs_a_retry():
    """The run that loses its server is done again in a new one."""
    available(3)
    with Pool(1) as pool:
        pool.warm()
        (slot,) = pool._all
        victim = slot.server("program").process.pid
        timer = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
        timer.start()
        result = pool.run(Job("import time; time.sleep(.6); print('done')"))
        timer.join()
        assert (result.status, result.stdout) == (RunStatus.OK, "done\n")
        assert slot.server("program").process.pid != victim


def test_weak_levels_are_refused_unless_asked_for():
    """Level 1 needs a word from the caller, and says what is missing."""
    with pytest.raises(SandboxUnavailable, match="allow_weak") as weak:
        Pool(1, level=1)
    assert "  " not in str(weak.value)
    if level().number > 1:
        assert str(weak.value).startswith("level 1 was requested: programs could read this user's files. Pass allow")
    with Pool(1, level=1, allow_weak=True) as pool:
        prints_only(pool, "print(1)", "1\n")


def test_preloaded_modules_are_there(pool: Pool):
    """A module of the site-packages can be imported in advance, and used under the memory limit."""
    with Pool(1, ["numpy"], level=pool.level.number) as preloaded:
        prints_only(
            preloaded, "import numpy as np\nprint(int((np.ones((50, 50)) @ np.ones((50, 50))).sum()))", "125000\n"
        )
        returned = preloaded.run(Job("import numpy as np\ndef f(): return np.int64(3)", calls=(Call("f"),))).returned
        assert (returned[0].value, type(returned[0].value)) == (3, int)
