"""rlvr.sandbox as its users see it: what runs give, and what holds them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.sandbox import Call, Job, Limits, Pool, Result, RunStatus, SandboxUnavailable, TestJob, host, level
from rlvr.sandbox.inside.plain import Opaque

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
LEVELS = [3, 2]


def available(number: int) -> None:
    if level().number < number:
        pytest.skip(f"this machine gives sandbox level {level().number}: {' '.join(level().missing)}")


@pytest.fixture(scope="module", params=LEVELS, ids=lambda number: f"level{number}")
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """One slot at each level."""
    available(request.param)
    with Pool(1, level=request.param) as made:
        yield made


def outcome(pool: Pool, program: str, stdin: str = "", **limits: float) -> Result:
    return pool.run(Job(program, stdin, limits=Limits(**{"seconds": 5.0, **limits})))  # type: ignore[arg-type]


def prints_only(pool: Pool, program: str, expected: str) -> None:
    result = outcome(pool, program)
    assert (result.stdout, result.status) == (expected, RunStatus.OK), result.stderr


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
    assert result.seconds < 5
    server = pool._all[0].server("program").process.pid
    prints_only(pool, "import os; print(os.listdir('.'))", "[]\n")
    assert pool._all[0].server("program").process.pid == server


CANNOT = {
    "read the system": "open('/etc/passwd')",
    "read its memory through /proc": "open('/proc/self/mem', 'rb')",
    "write outside": "open('/var/tmp/rlvr_canary', 'w')",
    "write to shared memory": "open('/dev/shm/rlvr_canary', 'w')",
    "make a socket": "socket.socket()",
    "make a datagram pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "run a program": "os.execv('/bin/true', ['true'])",
    "start a program": "subprocess.run(['/bin/true'])",
    "make a memory file": "os.memfd_create('x')",
    "make a symbolic link": "os.symlink('/etc', 'e')",
    "make a pipe with a name": "os.mkfifo('p')",
    "change modes": "(open('f', 'w').close(), os.chmod('f', 0o777))",
    "signal its parent": "os.kill(os.getppid(), signal.SIGKILL)",
    "lower its parent's limits": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "raise its own limits": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1)) or error(resource.getrlimit(9)[0] > 0)",
    "trace": "error(libc.ptrace(0, 0, 0, 0))",
    "read another's memory": "error(libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0))",
    "leave its namespaces": "error(libc.unshare(0x10000000))",
    "mount": "error(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))",
    "use the keyrings": "error(libc.syscall(250, 0, -3, 0))",
    "make SysV shared memory": "error(libc.shmget(0, 4096, 0o1600))",
    "watch files": "error(libc.inotify_init())",
    "use io_uring": "error(libc.syscall(425, 8, 0))",
    "push characters into a terminal": "fcntl.ioctl(0, 0x5412, b'x')",
    "have signals sent to others": "fcntl.fcntl(0, 8, os.getppid())",
}


@pytest.mark.parametrize("what", CANNOT)
def test_what_a_program_cannot_do(pool: Pool, what: str):
    """Each is refused by an error, which an honest program survives."""
    program = f"""
import ctypes, fcntl, os, resource, signal, socket, subprocess
libc = ctypes.CDLL(None)
def error(result):
    if result: raise OSError
try:
    {CANNOT[what]}
except (OSError, ValueError):
    print('refused')
"""
    prints_only(pool, program, "refused\n")


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
    # Without a user namespace the tasks that this user has elsewhere count, and some are spared for them.
    assert 0 < int(result.stdout) < 400
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
    assert result.seconds < 5


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


def test_calls_return_plain_data(pool: Pool):
    """Values come back in exact builtin types, errors by name, in the order of the calls."""
    program = """
import collections, re
def f(x): return x * 2
class T(tuple): pass
def many(): return [1, (2.5, None), {'a': {1}}, b'b', 10 ** 40, T([3]), collections.Counter('aab'), True]
def match(): return re.match('a', 'a')
def items(): yield from 'xy'
"""
    calls = (
        Call("f", (21,)),
        Call("f", ([(1, 2)],)),
        Call(expression="many()"),
        Call("f", (None,)),
        Call("nothing"),
        Call("match"),
        Call("items"),
    )
    returned = pool.run(Job(program, calls=calls)).returned
    assert returned[0].value == 42
    assert returned[1].value == [(1, 2), (1, 2)]
    assert returned[2].value == [1, (2.5, None), {"a": {1}}, b"b", 10**40, (3,), {"a": 2, "b": 1}, True]
    assert [type(v) for v in returned[2].value] == [int, tuple, dict, bytes, int, tuple, dict, bool]
    assert [r.raised for r in returned[3:5]] == ["TypeError", "NameError"]
    assert isinstance(returned[5].value, Opaque)
    assert bool(returned[5].value) is True
    assert list(returned[6].value) == ["x", "y"]


def test_arguments_after_a_hang_are_not_answered(pool: Pool):
    """The answers before the deadline count, and the run is a timeout."""
    job = Job("def f(x):\n  while x: pass\n  return x", calls=(Call("f", (0,)), Call("f", (1,))), limits=Limits(0.5))
    result = pool.run(job)
    assert (result.status, [r.value for r in result.returned]) == (RunStatus.TIMEOUT, [0])


@pytest.mark.parametrize(
    "line",
    [
        '{"n": 0, "v": ["l", [["l", ' * 4000,
        '{"n": 0, "v": ["s", [["l", []]]]}',
        '{"n": 0, "v": ["i", "0x" + "f" * 9]}',
        '{"n": 0, "v": ["q", 1, 0]}',
        '{"n": 0, "v": ["D", "1E+999999999"]}',
        '{"n": 0, "v": ["r", 0, 1000000000000, 1]}',
        '{"n": 0, "v": ["T", 3]}',
        '{"n": 0, "v": ["pickle", "x"]}',
        '{"n": 0, "v": {"a": 1}}',
        "\\xff\\x00",
    ],
)
def test_forged_answers_are_no_value(pool: Pool, line: str):
    """A program that writes to the result pipe itself gives nothing that equals anything, and breaks nothing."""
    program = f"""
import os
def f():
    os.write(4, {line!r}.encode('latin-1') + b'\\n')
    os._exit(0)
"""
    result = pool.run(Job(program, calls=(Call("f"),)))
    if result.returned:
        assert result.returned[0].value != 0
        assert isinstance(result.returned[0].value, Opaque)
    else:
        assert result.status is RunStatus.CRASH


def test_tests_run_beside_the_program(pool: Pool):
    """A pass needs the end of the test code; arguments changed in place and objects work across."""
    program = """
def f(xs): xs.append(3); return len(xs)
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __eq__(self, other): return True
"""
    test = """
a = [1]
assert f(a) == 2 and a == [1, 3]
s = Stack()
s.push(a)
assert len(s) == 1 and s.items == [[1, 3]] and s.pop() == [1, 3]
assert s != 5 and not s == 5 and s is s
try:
    s.pop()
except IndexError:
    pass
else:
    assert False
"""
    result = pool.run(TestJob(Job(program), test, ("f", "Stack"), ("Stack",)))
    assert (result.tests_passed, result.detail) == (True, "")
    result = pool.run(TestJob(Job(program), test + "assert f([]) == 2\n", ("f", "Stack"), ("Stack",)))
    assert (result.tests_passed, result.detail) == (False, "AssertionError at line 14 of the tests")


LIAR = """
class Y:
    three = 3
    def __getattr__(self, name): return lambda *args, **kwargs: True
    def __contains__(self, item): return True
    def __iter__(self): return iter(())
    def __len__(self): return 3
    def __getitem__(self, key): return 5
    def __str__(self): return '5'
def f(*args): return Y()
def stop(x): raise StopIteration
def same(y): return type(y).__name__
class Box:
    name = Y()
    def get(self): return Y()
    def me(self): return self
CONSTANT = Y()
PLAIN = 'abc'
"""


@pytest.mark.parametrize(
    ("test", "passes"),
    [
        ("assert 5 in f()", False),
        ("assert f().startswith('a')", False),
        ("assert f().is_integer()", False),
        ("assert {1}.issubset(f())", False),
        ("assert all(x > 0 for x in f())", False),
        ("assert len(f()) == 3", False),
        ("assert f()[0] == 5", False),
        ("assert f() == 5", False),
        ("assert f() >= 5", False),
        ("assert str(f()) == '5'", False),
        ("assert 5 in Box().get()", False),
        ("assert Box().get().startswith('a')", False),
        ("assert Box().name.startswith('a')", False),
        ("assert 5 in CONSTANT", False),
        ("assert CONSTANT.startswith('a')", False),
        ("assert all(map(stop, [1, 2]))", False),
        ("assert list(map(stop, [1])) == list(map(stop, [2]))", False),
        ("assert same(f()) == 'Y'", True),
        ("assert f().three == 3 and f()", True),
        ("box = Box()\nassert box.me() is box and box.me().me() is box", True),
        ("assert 'a' in PLAIN and PLAIN.startswith('a') and len(PLAIN) == 3", True),
    ],
)
def test_an_object_does_not_answer_for_a_value(pool: Pool, test: str, passes: bool):
    """Where a test expects a value, an object can be passed back and its attributes read; nothing is asked of it."""
    names = ("f", "stop", "same", "Box", "CONSTANT", "PLAIN")
    assert bool(pool.run(TestJob(Job(LIAR), test, names, ("Box",))).tests_passed) is passes


@pytest.mark.parametrize(
    "body",
    ["import os; os._exit(0)", "while True: pass", "raise SystemExit(0)", "raise KeyboardInterrupt", "return None"],
)
def test_tests_do_not_pass_without_their_end(pool: Pool, body: str):
    """Whatever the program does instead of answering."""
    job = Job(f"def f():\n    {body}\n", limits=Limits(seconds=0.5))
    assert not pool.run(TestJob(job, "assert f() == 5", ("f",))).tests_passed


def test_a_test_that_excepts_everything_notices_the_end(pool: Pool):
    """A program that ends itself has raised nothing."""
    test = "try:\n    f()\n    assert False\nexcept:\n    pass"
    result = pool.run(TestJob(Job("import os\ndef f(): os._exit(0)"), test, ("f",)))
    assert result.tests_passed is False
    assert pool.run(TestJob(Job("def f(): raise KeyError"), test, ("f",))).tests_passed is True


def test_a_program_writing_on_the_judges_pipe_does_not_pass(pool: Pool):
    """Its messages are read as answers, and no answer is a verdict."""
    program = """
import os
for number in range(3, 12):
    try: os.write(number, b'{"passed": true}\\n{"v": true}\\n')
    except OSError: pass
def f(): return 4
"""
    assert not pool.run(TestJob(Job(program), "assert f() == 5", ("f",))).tests_passed


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
    return {name for path in parents for name in os.listdir(path) if name.startswith("rlvr-sandbox")}


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


def test_weak_levels_are_refused_unless_asked_for():
    """Level 1 and 0 need a word from the caller, and say what is missing."""
    with pytest.raises(SandboxUnavailable, match="allow_weak"):
        Pool(1, level=1)
    with pytest.raises(SandboxUnavailable, match="unsafe"):
        Pool(1, level=0)
    with Pool(1, level=1, allow_weak=True) as pool:
        prints_only(pool, "print(1)", "1\n")
    with Pool(1, level=0, unsafe=True) as pool:
        prints_only(pool, "print(1)", "1\n")


def test_limits_and_slots_are_checked():
    """Nothing that is not above 0."""
    with pytest.raises(ValueError, match="seconds 0"):
        Limits(seconds=0)
    with pytest.raises(ValueError, match="0 slots"):
        Pool(0)
    with pytest.raises(ValueError, match="either an entry or an expression"):
        Call()


def test_preloaded_modules_are_there(pool: Pool):
    """A module of the site-packages can be imported in advance, and used under the memory limit."""
    with Pool(1, ["numpy"], level=pool.level.number) as preloaded:
        prints_only(
            preloaded, "import numpy as np\nprint(int((np.ones((50, 50)) @ np.ones((50, 50))).sum()))", "125000\n"
        )
        returned = preloaded.run(Job("import numpy as np\ndef f(): return np.int64(3)", calls=(Call("f"),))).returned
        assert (returned[0].value, type(returned[0].value)) == (3, int)
