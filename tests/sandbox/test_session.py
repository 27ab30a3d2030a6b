"""Sessions: names are kept between programs of one, and nothing else than in a single run."""

from __future__ import annotations

import os
import time

import pytest

from rlvr.sandbox import Limits, RunStatus, Session
from tests.helpers.programs import LEVELS, available

SHORT = Limits(seconds=1.0)


@pytest.fixture(params=LEVELS)
def session(request):
    """A session at each level that the machine offers."""
    available(request.param)
    with Session(SHORT, level=request.param) as opened:
        yield opened


def test_names_are_kept(session):
    """Functions, modules, files of its directory; what is printed belongs to the program that prints it."""
    assert session.run("import math\ndef half(n): return n / 2\nprint('one')").stdout == "one\n"
    assert session.run("print(half(math.floor(9.5)))").stdout == "4.5\n"
    assert session.run("open('kept', 'w').write('text')").stdout == ""
    assert session.run("print(open('kept').read())").stdout == "text\n"


@pytest.mark.parametrize(
    ("program", "status", "printed"),
    [
        ("print('a'); 1 / 0", RunStatus.CRASH, "ZeroDivisionError"),
        ("import sys; sys.exit(3)", RunStatus.CRASH, ""),
        ("x = ", RunStatus.CRASH, "SyntaxError"),
        ("raise KeyboardInterrupt", RunStatus.CRASH, "KeyboardInterrupt"),
        ("import sys; sys.exit(0)", RunStatus.OK, ""),
    ],
)
def test_an_exception_ends_the_program_and_not_the_session(session, program, status, printed):
    """As at a prompt."""
    session.run("kept = 7")
    result = session.run(program)
    assert result.status is status
    assert printed in result.stderr
    assert session.run("print(kept)").stdout == "7\n"


ENDS = [
    ("while True: pass", RunStatus.TIMEOUT),
    ("import time; time.sleep(1000)", RunStatus.TIMEOUT),
    ("import os; os._exit(0)", RunStatus.CRASH),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", RunStatus.CRASH),
    ("import os; os.closerange(0, 100)", RunStatus.CRASH),
    ("while True: print('x' * 10000)", RunStatus.OUTPUT_LIMIT),
    ("import os, sys\nwhile True: os.write(2, b'y' * 10000)", RunStatus.OUTPUT_LIMIT),
]


@pytest.mark.parametrize(("program", "status"), ENDS, ids=[program[:24] for program, _ in ENDS])
def test_a_program_that_ends_the_process_or_exceeds_a_limit_ends_the_session(session, program, status):
    """What was kept is lost, the result says so, and the next program has a new process."""
    session.run("kept = 7")
    result = session.run(program)
    assert result.status is status, result
    assert result.detail.endswith("what was kept between calls is lost")
    assert "NameError" in session.run("print(kept)").stderr


def test_processor_time_is_that_of_all_programs_together(session):
    """Waiting between programs costs nothing; computing in three of them is counted."""
    busy = "import time\nend = time.process_time() + 0.45\nwhile time.process_time() < end: pass"
    assert session.run(busy).status is RunStatus.OK
    time.sleep(1.5)
    assert session.run(busy).status is RunStatus.OK
    assert session.run(busy).status is RunStatus.TIMEOUT


FORGED = """
import os
for number in range(30):
    for descriptor in range(3, 12):
        try: os.write(descriptor, b'{"n": %d, "x": 0}\\n' % number)
        except OSError: pass
"""


def test_a_program_that_forges_answers_fools_only_itself(session):
    """It may end its own results early; what it prints remains what it prints, and others see nothing of it."""
    session.run(FORGED)
    printed = [session.run(f"print({number})") for number in range(3)]
    assert all(result.status in (RunStatus.OK, RunStatus.CRASH) for result in printed)
    with Session(SHORT) as other:
        assert other.run("print('other')").stdout == "other\n"


HIDDEN = """
import os, socket, subprocess
found = []
for path in ("/work", "/home", "/root", "/etc/passwd"):
    try: found += os.listdir(path) if os.path.isdir(path) else [open(path).read()]
    except OSError: pass
try: socket.create_connection(("127.0.0.1", 22), 1); found.append("network")
except OSError: pass
try: subprocess.run(["/bin/true"]); found.append("programs")
except OSError: pass
found += [name for name in os.environ if "RLVR" in name]
print(found)
"""


def test_it_finds_what_a_single_run_finds(session):
    """No file of the machine, no network, no other program, no environment variable."""
    session.run("pass")
    assert session.run(HIDDEN).stdout == "[]\n"


def test_two_sessions_share_nothing(session):
    """Neither names, nor files, nor what is left by one that was closed."""
    with Session(SHORT) as other:
        session.run("kept = 1; open('kept', 'w').write('x')")
        assert other.run("import os; print('kept' in globals(), os.listdir('.'))").stdout == "False []\n"
    session.close()
    assert session.run("import os; print('kept' in globals(), os.listdir('.'))").stdout == "False []\n"


def test_closing_ends_all_processes(session):
    """Also those that a program has started; the second time nothing happens."""
    session.run("import os, time\nif os.fork() == 0:\n    time.sleep(1000)")
    server = session._open._server
    session.close()
    session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(server.process.pid, 0)


def test_a_program_that_is_too_long_is_refused(session):
    """And a long one that is not is run."""
    assert session.run("#" * (1 << 20) + "1").status is RunStatus.COMPILE_ERROR
    assert session.run("#" * 900_000 + "\nprint('run')").stdout == "run\n"


def test_a_bomb_of_processes_is_held_within_its_limit(session):
    """What it started is ended with the session, and another one is not disturbed."""
    assert session.run("import os\nwhile True:\n    os.fork()").status is not RunStatus.SANDBOX_ERROR
    with Session(SHORT) as other:
        assert other.run("print(1)").stdout == "1\n"


def test_packages_are_visible_where_they_are_named():
    """A session imports them with all they need, and no others; one that is not installed is refused at once."""
    with Session(packages=("mpmath",)) as session:
        assert session.run("import mpmath; print(mpmath.mpf(2) + 2)").stdout == "4.0\n"
        assert "ModuleNotFoundError" in session.run("import sympy").stderr
    with pytest.raises(ValueError, match="is not in site-packages"):
        Session(packages=("no_such_package",))


def test_a_limit_by_the_clock_of_one_program():
    """It ends the program that waits longer, and says so; the next one has a new process."""
    with Session() as session:
        ended = session.run("import time; time.sleep(60)", wall=0.5)
        assert (ended.status, ended.detail.split(";")[0]) == (RunStatus.TIMEOUT, "over 0.5 s by the clock")
        assert session.run("print(1)", wall=30.0).stdout == "1\n"
