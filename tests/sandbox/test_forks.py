"""The sandbox, the runner and the code verifier in processes that are forked from one that has used them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlvr.sandbox import level
from tests.helpers.files import ROOT
from tests.helpers.programs import read_programs

# `use` is called in the parent, in forked children, and in the parent again; what it returns is printed.
USES = read_programs("uses")
WAYS = read_programs("ways_to_fork")


@pytest.mark.skipif(level().number < 2, reason="needs a sandbox of level 2 or 3")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("used", USES)
def test_what_the_parent_has_used_works_in_a_forked_child(used, way):
    """Neither the parent's threads nor its locks and connections are taken for the child's; the parent goes on."""
    text = f"import sys\n{USES[used]}\nprint(use(1), flush=True)\n{WAYS[way]}\nprint(use(6))\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert (done.stdout.split(), done.stderr, done.returncode) == (["2", "4", "6", "8", "10", "12"], "", 0)


SESSION = """
import os, sys, time
from rlvr.sandbox import Session
session = Session()
session.run("x = 1")
pid = os.fork()
if pid == 0:  # at work at the same time as the parent, and ended as any program is
    print(session.run("import time; time.sleep(1); print('x' in globals())").stdout, end="", flush=True)
    if sys.argv[1] == "closes":
        session.close()
    sys.exit(0)
start = time.monotonic()
print(session.run("import time; time.sleep(1); x += 1; print(x)").stdout, end="", flush=True)
assert time.monotonic() - start < 15, "the child has read the parent's reply"
assert os.waitpid(pid, 0)[1] == 0
print(session.run("print(x + 1)").stdout, end="", flush=True)
session.close()
"""


@pytest.mark.skipif(level().number < 2, reason="needs a sandbox of level 2 or 3")
@pytest.mark.parametrize("end", ["closes", "exits"])
def test_a_session_stays_the_parents(end):
    """A forked child that uses the session has a process of its own; that of the parent, its replies and its names are
    the parent's, also when the child has ended."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SESSION, end],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert (sorted(done.stdout.split()), done.stderr, done.returncode) == (["2", "3", "False"], "", 0)
