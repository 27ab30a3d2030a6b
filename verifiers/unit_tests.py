"""The verifier `unit_tests`: programs run in the sandbox; expected values of stdio and calls never enter it."""

from __future__ import annotations

import json
import marshal
import math
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rlvr.core import after_fork
from rlvr.core.printable import in_one_line
from rlvr.core.registry import register
from rlvr.core.types import Problem, Status, Verdict, bad_reference, error, no_answer
from rlvr.sandbox import Executor, Job, Limits, Pool, Result, RunStatus, TestJob
from rlvr.sandbox import host as sandbox_packages

from .code.plans import Outcome, TestPlan, integrity, make_plan, write_null_programs
from .extract import BYTE_ORDER_MARK
from .extract.sections import fenced_blocks

__all__ = ["UnitTests", "integrity"]

MAX_COMPLETION = 1 << 20  # characters; a longer one is not searched for a program
# The first words of lines that make a program of a text.
_STATEMENT = re.compile(
    r"^[ \t]*(?:def|class|import|from|for|while|if|with|try|return|print|async|@\w+)\b|^[\w., \t]*[-+*/]?=[^=]|\w\(",
    re.MULTILINE,
)
_PYTHON = frozenset(("", "python", "py", "python3", "python2"))


def program_of(completion: str, names: Sequence[str] = ()) -> str:
    """Return the last Python fence of a completion, or the whole text.

    Text before a closing </think> is ignored. A fence without a language counts if it looks like a program, or if there
    is no other. Of several fences, the last one that binds one of `names`, the names that the tests use, is preferred:
    later ones show how to call it, or what it prints.
    """
    answer = completion.rpartition("</think>")[2].removeprefix(BYTE_ORDER_MARK)
    blocks = [(language, content) for language, content in fenced_blocks(answer) if language in _PYTHON]
    programs = [content for language, content in blocks if language or (content and _STATEMENT.search(content))]
    contents = programs or [content for _, content in blocks]
    if not contents:
        return answer
    bound = _binding(*names)
    return next((content for content in reversed(contents) if names and bound.search(content)), contents[-1])


def _binding(*names: str, indented: str = "") -> re.Pattern[str]:
    """Return the pattern of a line that binds one of the names. A program is not parsed: that may take seconds."""
    name = f"(?:{'|'.join(map(re.escape, names))})"
    assigned = rf"{name} *(?::[^=\n]*)?=[^=]"
    return re.compile(rf"^{indented}(?:(?:async +)?(?:def|class) +{name}\b|{assigned})", re.MULTILINE)


def imports_package(program: str, package: str) -> bool:
    """Whether a line of a program imports a package."""
    return re.search(rf"^[ \t]*(?:import|from) +{re.escape(package)}\b", program, re.MULTILINE) is not None


def complete_program(program: str, prefix: str, entry: str) -> str:
    """Return `program`, after `prefix` if it does not define `entry`: then it is a body without its `def` line."""
    if not prefix or not entry or _binding(entry, indented=r"[ \t]*").search(program):
        return program
    return prefix + program


_STATUS = {
    RunStatus.OK: Status.INCORRECT,
    RunStatus.CRASH: Status.INCORRECT,
    RunStatus.TIMEOUT: Status.TIMEOUT,
    RunStatus.MEMORY: Status.LIMIT,
    RunStatus.OUTPUT_LIMIT: Status.LIMIT,
    RunStatus.COMPILE_ERROR: Status.UNPARSEABLE,
}

LEAST_MEMORY = 256  # MB of address space; the interpreter alone needs as much as a small program in another language


@lru_cache(maxsize=8192)
def _make_plan(read: Callable[[Any], Any], data: str | bytes) -> TestPlan:
    return make_plan(read(data))


def plan_of(reference: Any) -> TestPlan:
    """Return the plan of a reference, cached for its completions. Raise ValueError if it cannot be used."""
    if isinstance(reference, dict) and reference.get("type") == "calls":
        try:
            # JSON would turn tuples into lists, and keys that are numbers into text. In version 2 of marshal, the bytes
            # do not depend on which objects are shared.
            data = marshal.dumps(reference, 2)
        except ValueError:
            # Arguments of types that marshal does not know.
            return make_plan(reference)
        return _make_plan(marshal.loads, data)
    try:
        text = json.dumps(reference, sort_keys=True)
    except (TypeError, ValueError):
        return make_plan(reference)
    return _make_plan(json.loads, text)


def lower_limits(limits: Limits, own: Any) -> Limits:
    """Return limits lowered to those of a problem: {"seconds", "memory_mb"}, either or none. ValueError for others."""
    if not isinstance(own, dict) or not own.keys() <= {"seconds", "memory_mb"}:
        raise ValueError(f"limits {own!r:.80}: expected seconds and memory_mb")
    for name, value in own.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ValueError(f"limits, {name} {value!r:.80}: expected a number above 0")
    seconds = min(limits.seconds, own.get("seconds", limits.seconds))
    memory_mb = min(limits.memory_mb, max(LEAST_MEMORY, math.ceil(own.get("memory_mb", limits.memory_mb))))
    return replace(limits, seconds=seconds, memory_mb=memory_mb)


class _Item:
    """One pair in progress: its plan, its jobs, and the results so far."""

    def __init__(self, plan: TestPlan, jobs: Sequence[Job | TestJob], program: str) -> None:
        self.plan = plan
        self.jobs = jobs
        self.program = program
        self.results: list[Result] = []


@register("unit_tests")
class UnitTests:
    """Unit tests in the sandbox: asserts, HumanEval's check(candidate), stdin/stdout cases, or calls.

    The reference is one of
        {"type": "assert", "code": "assert f(2) == 4"}
        {"type": "check", "entry": "f", "code": "def check(candidate): ..."}
        {"type": "stdio", "cases": [{"input": "2\\n", "output": "4\\n"}]}
        {"type": "calls", "entry": "f", "cases": [{"args": [2], "expected": 4}]}
    "stdio" may have "compare" ("lines" or "tokens"), and for tokens a "tolerance" of numbers and "ignore_case". "calls"
    may have a "tolerance" of floats. Each may have a "prelude" (code before the program, which the tests know, too) and
    a "setup" (code after the program and before its tests; for stdio before the program). Neither may hold an expected
    value. The tests use their own copy of what these define: a program cannot redefine it for them.

    `problem.info["prefix"]` comes before a completion that does not define the entry itself. `problem.info["limits"]`,
    {"seconds": 2.0, "memory_mb": 256}, can lower `timeout` and `memory_mb` for a problem, but not raise them.

    The completion is a program, or its last Python fence is one; it may have 1,048,576 characters. timeout (seconds, as
    Limits.seconds) and memory_mb apply to each run. partial: the score is the share of tests that pass, instead of all
    or nothing. slots (0: one for each core), preload (modules to import in advance), packages (what programs may import
    besides the standard library, numpy and preload), level and allow_weak are settings of rlvr.sandbox.Pool.
    Programs see neither other installed packages nor this project. Raises ValueError if a package is not installed
    here.
    """

    def __init__(
        self,
        *,
        timeout: float = 10.0,
        memory_mb: int = 1024,
        partial: bool = False,
        slots: int = 0,
        preload: tuple[str, ...] = (),
        packages: tuple[str, ...] = (),
        level: int | None = None,
        allow_weak: bool = False,
    ) -> None:
        self.limits = Limits(seconds=timeout, memory_mb=memory_mb)
        if packages or preload:
            sandbox_packages.files(tuple(packages), tuple(preload))  # refuses names now instead of at the first run
        self.partial = partial
        self._pool_options: dict[str, Any] = {
            "slots": slots or None,
            "preload": preload,
            "packages": packages,
            "level": level,
            "allow_weak": allow_weak,
        }
        self._executor: Executor | None = None
        self._lock = threading.Lock()
        after_fork.register(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the local pool. A new pool is made after unpickling."""
        executor = None if isinstance(self._executor, Pool) else self._executor
        return {**vars(self), "_executor": executor, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()
        after_fork.register(self)

    def after_fork(self) -> None:
        """In a forked child: make a new lock, since another thread of the parent may have held it."""
        self._lock = threading.Lock()

    @property
    def executor(self) -> Executor:
        """The executor of the jobs. Unless one was set, it is a local pool, made on first use."""
        with self._lock:
            if self._executor is None:
                self._executor = Pool(**self._pool_options)
            return self._executor

    @executor.setter
    def executor(self, executor: Executor) -> None:
        self._executor = executor

    def close(self) -> None:
        """End the pool."""
        with self._lock:
            if isinstance(self._executor, Pool):
                self._executor.close()
            self._executor = None

    def check_reference(self, reference: Any) -> None:
        """Raise ValueError if the reference cannot be used."""
        plan_of(reference)

    def integrity(self, reference: Any) -> str:
        """Return "strong", or "weak" if a pass shows little (docs/explained/code.md)."""
        return integrity(reference)

    def null_completions(self, reference: Any) -> dict[str, str]:
        """Return programs that solve nothing: {what it does: program}."""
        return write_null_programs(plan_of(reference).entry_names)

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        """Return the verdict on one completion."""
        return self.verify_batch([(problem, completion)])[0]

    def verify_batch(self, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        """Return all verdicts, in order. Programs run on as many slots as the executor has."""
        prepared = [self._prepare(problem, completion) for problem, completion in pairs]
        items = [item for item in prepared if isinstance(item, _Item)]
        # Running one case at a time leaves slots idle. Running all at once wastes time on programs that fail an early
        # case.
        count, going_on = 1, items
        while going_on:
            self._run(going_on, count)
            going_on = [item for item in going_on if len(item.results) < len(item.jobs) and self._goes_on(item)]
            count *= 3
        return [self._verdict(item) if isinstance(item, _Item) else item for item in prepared]

    def _prepare(self, problem: Problem, completion: str) -> _Item | Verdict:
        try:
            plan = plan_of(problem.reference)
        except ValueError as error:
            return bad_reference(str(error))
        tests = "\n".join(str(problem.reference.get(key, "")) for key in ("code", "prelude", "setup"))
        if missing := self._absent(tests):
            return bad_reference(f"the tests import {missing}, which is not installed here")
        if len(completion) > MAX_COMPLETION:
            most = f"at most {MAX_COMPLETION:,} are read"
            return Verdict(Status.LIMIT, 0.0, f"the completion has {len(completion):,} characters; {most}")
        program = program_of(completion, plan.entry_names)
        if not program.strip() and problem.reference["type"] != "stdio":
            return no_answer("the completion holds no program")
        entry = problem.reference.get("entry", "")
        program = complete_program(program, problem.info.get("prefix", ""), entry)
        try:
            limits = lower_limits(self.limits, problem.info.get("limits", {}))
        except ValueError as error:
            return bad_reference(str(error))
        return _Item(plan, plan.jobs(program, limits), program)

    def _absent(self, code: str) -> str:
        """Return a package that code imports and that is not installed here, if the sandbox could offer it; or ""."""
        here = isinstance(self.executor, Pool)
        return next((name for name in sandbox_packages.absent() if here and imports_package(code, name)), "")

    def _run(self, items: list[_Item], count: int) -> None:
        batches = [item.jobs[len(item.results) :][:count] for item in items]
        results = iter(self.executor.run_many([job for batch in batches for job in batch]))
        for item, batch in zip(items, batches):
            item.results += [next(results) for _ in batch]

    def _goes_on(self, item: _Item) -> bool:
        return self.partial or not item.plan.outcome(item.results).test

    def _verdict(self, item: _Item) -> Verdict:
        failed = next((r for r in item.results if r.status is RunStatus.SANDBOX_ERROR), None)
        if failed is not None:
            return error(f"sandbox_error: {failed.detail}")
        outcome = item.plan.outcome(item.results)
        missing = self._absent(item.program) if outcome.passed < outcome.total else ""
        if missing:
            return error(f"{missing} is not installed here: programs that import it cannot be judged")
        seconds = sum(result.seconds for result in item.results)
        if outcome.passed == outcome.total:
            return Verdict(Status.CORRECT, 1.0, f"{outcome.total} tests passed", item.program, seconds=seconds)
        share = outcome.passed / outcome.total if self.partial else 0.0
        status = Status.PARTIAL if share else _STATUS[outcome.status]
        return Verdict(status, share, _reason(outcome), item.program, seconds=seconds)


def _reason(outcome: Outcome) -> str:
    kind = "failed" if outcome.status is RunStatus.OK else str(outcome.status)
    what = in_one_line(outcome.what)
    return f"{kind}: test {outcome.test} of {outcome.total}: {what}" if outcome.test else f"{kind}: {what}"
