"""How each type of reference is tested: the jobs to run, and the outcome of their results.

Expected values stay in the plan, beside the verifier; none is in a job.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rlvr.sandbox import Call, Job, Limits, Result, RunStatus, TestJob
from rlvr.sandbox.inside import analysis
from rlvr.verifiers.code import equality
from rlvr.verifiers.code import objects as code_objects
from rlvr.verifiers.code import split as code_split
from rlvr.verifiers.code.classes import program_classes

_PYTEST = ("approx", "fail", "main", "mark", "raises", "skip")


@dataclass(frozen=True)
class Outcome:
    """How many of `total` tests passed, and the first failure.

    `test`: its number, from 1; `what`: the failure in words; `status`: how the run of the program ended.
    """

    passed: int
    total: int
    status: RunStatus = RunStatus.OK
    test: int = 0
    what: str = ""


class TestPlan(Protocol):
    """The tests of one reference. `defined`: names that they use, of which a program defines at least one."""

    @property
    def defined(self) -> tuple[str, ...]: ...

    def jobs(self, program: str, limits: Limits) -> Sequence[Job | TestJob]: ...

    def outcome(self, results: Sequence[Result]) -> Outcome:
        """Return the outcome of the first jobs' results, in order; later ones may be missing."""
        ...


@dataclass(frozen=True)
class SplitPlan:
    """Calls answered by the program, asserts decided here."""

    split: code_split.Split
    prelude: str
    setup: str
    defined: tuple[str, ...] = ()

    def jobs(self, program: str, limits: Limits) -> list[Job]:
        """Return one job with every call."""
        calls = tuple(Call(expression=call) for call in self.split.calls)
        setup = "\n".join(part for part in (self.setup, self.split.setup) if part)
        return [Job(program, calls=calls, setup=setup, limits=limits, prelude=self.prelude)]

    def outcome(self, results: Sequence[Result]) -> Outcome:
        """Count the tests of which all calls were answered and the assert holds."""
        (result,) = results
        wrong = [self._wrong(check, result) for check in self.split.checks]
        total = len(wrong)
        failed = next((number for number, what in enumerate(wrong) if what), None)
        if failed is None:
            ended = result.status is RunStatus.OK
            return Outcome(total if ended else 0, total, result.status, 0, "" if ended else result.detail)
        return Outcome(wrong.count(""), total, result.status, failed + 1, wrong[failed])

    def _wrong(self, check: code_split.Check, result: Result) -> str:
        for number in check.calls:
            call = _short(self.split.calls[number])
            if number >= len(result.returned):
                return f"{call} gave no answer"
            if result.returned[number].raised:
                return f"{call} raised {result.returned[number].raised}"
        if self.split.passes(check, [returned.value for returned in result.returned]):
            return ""
        return "wrong answer of " + ", ".join(_short(self.split.calls[number]) for number in check.calls)


@dataclass(frozen=True)
class WholePlan:
    """Test code that runs unchanged, in a second sandbox."""

    test: str
    names: tuple[str, ...]
    classes: tuple[str, ...]
    prelude: str
    setup: str
    exceptions: tuple[str, ...] = ()
    objects: bool = False

    @property
    def defined(self) -> tuple[str, ...]:
        """All names of the program."""
        return self.names

    def jobs(self, program: str, limits: Limits) -> list[TestJob]:
        """Return one job for a pair of sandboxes: the program's and the tests'."""
        job = Job(program, setup=self.setup, limits=limits, prelude=self.prelude)
        return [TestJob(job, self.test, self.names, self.classes, self.exceptions, self.objects)]

    def outcome(self, results: Sequence[Result]) -> Outcome:
        """Count all tests as one."""
        (result,) = results
        if result.tests_passed:
            return Outcome(1, 1)
        return Outcome(0, 1, result.status, 1, result.detail or "the tests did not finish")


@dataclass(frozen=True)
class MixedPlan:
    """Asserts of which some are decided here, and the others run whole."""

    split: SplitPlan
    whole: WholePlan

    @property
    def defined(self) -> tuple[str, ...]:
        """All names of the program."""
        return self.whole.names

    def jobs(self, program: str, limits: Limits) -> list[Job | TestJob]:
        """Return the job with the calls, then that for the pair of sandboxes."""
        return [*self.split.jobs(program, limits), *self.whole.jobs(program, limits)]

    def outcome(self, results: Sequence[Result]) -> Outcome:
        """Count the asserts that run whole as one test, the last."""
        first = self.split.outcome(results[:1])
        if len(results) == 1:
            return replace(first, total=first.total + 1)
        last = self.whole.outcome(results[1:])
        passed, total = first.passed + last.passed, first.total + 1
        if first.passed < first.total:
            return replace(first, passed=passed, total=total)
        return replace(last, passed=passed, total=total, test=total if last.test else 0)


@dataclass(frozen=True)
class OutputPlan:
    """Inputs for stdin, and the expected outputs."""

    cases: tuple[tuple[str, str], ...]
    setup: str
    defined: tuple[str, ...] = ()

    def jobs(self, program: str, limits: Limits) -> list[Job]:
        """Return one job for each case."""
        return [Job(program, stdin, limits=limits, prelude=self.setup) for stdin, _ in self.cases]

    def outcome(self, results: Sequence[Result]) -> Outcome:
        """Count the cases in which the program ends without an error and prints the expected output."""
        wrong = [self._wrong(result, expected) for result, (_, expected) in zip(results, self.cases)]
        failed = next((number for number, what in enumerate(wrong) if what), None)
        if failed is None:
            return Outcome(len(wrong), len(self.cases))
        return Outcome(wrong.count(""), len(self.cases), results[failed].status, failed + 1, wrong[failed])

    @staticmethod
    def _wrong(result: Result, expected: str) -> str:
        if result.status is not RunStatus.OK:
            return result.detail or str(result.status)
        return "" if equality.same_output(result.stdout, expected) else "wrong answer"


@dataclass(frozen=True)
class CallsPlan:
    """Arguments of one function, and the expected values."""

    entry: str
    calls: tuple[Call, ...]
    expected: tuple[Any, ...]
    setup: str

    @property
    def defined(self) -> tuple[str, ...]:
        """The function, or the class that has it."""
        return (self.entry.split(".")[0],)

    def jobs(self, program: str, limits: Limits) -> list[Job]:
        """Return one job with every call."""
        return [Job(program, calls=self.calls, setup=self.setup, limits=limits)]

    def outcome(self, results: Sequence[Result]) -> Outcome:
        """Count the cases in which the call returned the expected value."""
        (result,) = results
        wrong = [self._wrong(number, result) for number in range(len(self.calls))]
        failed = next((number for number, what in enumerate(wrong) if what), None)
        if failed is None:
            ended = result.status is RunStatus.OK
            return Outcome(len(wrong) if ended else 0, len(wrong), result.status, 0, "" if ended else result.detail)
        return Outcome(wrong.count(""), len(wrong), result.status, failed + 1, wrong[failed])

    def _wrong(self, number: int, result: Result) -> str:
        if number >= len(result.returned):
            return "no answer"
        returned = result.returned[number]
        if returned.raised:
            return f"raised {returned.raised}"
        return "" if equality.same_value(returned.value, self.expected[number]) else "wrong answer"


def _short(call: str) -> str:
    return call if len(call) <= 120 else call[:117] + "..."


def _text(reference: Mapping[str, Any], key: str, *, needed: bool = False) -> str:
    value = reference.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"reference {key!r} is a {type(value).__name__}; expected text")
    if needed and not value.strip():
        raise ValueError(f"the reference has no {key!r}")
    return value


def _tests_plan(reference: Mapping[str, Any], entry: str) -> TestPlan:
    code, prelude, setup = (_text(reference, key, needed=key == "code") for key in ("code", "prelude", "setup"))
    code = code_objects.of_program(code)
    tree = code_split.parse(code)
    if prelude:
        code_split.parse(prelude)
    # What the setup defines for the tests is theirs: it runs in their sandbox too.
    used = code_split.defined_in(code_split.parse(setup)) - {entry} if setup else set()
    ours = f"{prelude}\n{setup}" if used & set(analysis.keys(tree)) else prelude
    code = code_split.implied_imports(tree) + code
    split = code_split.split(code, entry, ours, program_classes(code, entry, ours))
    names = code_split.program_names(code, entry, ours)
    if not names or (split is not None and not split.calls and not split.rest):
        raise ValueError("the tests use nothing of the program, or no assert of it can fail: every program would pass")
    if split is None:
        call = f"\ncheck({entry})\n" if entry else ""
        return _whole_plan(f"{ours}\n{code}{call}", reference, ours)
    here = SplitPlan(split, prelude, setup, names)
    if not split.rest:
        return here
    return MixedPlan(here, _whole_plan(f"{ours}\n{split.rest}", reference, ours))


def _whole_plan(test: str, reference: Mapping[str, Any], ours: str) -> WholePlan:
    """Return the plan of test code that runs whole. Raise ValueError where no assert of it can be executed and fail."""
    entry = reference.get("entry", "")
    names = code_split.program_names(test, entry)
    tree = code_split.parse(test)
    if not any(isinstance(node, ast.stmt) for node in analysis.Analysis(tree, names).sites):
        raise ValueError("no assert that is executed depends on the program: every program would pass")
    _refuse_fixtures(tree)
    classes = program_classes(test, entry)
    exceptions = code_objects.caught(tree, set(names))
    objects = code_objects.asks_objects(tree, set(names), set(classes))
    texts = (_text(reference, "prelude"), _text(reference, "setup"))
    return WholePlan(test, names, classes, *texts, exceptions, objects)


def _refuse_fixtures(tree: ast.Module) -> None:
    """Raise ValueError for what a test runner would provide, and the stand-in for pytest does not."""
    for node in ast.walk(tree):
        path = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else [""]
        if path[0] == "pytest" and len(path) == 2 and path[1] not in _PYTEST:
            raise ValueError(f"the tests use pytest.{path[1]}; only {', '.join(_PYTEST)} are provided")
    methods = [part for node in tree.body if isinstance(node, ast.ClassDef) for part in node.body]
    for node in (*tree.body, *methods):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and analysis.is_test_name(node.name):
            needed = len(node.args.args) - len(node.args.defaults) - (node in methods)
            if needed > 0 and not node.decorator_list and not _calls(tree, node.name):
                raise ValueError(f"the test {node.name} takes fixtures: they are not provided")


def _calls(tree: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.Call) and analysis.called_name(node) == name for node in ast.walk(tree))


def _assert_plan(reference: Mapping[str, Any]) -> TestPlan:
    return _tests_plan(reference, "")


def _check_plan(reference: Mapping[str, Any]) -> TestPlan:
    entry = _text(reference, "entry", needed=True)
    if not entry.isidentifier():
        raise ValueError(f"reference entry {entry!r} is not a name")
    tree = code_split.parse(_text(reference, "code", needed=True))
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
        raise ValueError("the test code defines no check(candidate)")
    return _tests_plan(reference, entry)


def _cases(reference: Mapping[str, Any], *keys: str) -> list[Mapping[str, Any]]:
    cases = reference.get("cases")
    if not isinstance(cases, (list, tuple)) or not cases:
        raise ValueError("the reference has no cases")
    for case in cases:
        if not isinstance(case, Mapping) or not all(key in case for key in keys):
            raise ValueError(f"a case needs {' and '.join(keys)}")
    return list(cases)


def _stdio_plan(reference: Mapping[str, Any]) -> TestPlan:
    cases = _cases(reference, "input", "output")
    if not all(isinstance(case[key], str) for case in cases for key in ("input", "output")):
        raise ValueError("the input and the output of a case are text")
    return OutputPlan(tuple((case["input"], case["output"]) for case in cases), _text(reference, "setup"))


def _calls_plan(reference: Mapping[str, Any]) -> TestPlan:
    entry = _text(reference, "entry", needed=True)
    cases = _cases(reference, "args", "expected")
    calls = tuple(Call(entry, tuple(case["args"]), dict(case.get("kwargs", {}))) for case in cases)
    return CallsPlan(entry, calls, tuple(case["expected"] for case in cases), _text(reference, "setup"))


TYPES = {"assert": _assert_plan, "check": _check_plan, "stdio": _stdio_plan, "calls": _calls_plan}


def make_plan(reference: Any) -> TestPlan:
    """Return the plan of a reference. Raise ValueError where it cannot be used."""
    if not isinstance(reference, Mapping) or reference.get("type") not in TYPES:
        raise ValueError(f"a reference is a mapping with a type among {', '.join(TYPES)}")
    return TYPES[reference["type"]](reference)
