"""How each type of reference is tested: the jobs to run, the outcome of their results, and what a pass shows.

The first part reads test code: which names it expects from the program, and which it defines itself. The second part
has programs and constants that solve nothing. Expected values stay in the plan, with the verifier; no job has any.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import inspect
import itertools
import operator
import symtable
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rlvr.core.printable import kind_of
from rlvr.sandbox import Call, Job, Limits, Result, RunStatus, TestJob, level, run_many
from rlvr.sandbox.limits import BYTES, encode
from rlvr.sandbox.testcode import instrument, null_search
from rlvr.sandbox.wire import values

from . import equality
from .evalplus import is_same_result, read_cases
from .interpretation import WeakTests, split_condition
from .strength import (
    WithoutNotes,
    check_strong,
    find_classes,
    mark_arguments,
    shorten_literals,
)

_BUILTINS = frozenset(dir(builtins))
# Module names by which tests import the program.
_MODULES = ("solution", "candidate", "main", "your_module", "your_solution")
# Modules that tests use without importing them.
_IMPLIED = frozenset(("cmath", "collections", "math", "sys"))


@lru_cache(maxsize=4096)
def parse(code: str) -> ast.Module:
    """Return the tree of test code. Raise ValueError if it does not parse."""
    try:
        return ast.parse(code)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"the test code does not parse: {error}") from error


def name_entry(tree: ast.Module, entry: str) -> ast.Module:
    """Change `check(candidate)` so that it calls the program's `entry` by name, and add a call of it."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and len(node.args.args) == 1:
            _Rename({node.args.args[0].arg: entry}).visit(node)
            node.args.args = []
    tree.body.append(ast.Expr(ast.Call(ast.Name("check", ast.Load()), [], [])))
    return ast.fix_missing_locations(tree)


def write_implied_imports(code: str) -> str:
    """Return imports of the modules that the tests use without importing them (MBPP/596).

    Without them, an object of that name in the program would compute the expected values.
    """
    used = {n.value.id for n in ast.walk(parse(code)) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    return "".join(f"import {name}\n" for name in sorted((used & _IMPLIED) - find_defined(code)))


class _Rename(ast.NodeTransformer):
    def __init__(self, renamed: dict[str, str]) -> None:
        self.renamed = renamed

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.renamed.get(node.id, node.id), node.ctx)


def drop_program_imports(code: str) -> str:
    """Return test code without imports of the program's module: it uses the program's own names instead."""
    if not any(name in code for name in _MODULES):
        return code
    parse(code)
    imports = _Imports()
    changed = imports.visit(ast.parse(code))
    return ast.unparse(ast.fix_missing_locations(changed)) + "\n" if imports.found else code


class _Imports(_Rename):
    """Removes imports of the program's module, and names its attributes directly."""

    def __init__(self) -> None:
        super().__init__({})
        self.found = False
        self.modules: set[str] = set()

    def visit_Import(self, node: ast.Import) -> ast.AST:
        others = [alias for alias in node.names if alias.name not in _MODULES]
        self.modules |= {alias.asname or alias.name for alias in node.names if alias not in others}
        self.found = self.found or len(others) < len(node.names)
        return ast.Import(others) if others else ast.Pass()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module not in _MODULES:
            return node
        self.found = True
        self.renamed |= {alias.asname: alias.name for alias in node.names if alias.asname}
        return ast.Pass()

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self.modules:
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)


def find_defined(code: str) -> set[str]:
    """Return the global names that code binds."""
    table = symtable.symtable(code, "", "exec")
    inner = {
        symbol.get_name() for part in _find_tables(table) for symbol in part.get_symbols() if _is_bound_outside(symbol)
    }
    return inner | {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def drop_stubs(code: str) -> str:
    """Return a prelude without functions that do nothing: the heads of functions that the program has to write."""
    tree = ast.parse(code)
    stubs = [node for node in tree.body if isinstance(node, ast.FunctionDef) and all(map(_does_nothing, node.body))]
    if not stubs:
        return code
    tree.body = [node for node in tree.body if node not in stubs]
    return ast.unparse(tree) + "\n"


def _does_nothing(node: ast.stmt) -> bool:
    missing = isinstance(node, ast.Raise) and node.exc is not None and instrument.called_name(node.exc)
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, ast.Pass) or missing == "NotImplementedError"


def _is_bound_outside(symbol: symtable.Symbol) -> bool:
    return symbol.is_declared_global() and symbol.is_assigned()


def find_used(code: str) -> set[str]:
    """Return the global names that code reads."""
    tables = _find_tables(symtable.symtable(code, "", "exec"))
    symbols = [symbol for table in tables for symbol in table.get_symbols()]
    return {symbol.get_name() for symbol in symbols if symbol.is_global() and symbol.is_referenced()}


def _find_tables(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    return [table, *(inner for child in table.get_children() for inner in _find_tables(child))]


def find_program_names(code: str, entry: str = "", prelude: str = "") -> tuple[str, ...]:
    """Return the names that the tests expect from the program. A builtin name counts only if there is no other."""
    used = find_used(code) - find_defined(code) - find_defined(prelude)
    found = used - _BUILTINS | ({entry} if entry else set())
    return tuple(sorted(found or (used if len(used) == 1 else ())))


CONSTANTS: dict[str, Any] = {source: eval(source) for source in null_search.CONSTANTS}
PRINTED = ("", "0", "1", "-1", "YES", "NO", "Yes", "No", "True", "False", "None")


def describe(answer: str) -> str:
    """Return a sentence that says that an answer passes; "" for no answer."""
    return f"a program that answers with {answer} passes" if answer else ""


def find_passing_value(cases: Sequence[tuple[Sequence[Any], Any]], same: Callable[[Any, Any], bool]) -> str:
    """Return what a program answers that solves nothing and is right for all (arguments, expected value); or ""."""
    answers = {source: null_search.returning(value) for source, value in CONSTANTS.items()}
    if len(cases) > 1:
        answers[repr(cases[0][1])] = null_search.returning(cases[0][1])
    for what, answer in (answers | null_search.ECHOES).items():
        if all(same(answer(copy.deepcopy(list(given))), expected) for given, expected in cases):
            return what
    return ""


def find_plain_cases(tree: ast.Module) -> dict[str, list[tuple[Sequence[Any], Any]]]:
    """Return the cases of asserts such as `assert f(1) == 2` that run whatever a program does, for each function."""
    found: dict[str, list[tuple[Sequence[Any], Any]]] = {}
    bodies = [
        tree.body,
        *(node.body for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"),
    ]
    for node in itertools.chain(*bodies):
        if not isinstance(node, ast.FunctionDef) and any(isinstance(part, instrument.ENDS) for part in ast.walk(node)):
            break
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Eq):
            call, *expected = node.test.left, *node.test.comparators
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.keywords:
                with contextlib.suppress(ValueError, TypeError):
                    case = list(map(ast.literal_eval, call.args)), ast.literal_eval(*expected)
                    found.setdefault(call.func.id, []).append(case)
    return found


def find_passing_output(cases: Sequence[tuple[str, str]], rule: equality.Output) -> str:
    """Return a text that is right for all (input, output) by the rule of comparison, "the input", or ""."""
    same = rule.matches
    for text in PRINTED:
        if all(same(text, output) for _, output in cases):
            return repr(text)
    if len(cases) > 1 and all(same(cases[0][1], output) for _, output in cases):
        return repr(cases[0][1])
    echoes: dict[str, Callable[[str], str]] = {
        "the input": lambda given: given,
        "the first word": lambda given: " ".join(given.split()[:1]),
        "the last word": lambda given: " ".join(given.split()[-1:]),
    }
    return next((what for what, echo in echoes.items() if all(same(echo(each), out) for each, out in cases)), "")


def write_null_programs(names: Sequence[str]) -> dict[str, str]:
    """Return {what it does: program} of programs that define the names and solve nothing. Without names, they print."""
    found = {"nothing": "pass", "raises": "raise ValueError('no')"}
    if not names:
        found |= {f"prints {text!r}": f"print({text!r})" for text in PRINTED}
        return found | {"prints its input": "import sys\nsys.stdout.write(sys.stdin.read())"}
    for value in (*CONSTANTS, "args[0] if args else None", "[*args, *kwargs.values(), None, None][1]"):
        found[f"returns {value}"] = "".join(f"def {name}(*args, **kwargs): return {value}\n" for name in names)
    return found


MAX_EXPECTED = 8 << 20  # characters of an output, or bytes of values


@dataclass(frozen=True)
class Outcome:
    """How many of `total` tests passed, and the first failure.

    test: its number, from 1; what: the failure in words; status: how the run of the program ended.
    """

    passed: int
    total: int
    status: RunStatus = RunStatus.OK
    test: int = 0
    what: str = ""


class TooLarge(str):
    """The failure of a test that cannot be decided within the bounds of time and memory."""


def _count_outcome(wrong: Sequence[str], total: int, results: Sequence[Result]) -> Outcome:
    """Return the outcome of tests. wrong: the failure of each test, or ""; results: of each test, or one of all."""
    failed = next((number for number, what in enumerate(wrong) if what), None)
    if failed is None:
        return Outcome(len(wrong), total)
    status = results[min(failed, len(results) - 1)].status
    if isinstance(wrong[failed], TooLarge) and status is RunStatus.OK:
        status = RunStatus.OUTPUT_LIMIT
    return Outcome(wrong.count(""), total, status, failed + 1, wrong[failed])


@dataclass(frozen=True)
class WholePlan:
    """Test code that runs as it is: in its own sandbox if the tests are strong, else in the program's process."""

    test: str
    entry_names: tuple[str, ...]
    classes: tuple[str, ...]
    prelude: str
    setup: str
    weak: str = ""

    def jobs(self, program: str, limits: Limits) -> list[TestJob]:
        """Return one job."""
        job = Job(program, setup=self.setup, limits=limits, prelude=self.prelude)
        return [TestJob(job, self.test, self.entry_names, self.classes, together=bool(self.weak))]

    def outcome(self, results: Sequence[Result]) -> Outcome:
        """Count the asserts. Tests that run in the program's process count as one."""
        (result,) = results
        held, total, first = result.checks
        if result.tests_passed:
            return Outcome(total, total)
        return Outcome(min(held, total - 1), total, result.status, first, result.detail or "the tests did not finish")


@dataclass(frozen=True)
class OutputPlan:
    """Inputs for stdin, and the expected outputs."""

    cases: tuple[tuple[str, str], ...]
    setup: str
    prelude: str
    rule: equality.Output
    entry_names: tuple[str, ...] = ()

    def jobs(self, program: str, limits: Limits) -> list[Job]:
        """Return one job for each case. A program may print twice as much as expected, even beyond the usual limit."""
        prelude = "\n".join(part for part in (self.prelude, self.setup) if part)
        needed = [max(limits.output_kb, 2 * len(expected.encode()) // 1024 + 64) for _, expected in self.cases]
        enough = [replace(limits, output_kb=kb) for kb in needed]
        return [Job(program, case[0], limits=each, prelude=prelude) for case, each in zip(self.cases, enough)]

    def outcome(self, results: Sequence[Result]) -> Outcome:
        """Count the cases in which the program ends without an error and prints the expected output."""
        wrong = [self._find_fault(result, expected) for result, (_, expected) in zip(results, self.cases)]
        return _count_outcome(wrong, len(self.cases), results)

    @property
    def weak(self) -> str:
        """Why a pass shows little: one output may be right for all cases."""
        return describe(find_passing_output(self.cases, self.rule))

    def _find_fault(self, result: Result, expected: str) -> str:
        if result.status is not RunStatus.OK:
            return result.detail or str(result.status)
        return "" if self.rule.matches(result.stdout, expected) else "wrong answer"


@dataclass(frozen=True)
class CallsPlan:
    """Arguments of one function, and the expected values."""

    entry: str
    calls: tuple[Call, ...]
    expected: tuple[Any, ...]
    setup: str
    prelude: str = ""
    result_kb: int = 0
    tolerance: float = 0.0
    same: Callable[[Any, Any, float], bool] = equality.is_same_value

    @property
    def entry_names(self) -> tuple[str, ...]:
        """The function, or the class that has it."""
        return (self.entry.split(".")[0],)

    def jobs(self, program: str, limits: Limits) -> list[Job]:
        """Return one job with every call. Values may be twice as large as expected, even beyond the usual limit."""
        if limits.result_kb < self.result_kb:
            limits = replace(limits, result_kb=self.result_kb)
        return [Job(program, calls=self.calls, setup=self.setup, limits=limits, prelude=self.prelude)]

    def outcome(self, results: Sequence[Result]) -> Outcome:
        """Count the cases in which the call returned the expected value."""
        (result,) = results
        wrong = [self._find_fault(number, result) for number in range(len(self.calls))]
        if not any(wrong) and result.status is not RunStatus.OK:
            return Outcome(0, len(wrong), result.status, what=result.detail)
        return _count_outcome(wrong, len(wrong), results)

    @property
    def weak(self) -> str:
        """Why a pass shows little: one value or argument may be right for all calls."""
        cases = [(call.args, value) for call, value in zip(self.calls, self.expected)]
        return describe(find_passing_value(cases, lambda value, expected: self.same(value, expected, self.tolerance)))

    def _find_fault(self, number: int, result: Result) -> str:
        if number >= len(result.returned):
            return "no answer"
        returned = result.returned[number]
        if returned.raised:
            return f"raised {returned.raised}"
        try:
            same = self.same(returned.value, self.expected[number], self.tolerance)
        except values.CutShort:
            return TooLarge("an iterator with too many items")
        large = returned.too_large and not same
        return "" if same else TooLarge("the value is too large") if large else "wrong answer"


TestPlan = WholePlan | OutputPlan | CallsPlan
"""The tests of one reference.

`entry_names`: names that they use, of which a program defines at least one. `weak`: why a pass shows little, in words;
"" if it shows that a program solves the problem. `jobs`: what to run. `outcome`: the outcome for the results of the
first jobs, in order; later results may not be there yet.
"""


def _size_of(value: Any, what: str) -> int:
    """Return how many bytes a value has on its way to or from a program. Raise ValueError if it cannot be sent."""
    try:
        return len(values.dumps(values.encode(value, whole=True)))
    except values.TooLarge:
        raise ValueError(f"{what} cannot be passed: too many items, too deep or too long a number") from None


def _read_text(reference: Mapping[str, Any], key: str, *, needed: bool = False) -> str:
    value = reference.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"reference {key!r} is {kind_of(value)}; expected text")
    if needed and not value.strip():
        raise ValueError(f"the reference has no {key!r}")
    encode(f"reference {key!r}", value)
    return value


def _plan_tests(reference: Mapping[str, Any], entry: str = "") -> TestPlan:
    code, prelude, setup = (_read_text(reference, key, needed=key == "code") for key in ("code", "prelude", "setup"))
    cases = read_cases(code)
    if cases is not None and (entry or cases.entry):
        calls = tuple(Call(cases.entry or entry, tuple(row)) for row in cases.inputs)
        return _plan_cases(cases.entry or entry, calls, cases.results, reference, cases.tolerance, is_same_result)
    code = drop_program_imports(code)
    for part in (prelude, setup):
        parse(part)
    tree = parse.__wrapped__(code)  # a fresh one, since it will be changed
    with shorten_literals(tree):
        short = ast.unparse(tree)
        can_fail = instrument.can_fail(tree)
    # If the setup defines names for the tests, it runs in their sandbox, too.
    shares_setup = bool((find_defined(setup) - {entry}) & find_used(short))
    ours = drop_stubs(prelude) + ("\n" + setup) * shares_setup
    names = find_program_names(short, entry, ours)
    if not names or not can_fail:
        raise ValueError("the tests use nothing of the program, or no assert of it can fail: every program would pass")
    imports = write_implied_imports(short)
    try:
        if shares_setup and find_used(setup) & set(names):
            raise WeakTests("the setup calls the program, and the tests use what it sets up")
        tree.body[:0] = parse.__wrapped__(f"{ours}\n{imports}").body
        test, classes = make_strong_test(tree, ours, entry, names)
    except WeakTests as reason:
        instrument.refuse_fixtures(parse(code))
        called = f"\ncheck({entry})\n" if entry else ""
        return WholePlan(imports + code + called, names, (), prelude, setup, str(reason))
    return WholePlan(test, names, classes, prelude, setup)


def make_strong_test(tree: ast.Module, ours: str, entry: str, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return test code for a sandbox of its own, and the names that it uses as classes. Raise WeakTests.

    tree: the code, which is changed, after what the tests themselves have of prelude and setup (`ours`).
    """
    try:
        with shorten_literals(tree):
            if entry:
                tree = name_entry(tree, entry)
            instrument.rename_called_tests(tree)
            tree = WithoutNotes({*names, *instrument.find_names(tree)[1]}).visit(tree)
            compared = check_strong(tree, names, find_defined(ours))
            classes = tuple(sorted(find_classes(tree, names)))
            mark_arguments(tree, compared)
        return ast.unparse(tree), classes
    except RecursionError:
        raise WeakTests("the test code is nested too deeply") from None


def _plan_check(reference: Mapping[str, Any]) -> TestPlan:
    entry = _read_text(reference, "entry", needed=True)
    if not entry.isidentifier():
        raise ValueError(f"reference entry {entry!r} is not a name")
    tree = parse(_read_text(reference, "code", needed=True))
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
        raise ValueError("the test code defines no check(candidate)")
    return _plan_tests(reference, entry)


def _read_cases(reference: Mapping[str, Any], *keys: str) -> list[Mapping[str, Any]]:
    cases = reference.get("cases")
    if not isinstance(cases, (list, tuple)) or not cases:
        raise ValueError("the reference has no cases")
    for case in cases:
        if not isinstance(case, Mapping) or not all(key in case for key in keys):
            raise ValueError(f"a case needs {' and '.join(keys)}")
    return list(cases)


def _plan_stdio(reference: Mapping[str, Any]) -> TestPlan:
    cases = _read_cases(reference, "input", "output")
    if not all(isinstance(case[key], str) for case in cases for key in ("input", "output")):
        raise ValueError("the input and the output of a case are text")
    for case in cases:
        encode("an input", case["input"], BYTES)
        encode("an expected output", case["output"])
    longest = max(len(case["output"]) for case in cases)
    if longest > MAX_EXPECTED:
        raise ValueError(f"an expected output of {longest:,} characters: at most {MAX_EXPECTED:,} are read")
    texts = (_read_text(reference, "setup"), _read_text(reference, "prelude"))
    return OutputPlan(tuple((case["input"], case["output"]) for case in cases), *texts, _read_rule(reference))


def _read_tolerance(reference: Mapping[str, Any]) -> float:
    tolerance = reference.get("tolerance", 0.0)
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 <= tolerance < 1:
        raise ValueError(f"reference tolerance {tolerance!r:.80}; expected a number from 0 to below 1")
    return float(tolerance)


def _read_rule(reference: Mapping[str, Any]) -> equality.Output:
    compare, tolerance = reference.get("compare", "lines"), _read_tolerance(reference)
    if compare not in ("lines", "tokens"):
        raise ValueError(f"reference compare {compare!r:.80}; expected lines or tokens")
    ignore_case = reference.get("ignore_case", False)
    if not isinstance(ignore_case, bool):
        raise ValueError(f"reference ignore_case {ignore_case!r:.80}; expected true or false")
    if (tolerance or ignore_case) and compare == "lines":
        raise ValueError("tolerance and ignore_case are for outputs compared by tokens; set compare to tokens")
    return equality.Output(compare, tolerance, ignore_case)


def _plan_calls(reference: Mapping[str, Any]) -> TestPlan:
    entry = _read_text(reference, "entry", needed=True)
    cases = _read_cases(reference, "args", "expected")
    calls = tuple(Call(entry, tuple(case["args"]), dict(case.get("kwargs", {}))) for case in cases)
    expected = tuple(case["expected"] for case in cases)
    return _plan_cases(entry, calls, expected, reference, _read_tolerance(reference), equality.is_same_value)


def _plan_cases(
    entry: str,
    calls: tuple[Call, ...],
    expected: Sequence[Any],
    reference: Mapping[str, Any],
    tolerance: float,
    same: Callable[[Any, Any, float], bool],
) -> CallsPlan:
    if max(_size_of([call.args, call.kwargs], "the arguments of a case") for call in calls) > MAX_EXPECTED:
        raise ValueError(f"the arguments of a case are larger than {MAX_EXPECTED:,} bytes")
    size = sum(_size_of(value, "an expected value") for value in expected)
    if size > MAX_EXPECTED:
        raise ValueError(f"the expected values have {size:,} bytes together: at most {MAX_EXPECTED:,} are read")
    setup, prelude = _read_text(reference, "setup"), _read_text(reference, "prelude")
    return CallsPlan(entry, calls, tuple(expected), setup, prelude, 2 * size >> 10, tolerance, same)


TYPES: dict[str, Callable[[Mapping[str, Any]], TestPlan]] = {
    "assert": _plan_tests,
    "check": _plan_check,
    "stdio": _plan_stdio,
    "calls": _plan_calls,
}


def make_plan(reference: Any) -> TestPlan:
    """Return the plan of a reference. Raise ValueError if it cannot be used."""
    if not isinstance(reference, Mapping) or reference.get("type") not in TYPES:
        raise ValueError(f"a reference is a mapping with a type among {', '.join(TYPES)}")
    return TYPES[reference["type"]](reference)


def why_weak(reference: Any) -> str:
    """Return why a pass shows little, in words; "" if it shows that a program solves the problem.

    Either the test code uses more of Python than `strength.py` allows, so it runs in the program's process. Or the
    tests demand so little that a program passes that solves nothing. Test code is run with such programs, where
    programs can be isolated.
    """
    plan = make_plan(reference)
    if plan.weak or not isinstance(plan, WholePlan) or level().number < 2:
        return plan.weak
    found = find_plain_cases(ast.parse(plan.test))
    cases = [found.get(name, ()) for name in plan.entry_names]
    if all(len(each) > 1 and not find_passing_value(each, operator.eq) for each in cases):
        return ""
    return _run_null_programs(plan)


@lru_cache(maxsize=1 << 14)
def _run_null_programs(plan: WholePlan) -> str:
    """Return that a program passes that solves nothing; "" if none does."""
    tree = ast.fix_missing_locations(_Split().visit(ast.parse(plan.test)))
    test = ast.unparse(instrument.instrument(tree, plan.entry_names))
    call = f"find_null_program({test!r}, {list(plan.entry_names)!r}, {list(plan.classes)!r})"
    search = Job(inspect.getsource(null_search))
    (result,) = run_many([TestJob(search, f"answer = {call}\nprint('\\n' + answer)", together=True)])
    if result.status is not RunStatus.OK or not result.stdout:
        why = "the tests take too long" if "TimeoutError" in result.detail else result.detail
        return f"programs that solve nothing could not be tried: {why}"
    return describe(result.stdout.splitlines()[-1] if result.stdout[-2:] != "\n\n" else "")


class _Split(ast.NodeTransformer):
    """Makes several asserts of one with `and`: they are counted."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        return [ast.Assert(part) for part in split_condition(node.test)]


def integrity(reference: Any) -> str:
    """Return "strong", or "weak" if a pass does not show that a program solves the problem (`why_weak`)."""
    return "weak" if why_weak(reference) else "strong"
