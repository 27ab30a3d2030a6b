"""An exception in a user's code is told by the line of that code."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys

import pytest

from rlvr.core.registry import make_environment, make_task, make_verifier
from rlvr.core.types import Problem, RunError
from rlvr.verifiers import Runner
from rlvr.verifiers.runner import PoolError
from rlvr.verifiers.runner.base import check_references, verify_one

MODULE = """import json
from rlvr.core.types import Verdict

def read(text):
    return json.loads(text)["answer"]

def check(problem, completion):
    return read(completion) == problem.reference

def returns_a_dict(problem, completion):
    return {"score": 1}

def asks_another(problem, completion):
    return Verdict.of("text")

class Batch:
    def verify_batch(self, pairs):
        return [1 / 0 for _ in pairs]
    def __call__(self, problem, completion):
        return True

class Warm:
    def warm_up(self):
        raise RuntimeError("no table")
    def __call__(self, problem, completion):
        return True

class Built:
    def __init__(self, *, way="key"):
        self.value = {}[way] if way == "key" else 1 / 0
    def __call__(self, problem, completion):
        return True

class Refuses:
    def __init__(self):
        raise ValueError("two tables are one too many")
    def __call__(self, problem, completion):
        return True

class Reference:
    def check_reference(self, reference):
        return json.loads(reference)["x"]
    def __call__(self, problem, completion):
        return True

def pack():
    return [][0]

class World:
    def __init__(self):
        self.value = 1 / 0
    def __call__(self, problem, rng):
        yield
"""
ITEM = (Problem("1", "", "2"), "{}")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The module, under a name of its own, and the path of its file."""
    name = f"raised_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name), str(tmp_path / f"{name}.py")


def line_of(text: str) -> int:
    return MODULE.splitlines().index(next(line for line in MODULE.splitlines() if text in line)) + 1


@pytest.mark.parametrize(
    ("name", "completion", "place", "message"),
    [
        ("check", "{}", "json.loads(text)", "KeyError: 'answer'"),
        ("check", "no json", "json.loads(text)", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("asks_another", "", "Verdict.of", "TypeError: the verifier returned a str; expected bool, float or Verdict"),
        ("returns_a_dict", "", "def returns_a_dict", "TypeError: the verifier returned a dict; expected bool, float "),
    ],
)
def test_a_verdict_begins_with_the_users_line(mine, name, completion, place, message):
    """Not the library's in which it was raised, nor ours that called it; in the caller's process and in a worker."""
    module, path = mine
    expected = f"{path}, line {line_of(place)}: {message}"
    verifier = getattr(module, name)
    assert verify_one(verifier, ITEM[0], completion).reason.startswith(expected)
    with Runner(verifier, workers=1) as runner:
        assert runner.verify([(ITEM[0], completion)])[0].reason.startswith(expected)
    with Runner(module.Batch()) as runner:
        assert (
            runner.verify([ITEM])[0].reason
            == f"{path}, line {line_of('1 / 0 for')}: ZeroDivisionError: division by zero"
        )


def test_the_log_begins_with_the_users_line_and_leaves_out_ours(mine, caplog):
    """One line, then the traceback from the user's code on."""
    module, path = mine
    with caplog.at_level(logging.ERROR, "rlvr.verifiers"):
        verify_one(module.check, Problem("1", "", "2"), "[]")
    first, _, *rest = caplog.messages[0].splitlines()
    assert first.startswith(f"{path}, line {line_of('json.loads(text)')}: TypeError: list indices must be")
    assert "check" in first
    assert rest[0] == f'  File "{path}", line {line_of("read(completion)")}, in check'
    assert "guarded" not in caplog.messages[0]


def test_a_script_is_told_by_its_line(tmp_path):
    """Where the verifier is defined in the script that runs, too."""
    script = tmp_path / "script.py"
    script.write_text(
        "from rlvr.core.types import Problem\nfrom rlvr.verifiers import Runner\n"
        "def check(problem, completion):\n    return 1 / 0\n"
        "if __name__ == '__main__':\n    with Runner(check) as runner:\n"
        "        print(runner.verify([(Problem('1', '', ''), 'x')])[0].reason)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{script}, line 4: ZeroDivisionError: division by zero"
    assert done.stderr.startswith(f"{script}, line 4: ZeroDivisionError: division by zero")


def test_what_fails_before_the_first_call_is_told_by_its_line(mine):
    """A method warm_up, in the process that loads the verifier; a check of references."""
    module, path = mine
    with pytest.raises(PoolError) as found, Runner(module.Warm()) as runner:
        runner.verify([ITEM])
    assert str(found.value).startswith(f"{path}, line {line_of('no table')}: RuntimeError: no table; the verifier ")
    with pytest.raises(RunError) as checked:
        check_references(module.Reference(), [Problem("p", "", "{}")])
    line = line_of("json.loads(reference)")
    assert str(checked.value).startswith(f"{path}, line {line}: problem 'p': check_reference of the verifier ")
    assert "failed with KeyError: 'x'" in str(checked.value)


@pytest.mark.parametrize(
    ("make", "name", "options", "place", "message"),
    [
        (make_verifier, "Built", {}, "{}[way]", "KeyError: 'key'"),
        (make_verifier, "Built", {"way": "zero"}, "{}[way]", "ZeroDivisionError: division by zero"),
        (make_task, "pack", {}, "[][0]", "IndexError: list index out of range"),
        (make_environment, "World", {}, "self.value = 1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_made_is_told_by_its_line(mine, make, name, options, place, message):
    """One line, as for a module that cannot be imported."""
    module, path = mine
    with pytest.raises(LookupError) as found:
        make(f"{module.__name__}:{name}", **options)
    assert str(found.value) == (
        f"{'task' if make is make_task else 'environment' if make is make_environment else 'verifier'} "
        f"'{module.__name__}:{name}': {path}, line {line_of(place)}: {message}"
    )


def test_a_refusal_keeps_its_words(mine):
    """A ValueError of a constructor is a message for the user already."""
    module, _ = mine
    with pytest.raises(ValueError, match=r"^two tables are one too many$"):
        make_verifier(f"{module.__name__}:Refuses")
