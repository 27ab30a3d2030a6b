"""A user's module of misbehaving verifiers, which several test files share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from rlvr.verifiers.unit_tests import UnitTests

SOURCE = """
import os, signal, subprocess, sys, time
from rlvr.core.types import Verdict, correct, incorrect

def record(problem, text):
    with open(problem.info["log"], "a") as file:
        file.write(text + "\\n")

class Poison:
    isolate = True

    def __init__(self, where=""):
        self.where = where

    def __call__(self, problem, completion):
        match completion:
            case "hang":
                while True:
                    pass
            case "hang and tell":
                record(problem, f"{os.getpid()} {os.getppid()}")
                while True:
                    pass
            case "hang, large":
                record(problem, f"{os.getpid()}")
                held = bytearray(os.urandom(1 << 20) * 400)
                while True:
                    pass
            case "lives":
                with open(problem.info["log"]) as file:
                    return os.path.exists(f"/proc/{file.read().strip()}")
            case "allocate":
                return bool(bytearray(8 << 30))
            case "grow":
                held = []
                while True:
                    held.append(bytearray(1 << 20))
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sys.exit":
                sys.exit(0)
            case "kill once":
                if not os.path.exists(problem.info["log"]):
                    record(problem, "killed")
                    os.kill(os.getpid(), signal.SIGKILL)
                return True
            case "raise":
                raise KeyError("no such thing")
            case "record":
                record(problem, "judged")
                return True
            case "pid":
                return correct(str(os.getpid()))
            case "modules":
                return correct(",".join(sorted({"torch", "pytest", "__mp_main__"} & set(sys.modules))))
            case "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
                return True
            case "daemon":
                child = subprocess.Popen(["sleep", "600"])
                record(problem, f"{child.pid}")
                while True:
                    pass
            case "background":
                child = subprocess.Popen(["sleep", "600"])
                record(problem, f"{child.pid}")
                return True
            case "warm":
                return correct(f"{self.where}{os.environ.get('OMP_NUM_THREADS')}")
            case "print":
                print("noise on stdout")
                return True
            case "sleep":
                time.sleep(0.2)
                return True
            case "strange verdict":
                return Verdict("correct", 1.0, parts={"x": lambda: 0})
        return correct(completion) if completion == problem.reference else incorrect(extracted=completion)

class Quick(Poison):
    def fast_path(self, problem, completion):
        if completion == "broken quick":
            raise ValueError("quick failed")
        return correct("quick") if completion == "easy" else None

class Warm(Poison):
    def warm_up(self):
        self.where = "warm "

class Broken:
    isolate = True
    def __reduce__(self):
        return (exec, ("raise RuntimeError('cannot be built here')",))
    def __call__(self, problem, completion):
        return True
"""


@pytest.fixture(scope="module")
def poison(tmp_path_factory):
    """A user's module with verifiers that misbehave."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "user_verifiers.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("user_verifiers")
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def verifier() -> Iterator[UnitTests]:
    """The verifier of programs, with one slot and three seconds a run."""
    made = UnitTests(timeout=3, slots=1)
    yield made
    made.close()
