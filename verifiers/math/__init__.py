"""The verifier `math`: whether the answer of a completion equals the reference.

| folder or file | what it does |
|---|---|
| this file | the registered verifier, its options, `verify_math` and its batch and async forms |
| `answer.py` | one answer against one reference: the verdict and its reason |
| `text/` | what an answer says as text: sentences, choices, dates, substances; its readings as trees |
| `compare/` | the comparison of two trees: equations, sets, lists, units, general solutions, open sums |
| `grammar/` | the parser: text to tokens to an expression tree |
| `values/` | the tree itself, and its values: exact, numeric, identities of functions, sets of reals, matrices |
| `symbolic.py` | sympy, for what rules and numbers leave open; imported when it is needed |

Each folder imports from those below it only. Nothing is evaluated as text, and each layer has bounds on its work.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from rlvr.core.registry import register
from rlvr.core.types import Problem, Prompt, Status, Verdict, bad_reference

from ..extract import Conflict, Mode, extract
from ..extract.answer import reference_text, without_answer
from ..runner.base import check_choices
from .answer import Symbolic, is_open, judge_answer, reconsider
from .compare.comparison import Comparator
from .symbolic import NoSymbolicForm, parse_answer, warm_up
from .text.readings import Reference, read_reference, readable
from .text.repetition import is_number, read_prompt
from .values.exact import QUICK_WORK, BoundedWork, OutOfBudget, is_counted

__all__ = [
    "MathVerifier",
    "NoSymbolicForm",
    "parse_answer",
    "verify_math",
    "verify_math_async",
    "verify_math_batch",
]

NUMBERS = (
    "all references are numbers, so the verifier math accepts only evaluated answers: 56, and not 57 - 1 "
    "(its option unevaluated=accept takes both)"
)
QUICK_CHARS = 1_000  # longer answers are compared in the pool
QUICK_COMPLETION = 100_000  # characters; in longer completions the answer is looked for in the pool


@register("math")
@dataclass(frozen=True, kw_only=True)
class MathVerifier:
    """Whether the answer of a completion equals the reference.

    docs/explained/math-rules.md has the rules as tables: gold, answer, verdict.

    extract: where the answer stands. "strict": in a box. "marked": also after "the answer is", "####" and the like.
        "lenient": also the whole of a short text, else its last formula, else its last number.
    conflict: of several boxes the "last" counts; "reject" takes none where they are not equal.
    digits, rel_tol: agreement to so many significant digits, or within a relative difference, counts as well. Neither
        holds for a gold that is an integer.
    exact_digits: how many right digits a decimal needs against an irrational gold.
    units: "convert" compares them where both sides have one; "ignore" drops them.
    unevaluated: whether 112/2 counts for 56. "auto": not in a task pack whose golds are all numbers.
    repeated: whether an answer counts that only repeats an expression of the prompt.
    symbolic: what sympy evaluates in the worker pool: the "gold", "both" sides, or nothing ("off").
    symbolic_seconds: processor time for each evaluation.
    """

    extract: Mode = "marked"
    conflict: Conflict = "last"
    digits: int | None = None
    rel_tol: float | None = None
    exact_digits: int = 10
    units: Literal["convert", "ignore"] = "convert"
    unevaluated: Literal["auto", "accept", "reject"] = "auto"
    repeated: Literal["reject", "accept"] = "reject"
    symbolic: Symbolic = "gold"
    symbolic_seconds: float = 3.0

    isolate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choices(self)
        for name, lowest in (("digits", 1), ("rel_tol", 0), ("exact_digits", 1), ("symbolic_seconds", 0.01)):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not lowest <= value < math.inf:
                raise ValueError(f"{name} {value!r}: expected a number of at least {lowest}")
            if name.endswith("digits") and not isinstance(value, int):
                raise ValueError(f"{name} {value}: expected an integer")

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        """Return the verdict."""
        verdict = self._decide(problem, completion, seconds=self.symbolic_seconds)
        assert verdict is not None
        return verdict

    def fast_path(self, problem: Problem, completion: str) -> Verdict | None:
        """Return the verdict where it takes at most a few milliseconds; None leaves it to the worker pool."""
        if len(completion) > QUICK_COMPLETION:
            return None
        try:
            with BoundedWork(QUICK_WORK):
                return self._decide(problem, completion, quick=True)
        except OutOfBudget:
            return None

    def warm_up(self) -> None:
        """Import sympy before the worker processes, which may need it, are forked."""
        if self.symbolic != "off":
            warm_up()

    def without_deadline(self, problem: Problem, completion: str) -> Verdict:
        """Return the verdict, however long it takes."""
        verdict = self._decide(problem, completion)
        assert verdict is not None
        return verdict

    def open_answers(self, reference: Any) -> bool:
        """Whether numbers within a tolerance are right as well."""
        return self.digits is not None or bool(self.rel_tol)

    def check_reference(self, reference: Any) -> None:
        """Raise ValueError where the reference cannot be read."""
        _reference(reference)

    def for_problems(self, problems: Iterable[Problem]) -> tuple[MathVerifier, str]:
        """Return the verifier of a pack: where all its references are numbers, answers must be evaluated."""
        if self.unevaluated != "auto" or not _are_numbers(problem.reference for problem in problems):
            return self, ""
        return replace(self, unevaluated="reject"), NUMBERS

    def _decide(
        self, problem: Problem, completion: str, *, quick: bool = False, seconds: float | None = None
    ) -> Verdict | None:
        try:
            gold = _reference(problem.reference)
        except ValueError as error:
            return bad_reference(str(error))
        answer = extract(completion, self.extract, self.conflict, readable, self._is_same_answer)
        if answer.text is None:
            return without_answer(completion, answer)
        if quick and len(answer.text) > QUICK_CHARS:
            return None
        given = functools.partial(read_prompt, problem.prompt) if self.repeated == "reject" and problem.prompt else None
        verdict = judge_answer(gold, answer.text, self._quick_rules if quick else self._rules, given)
        if quick and verdict.status is Status.LIMIT:
            return None
        if verdict.status is Status.CORRECT or not is_open(gold, answer.text, verdict, self.symbolic):
            return verdict
        if quick:
            return None
        return reconsider(gold, answer.text, verdict, self._rules, self.symbolic, seconds, given)

    def _is_same_answer(self, left: str, right: str) -> bool:
        """Whether the texts of two boxes are one answer."""
        quick = is_counted()
        rules = self._quick_rules if quick else self._rules
        try:
            verdict = judge_answer(read_reference(left), right, replace(rules, units="value"))
        except ValueError:
            return False
        if quick and verdict.status == "limit":
            raise OutOfBudget
        return verdict.correct

    @functools.cached_property
    def _rules(self) -> Comparator:
        return Comparator(self.digits, self.rel_tol, self.exact_digits, self.units, self.unevaluated)

    @functools.cached_property
    def _quick_rules(self) -> Comparator:
        return replace(self._rules, quick=True)


def _reference(reference: Any) -> Reference:
    return read_reference(reference_text(reference))


def _are_numbers(references: Iterable[Any]) -> bool:
    """Whether all references, and one at least, are numbers in a usual form, as `is_number` says."""
    found = False
    for reference in references:
        try:
            gold = _reference(reference)
        except ValueError:
            return False
        if not gold.text.isdigit() and not any(map(is_number, gold.readings[:1])):
            return False
        found = True
    return found


Asked = tuple[str | float, str] | tuple[str | float, str, Prompt]  # reference, completion, and the prompt


def verify_math(reference: str | float, completion: str, prompt: Prompt = "", **options: Any) -> Verdict:
    """Return the verdict on one completion, without a deadline; options are those of MathVerifier.

    An answer that only repeats the prompt is found only where the prompt is given.
    """
    return MathVerifier(**options).without_deadline(Problem("", prompt, reference), completion)


def _pairs(pairs: Iterable[Asked]) -> list[tuple[Problem, str]]:
    return [
        (Problem(str(index), prompt[0] if prompt else "", reference), completion)
        for index, (reference, completion, *prompt) in enumerate(pairs)
    ]


def verify_math_batch(
    pairs: Iterable[Asked], *, workers: int = 0, timeout: float = 5.0, **options: Any
) -> list[Verdict]:
    """Return the verdicts on (reference, completion) or (reference, completion, prompt), in order.

    Long answers go to a pool of `workers` processes (0: one for each core), with `timeout` seconds for each.
    """
    from ..runner import Runner

    with Runner(MathVerifier(**options), workers=workers, timeout=timeout) as runner:
        return runner.verify(_pairs(pairs))


async def verify_math_async(
    pairs: Iterable[Asked], *, workers: int = 0, timeout: float = 5.0, **options: Any
) -> list[Verdict]:
    """Return what `verify_math_batch` does, without blocking the event loop."""
    from ..runner import Runner

    with Runner(MathVerifier(**options), workers=workers, timeout=timeout) as runner:
        return await runner.averify(_pairs(pairs))
