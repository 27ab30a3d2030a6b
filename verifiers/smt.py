"""The verifier `smt`: an assignment that satisfies constraints in SMT-LIB, or the claim that there is none; z3 decides.

Only names and values are read from the completion. This module writes them as literals of the declared sorts, so no
text of the completion reaches the solver.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from rlvr.core.cores import count_cores
from rlvr.core.printable import in_one_line
from rlvr.core.registry import register
from rlvr.core.types import (
    Problem,
    Verdict,
    bad_reference,
    correct,
    error,
    incorrect,
    limit,
    no_answer,
    timeout,
    unparseable,
)
from rlvr.sandbox.external import ExternalLimits, run_external, workplace
from rlvr.sandbox.limits import check_count, check_seconds

from .extract.sections import fenced_answer

MAX_COMPLETION, MAX_DIGITS = 100_000, 1000  # characters; digits of a value
MISSING = "z3 is not installed: pip install -e '.[smt]' (or apt install z3)"
_TOKEN = re.compile(r';[^\n]*|\(|\)|\|[^|\\]*\||"(?:[^"]|"")*"|[^\s()|";]+')
_COMMANDS = ("set-logic", "declare-const", "declare-fun", "define-fun", "assert")
_LETTERS = r"[\w.!@$%^&*~?]"
_NAME = re.compile(rf"[A-Za-z_]{_LETTERS}*", re.ASCII)
# A name starts only after a sign that is no letter; otherwise the time would grow with the square of the text.
_PAIR = re.compile(rf'(?<!{_LETTERS})"?({_NAME.pattern})"?\s*(?::=|=|:)\s*"?([-+]?[\w./#]+)"?', re.ASCII)
_OPEN = ("/", "div", "mod", "rem", "^")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:/\d+)?", re.ASCII)


def _parse(text: str) -> list[Any]:
    """Return the s-expressions of a text as nested lists. Raises ValueError for other text."""
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise ValueError("a bracket closes that was not opened")
            stack[-2].append(stack.pop())
        elif not token.startswith(";"):
            stack[-1].append(token)
    if len(stack) > 1 or _TOKEN.sub("", text).strip():
        raise ValueError("brackets or quotes that do not close")
    return stack[0]


def constants_of(reference: Any) -> dict[str, Any]:
    """Return {name: sort} of the constants in a reference. Raises ValueError if it cannot be used."""
    if not isinstance(reference, str) or len(reference) > MAX_COMPLETION:
        raise ValueError(f"the reference {reference!r:.80}: expected constraints in SMT-LIB")
    return dict(_constants(reference))


@lru_cache(maxsize=4096)
def _constants(text: str) -> tuple[tuple[str, Any], ...]:
    found = {}
    for command in _parse(text):
        if not isinstance(command, list) or not command or command[0] not in _COMMANDS:
            raise ValueError(f"the reference has {str(command)[:60]}; expected {', '.join(_COMMANDS)}")
        if command[0] == "declare-const" or (command[0] == "declare-fun" and command[2:3] == [[]]):
            name, sort = command[1], command[-1]
            if not isinstance(name, str) or not _NAME.fullmatch(name.strip("|")):
                raise ValueError(f"the name {name!s:.60}: expected an ASCII letter and letters, digits or .!@$%^&*~?_")
            if not _sort(sort):
                raise ValueError(f"{name} has the sort {sort}; expected Int, Real, Bool or (_ BitVec n)")
            found[name] = sort
        elif command[0] == "declare-fun":
            raise ValueError(f"{command[1]} is a function; only constants are assigned")
    if not found:
        raise ValueError("the reference declares no constant")
    return tuple(found.items())


def _sort(sort: Any) -> str:
    if isinstance(sort, list) and sort[:2] == ["_", "BitVec"] and len(sort) == 3 and str(sort[2]).isdecimal():
        return "BitVec"
    return sort if sort in ("Int", "Real", "Bool") else ""


def literal(value: str, sort: Any) -> str:
    """Return a value as a literal of the sort. Raises ValueError if it has another form."""
    kind = _sort(sort)
    if kind == "Bool":
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{value} is not true or false")
        return value.lower()
    if len(value) > MAX_DIGITS or not _NUMBER.fullmatch(value):
        raise ValueError(f"{value[:40]} is not a number")
    whole, _, below = value.partition("/")
    if below and not int(below):
        raise ValueError(f"{value[:40]} divides by zero")
    number = Fraction(whole) / int(below or 1)
    if kind != "Real" and number.denominator != 1:
        raise ValueError(f"{value[:40]} is not an integer")
    if kind == "BitVec":
        if not 0 <= number < 1 << int(sort[2]):
            raise ValueError(f"{value[:40]} does not fit into {sort[2]} bits")
        return f"(_ bv{number.numerator} {sort[2]})"
    size = f"(/ {abs(number.numerator)}.0 {number.denominator}.0)" if kind == "Real" else str(abs(number.numerator))
    return f"(- {size})" if number < 0 else size


@register("smt")
class SmtVerifier:
    """Whether the completion's values satisfy constraints; or, if it says *unsat*, whether there is no solution.

    The reference is SMT-LIB: declare-const (Int, Real, Bool, (_ BitVec n)), define-fun and assert. The completion, or
    its last fenced block, holds `name = value` for each constant, in any order ("x = 3, y = -1/2, b = true"), or only
    the word `unsat`. z3 runs in the sandbox and checks the constraints with these values, within `timeout` seconds of
    processor time. If it answers *unknown*, or takes longer for `unsat`, the verdict is *error*, never a pass. In
    SMT-LIB a division by zero may have any value, so the constraints must hold for every such value.

    slots: how many z3 run at once, 0 for one on each core, each with memory_mb. path: z3's program, "" for the one in
    the package z3-solver, or on PATH.
    """

    isolate: ClassVar[bool] = False

    def __init__(self, *, path: str = "", timeout: float = 5.0, memory_mb: int = 1024, slots: int = 0) -> None:
        check_seconds("verifier smt: timeout", timeout, most=3600)
        check_count("verifier smt: memory_mb", memory_mb, least=256)
        check_count("verifier smt: slots", slots, least=0)
        self._path, self._slots = path, slots or count_cores()
        self._limits = ExternalLimits(seconds=timeout, memory_mb=memory_mb, file_kb=1024)

    def open_answers(self, reference: Any) -> bool:
        """Return True: several assignments may satisfy the constraints."""
        return True

    def check_reference(self, reference: Any) -> None:
        """Raise ValueError if the reference cannot be used."""
        constants_of(reference)

    def null_completions(self, reference: Any) -> dict[str, str]:
        """Return completions that solve nothing, by what they do."""
        return {"assigns nothing": "sat", "asserts": "(assert false) (check-sat)"}

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        """Return the verdict on one completion."""
        return self.verify_batch([(problem, completion)])[0]

    def verify_batch(self, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        """Return all verdicts, in order."""
        with ThreadPoolExecutor(self._slots) as threads:
            return list(threads.map(lambda pair: self._judge(*pair), pairs))

    def _judge(self, problem: Problem, completion: str) -> Verdict:
        try:
            sorts = constants_of(problem.reference)
        except ValueError as refused:
            return bad_reference(str(refused))
        if len(completion) > MAX_COMPLETION:
            return limit(f"the completion has {len(completion):,} characters; at most {MAX_COMPLETION:,} are read")
        text = fenced_answer(completion).strip().rstrip(".")
        if not text:
            return no_answer()
        if text.lower() == "unsat":
            return self._decide(problem.reference, "", "unsat", text)
        try:
            values = _assignment(text, sorts)
        except ValueError as refused:
            return unparseable(in_one_line(str(refused)))
        extra = "".join(f"(assert (= {name} {value}))\n" for name, value in values.items())
        return self._decide(problem.reference, extra, "sat", text)

    def _decide(self, constraints: str, values: str, wanted: str, answer: str) -> Verdict:
        said = self._ask(f"{constraints}\n{values}", wanted)
        if isinstance(said, Verdict):
            return said
        if said != wanted:
            why = "the constraints have a solution" if wanted == "unsat" else "a constraint does not hold"
            return incorrect(why, answer[:1000])
        if wanted == "sat" and _may_divide_by_zero(constraints):
            # All values are given, so what is open is the result of a division by zero: ask whether one breaks a
            # constraint.
            said = self._ask(f"{_negate(constraints)}\n{values}", wanted)
            if said != "unsat":
                why = "rests on the result of a division by zero"
                return said if isinstance(said, Verdict) else incorrect(why, answer[:1000])
        return correct(answer[:1000])

    def _ask(self, constraints: str, wanted: str) -> str | Verdict:
        """Return z3's answer, "sat" or "unsat", or the verdict if it gives another one."""
        program = shutil.which(self._path) if self._path else z3_program()
        if program is None:
            return error(f"{self._path} is no program" if self._path else MISSING)
        try:
            with workplace() as place:
                out = os.path.join(place, "out")
                os.mkdir(out, 0o755)
                with open(os.path.join(out, "problem.smt2"), "w", encoding="utf-8") as file:
                    file.write(f"{constraints}\n(check-sat)\n")
                found = run_external([program, "-smt2", "problem.smt2"], out, limits=self._limits)
        except OSError as failed:  # no room for files, no process to be had
            return error(in_one_line(str(failed)))
        said = found.stdout.strip()
        if wanted == "sat" and found.status in ("timeout", "limit"):
            return (timeout if found.status == "timeout" else limit)(f"z3, with these values: {found.detail}")
        if said not in ("sat", "unsat"):
            if said.startswith("(error"):
                return bad_reference(f"z3 refuses the constraints: {in_one_line(said)[:200]}")
            return error(f"z3 cannot decide: {in_one_line(said or found.detail)[:200]}")
        return said if found.status == "ok" else error(f"z3 has failed: {in_one_line(found.detail)}")


def _may_divide_by_zero(constraints: str) -> bool:
    """Whether a division, or another operation that is open for 0, has an operand that is not a number above 0."""
    left = [_parse(constraints)]
    while left:
        item = left.pop()
        if item[:1] and item[0] in _OPEN and not all(map(_positive, item[1 if item[0] == "^" else 2 :])):
            return True
        left += [part for part in item if isinstance(part, list)]
    return False


def _positive(term: Any) -> bool:
    return isinstance(term, str) and term.replace(".", "", 1).isdecimal() and float(term) > 0


def _negate(constraints: str) -> str:
    """Return constraints that hold if and only if one of the given assertions fails."""
    found: list[str] = []
    facts: list[str] = []
    at = depth = 0
    before = ""
    for match in _TOKEN.finditer(constraints):
        if match.group() == "assert" and depth == 1 and before == "(":
            facts.append(f"|a fact {len(facts)}|")
            found += [constraints[at : match.start()], f"define-fun {facts[-1]} () Bool"]
            at = match.end()
        before = match.group()
        depth += (before == "(") - (before == ")")
    return "".join(found) + constraints[at:] + f"(assert (not (and {' '.join(facts)})))"


def _assignment(text: str, sorts: dict[str, Any]) -> dict[str, str]:
    """Return {constant: literal}. Raises ValueError unless the text gives each constant exactly one value."""
    found: dict[str, str] = {}
    names = {name.strip("|"): name for name in sorts}
    for name, value in _PAIR.findall(text):
        if name not in names:
            raise ValueError(f"{name} is no constant of the problem")
        if names[name] in found:
            raise ValueError(f"{name} is assigned twice")
        found[names[name]] = literal(value, sorts[names[name]])
    left = re.sub(r"[\s,;{}\"]", "", _PAIR.sub("", text))
    if left:
        raise ValueError(f"{left[:40]!r} is no assignment")
    if missing := [name for name in sorts if name not in found]:
        raise ValueError(f"{missing[0]} has no value")
    return found


def z3_program() -> str | None:
    """Return the path of z3: from the package z3-solver in this environment, otherwise from PATH."""
    beside = os.path.join(sysconfig.get_path("scripts"), "z3")
    return beside if os.access(beside, os.X_OK) else shutil.which("z3")
