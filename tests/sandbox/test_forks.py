"""The sandbox, the runner and the code verifier in processes that are forked from one that has used them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlvr.sandbox import level
from tests.helpers.files import ROOT

# `use` is called in the parent, in forked children, and in the parent again; what it returns is printed.
USES = {
    "sandbox": """
from rlvr.sandbox import run
def use(number):
    return run(f"print({number} * 2)").stdout.strip()
""",
    "runner": """
from rlvr.core.types import Problem
from rlvr.verifiers import Runner
runner = Runner(lambda problem, completion: completion == problem.reference, workers=1)
def use(number):
    return str(2 * number) if runner.verify([(Problem("1", "", str(number)), str(number))])[0].correct else "wrong"
""",
    "unit_tests": """
from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem
verifier = make_verifier("unit_tests")
def use(number):
    problem = Problem("1", "", {"type": "stdio", "cases": [{"input": str(number), "output": str(2 * number)}]})
    return str(2 * number) if verifier(problem, "print(2 * int(input()))").correct else "wrong"
""",
}
WAYS = {
    "multiprocessing": """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(" ".join(pool.map(use, [2, 3, 4, 5])))
""",
    "multiprocess": """
import multiprocess  # what datasets.map(num_proc=...) uses
with multiprocess.get_context("fork").Pool(2) as pool:
    print(" ".join(pool.map(use, [2, 3, 4, 5])))
""",
    # The child ends as any program does, with its handlers at exit: they must leave the parent's servers alone.
    "os.fork": """
import os
pid = os.fork()
if pid == 0:
    print(" ".join(map(use, [2, 3, 4, 5])), flush=True)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
""",
    # Another thread of the parent is in the middle of a call at the moment of the fork.
    "threads": """
import os, threading
stop = threading.Event()
def go_on():
    while not stop.is_set():
        use(7)
threads = [threading.Thread(target=go_on) for _ in range(2)]
for thread in threads:
    thread.start()
for number in (2, 3, 4, 5):
    pid = os.fork()
    if pid == 0:
        print(use(number), end=" ", flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
print()
stop.set()
for thread in threads:
    thread.join()
""",
}


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
