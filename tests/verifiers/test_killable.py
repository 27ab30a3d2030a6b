"""Every verifier runs where it can be killed, however and wherever it was defined, unless it opts out."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
import threading

import pytest

from rlvr.core.registry import VERIFIERS, make_verifier, register
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Problem, Status, Verdict, correct, incorrect
from rlvr.sandbox import level
from rlvr.sandbox import run as sandbox_run
from rlvr.verifiers.runner import Runner
from tests.helpers.files import ROOT, read_program

X = Problem("1", "", "x")
PAIRS = [(X, "x"), (X, "loop"), (X, "y")]
EXPECTED = [Status.CORRECT, Status.TIMEOUT, Status.INCORRECT]

# Each verifier of DEFINED calls what is right "x" and never comes back from "loop".
SCRIPT = read_program("script_of_verifiers")
RUN = """
from rlvr.verifiers import Runner
problem = Problem("1", "", "x", {"gold": Gold()})
for name, verifier in DEFINED.items():
    with Runner(verifier, workers=1, timeout=0.6) as runner:
        found = [verdict.status for verdict in runner.verify([(problem, text) for text in ("x", "loop", "y")])]
    if found != ["correct", "timeout", "incorrect"]:
        print(name, found)
print("end")
"""


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    """A program of its own, from the tree's root."""
    settings = {"capture_output": True, "text": True, "cwd": ROOT, "timeout": 120, **options}
    return subprocess.run([sys.executable, *command], check=False, **settings)  # type: ignore[call-overload]


def test_whatever_a_script_defines_is_killed_when_it_loops(tmp_path):
    """Functions, lambdas, closures and objects of `python script.py`, with what they refer to, run in workers."""
    (tmp_path / "script.py").write_text(SCRIPT + RUN)
    done = run(str(tmp_path / "script.py"))
    assert (done.stdout, done.stderr) == ("end\n", "")


def test_whatever_a_notebook_defines_is_killed_when_it_loops(tmp_path):
    """There is no file behind `__main__`, and a cell that is run again replaces what it defined."""
    (tmp_path / "cells").write_text(SCRIPT)
    cell = "exec(compile(text, f'<ipython-input-{number}>', 'exec'), vars(sys.modules['__main__']))"
    text = f"import sys\ntext = open({str(tmp_path / 'cells')!r}).read()\nfor number in (1, 2):\n    {cell}\n{RUN}"
    done = run("-", input=text)
    assert (done.stdout, done.stderr) == ("end\n", "")


@pytest.mark.timeout(60)
def test_module_attribute_is_killed_when_it_loops(tmp_path, monkeypatch):
    """The way that the command line names a user's own."""
    (tmp_path / "loops_forever.py").write_text(
        "def check(problem, completion):\n    while completion == 'loop':\n        pass\n    return completion == 'x'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Runner(make_verifier("loops_forever:check"), workers=1, timeout=1.0) as runner:
        assert [verdict.status for verdict in runner.verify(PAIRS)] == EXPECTED


def test_a_module_of_the_same_name_elsewhere_is_not_taken_for_it(tmp_path, monkeypatch):
    """A module that was loaded from a file that the import system does not find goes by value."""
    (tmp_path / "mine").mkdir()
    for folder, answer in (("mine", "x"), (".", "y")):
        (tmp_path / folder / "recipe_of_mine.py").write_text(
            f"def check(problem, completion):\n    return {answer!r} == 'x'\n"
        )
    spec = importlib.util.spec_from_file_location("recipe_of_mine", tmp_path / "mine" / "recipe_of_mine.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "recipe_of_mine", module)
    spec.loader.exec_module(module)
    monkeypatch.syspath_prepend(tmp_path)
    with Runner(module.check, workers=1) as runner:
        assert runner.verify([(X, "")])[0].correct


def test_a_verifier_may_opt_out():
    """It then runs in the caller's process, whichever way it says so; options bound to it do not hide it."""

    @register("tests/opted_out", isolate=False)
    def opted_out(problem: Problem, completion: str, *, option: int = 0) -> Verdict:
        return correct(str(os.getpid()))

    @register("tests/opted_out_class", isolate=False)
    class OptedOut:
        def __call__(self, problem: Problem, completion: str) -> Verdict:
            return correct(str(os.getpid()))

    class Attribute(OptedOut):
        isolate = False

    try:
        made = [make_verifier("tests/opted_out"), make_verifier("tests/opted_out", option="1")]
        made += [make_verifier("tests/opted_out_class"), Attribute(), Attribute().__call__]
        for verifier in made:
            with Runner(verifier) as runner:
                assert runner.verify([(X, "")])[0].extracted == str(os.getpid())
    finally:
        for name in ("tests/opted_out", "tests/opted_out_class"):
            del VERIFIERS._entries[name]


def test_built_in_verifiers_say_which_they_are():
    """Those whose work is bounded, or done by a server or a confined process, run here; a pattern may take for ever."""
    bounded = {name for name in VERIFIERS.names() if getattr(VERIFIERS.get(name), "isolate", None) is False}
    texts = {"choice", "countdown", "exact", "format", "identities", "instructions", "length", "repetition"}
    assert bounded == texts | {"language_consistency", "llm_judge", "proof", "smt"}
    assert all(VerifierTraits.of(make_verifier(name)).isolate for name in ("math", "regex", "json_schema"))


def test_state_stays_in_the_worker():
    """What a call changes in the verifier is changed in a copy, so that a count in the caller stays where it was."""
    seen: list[str] = []

    def counting(problem: Problem, completion: str) -> Verdict:
        seen.append(completion)
        return correct(str(len(seen)))

    with Runner(counting, workers=1) as runner:
        assert [verdict.extracted for verdict in runner.verify([(X, "a"), (X, "b")])] == ["1", "2"]
    assert seen == []


def test_what_cannot_be_sent_says_what_to_do():
    """A lock, as a client of some service holds it: one line, with the way out in it."""

    class Client:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, problem: Problem, completion: str) -> bool:
            return True

    with pytest.raises(
        ValueError, match=r"Client cannot be pickled .*cannot pickle '_thread.lock'.*isolate=False"
    ) as raised:
        Runner(Client())
    assert "\n" not in str(raised.value)
    Client.isolate = False
    with Runner(Client()) as runner:
        assert runner.verify([(X, "")])[0].correct


def test_objects_of_one_class_stay_of_one_class():
    """A class that is sent twice, with the verifier and with a problem, is one class at the other end."""

    @dataclasses.dataclass(frozen=True)
    class Gold:
        text: str

    def check(problem: Problem, completion: str) -> Verdict:
        return correct() if isinstance(problem.reference, Gold) else incorrect()

    with Runner(check) as runner:
        assert all(verdict.correct for verdict in runner.verify([(Problem(t, "", Gold(t)), t) for t in "abc"]))


@pytest.mark.skipif(level().number < 2, reason="needs a sandbox of level 2 or 3")
def test_a_function_may_use_the_sandbox_and_other_verifiers():
    """In a worker they start what they need there, also where this process has a pool of its own."""
    tests = make_verifier("unit_tests", slots=1)
    reference = {"type": "stdio", "cases": [{"input": "2", "output": "4"}]}
    assert tests(Problem("1", "", reference), "print(4)").correct

    def check(problem: Problem, completion: str) -> Verdict:
        assert sandbox_run(completion, stdin="3").stdout.strip() == "6"
        return tests(Problem("1", "", reference), completion)

    with Runner(check, workers=1) as runner:
        assert runner.verify([(X, "print(2 * int(input()))")])[0].correct
    tests.close()


def test_running_out_of_memory_is_told_once(caplog):
    """The completion scores 0, which may be the verifier's fault: one line says what counts."""

    def allocate(problem: Problem, completion: str) -> bool:
        return bool(bytearray(8 << 30))

    with Runner(allocate, workers=1, memory_mb=256) as runner:
        assert {verdict.status for verdict in runner.verify([(X, "a"), (X, "b")])} == {Status.LIMIT}
    told = [record.getMessage() for record in caplog.records if "256 MB" in record.getMessage()]
    assert len(told) == 1
    assert "warm_up" in told[0]
