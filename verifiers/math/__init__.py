"""The verifier `math`: whether the answer of a completion equals the reference.

| folder or file | what it does |
|---|---|
| this file | the registered verifier, its options, `verify_math` and its batch and async forms |
| `answer.py` | one answer against one reference: the verdict and its reason |
| `text/` | what an answer says as text: sentences, choices, dates, substances; its readings as trees |
| `compare/` | the comparison of two trees: equations, sets, lists, units, general solutions, open sums |
| `grammar/` | the parser: text to tokens to an expression tree |
| `values/` | the tree itself, and its values: exact, numeric, identities of functions, sets of reals, matrices |
| `symbolic/` | sympy, for what rules and numbers leave open; imported when it is needed |

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
from rlvr.verifiers.extract import Conflict, Mode, extract
from rlvr.verifiers.extract.answer import reference_text, without_answer
from rlvr.verifiers.math.answer import Symbolic, is_open, judge_answer, reconsider
from rlvr.verifiers.math.compare.comparison import Comparator
from rlvr.verifiers.math.symbolic.conversion import NoSymbolicForm
from rlvr.verifiers.math.symbolic.evaluation import parse_answer, to_sympy, warm_up
from rlvr.verifiers.math.text.readings import Reference, read_reference, readable
from rlvr.verifiers.math.text.repetition import is_number, read_prompt
from rlvr.verifiers.math.values.exact import QUICK_WORK, BoundedWork, OutOfBudget, is_counted
from rlvr.verifiers.runner.base import check_choices

__all__ = [
    "MathVerifier",
    "NoSymbolicForm",
    "parse_answer",
    "to_sympy",
    "verify_math",
    "verify_math_async",
    "verify_math_batch",
]

NUMBERS = (
    "all references are numbers, so that answers must be evaluated, 56 and not 57 - 1 (unevaluated=reject of math; "
    "its option unevaluated=accept takes both)"
)
QUICK_CHARS = 1_000  # longer answers are compared in the pool
QUICK_COMPLETION = 100_000  # characters; in longer completions the answer is looked for in the pool


@register("math")
@dataclass(frozen=True, kw_only=True)
class MathVerifier:
    """Whether the answer of a completion equals the reference.

    Extraction. From the text after the last `</think>`; an unclosed `<think>` holds no answer. The last complete box
    counts, an empty last box is no answer, boxes with only separators between them are one list. Without a box, a
    marked answer ("the answer is", "####", `<answer>`, bold, ...). `extract`: "strict" boxes only; "marked"; "lenient"
    also the whole of a short text, else its last formula, else its last number. An answer that is rejected ("the wrong
    answer is 42"), taken back ("wait, that's wrong"), contradicted behind its box ("The final answer is 6.") or
    followed by another ("or 6") is none, or not alone. A sentence states its one value: "The largest n is 34", "42 (the
    sum of both)"; `1/2 (0.5)` must agree with itself. `conflict`: "reject" makes several boxes no answer where they are
    not equal.

    Precision. An exact gold needs an exact answer; of an irrational one a decimal of at least `exact_digits` right
    digits (the last one rounded or cut) counts too. A decimal gold of at least 3 digits is matched by an exact number
    that rounds to it, one of at least 4 digits also by a longer decimal; not one such as 12.5 or 5.00, which is exact.
    `digits` accepts agreement to that many significant digits, `rel_tol` a relative difference; neither does for a
    gold that is an integer.

    Numbers. Thousands in all spellings; 1,234 is also read as a list, 3,14 as a decimal where the gold is one. Mixed
    numbers are sums. 50% is 0.5 or, against a number from 1 on without the sign, 50. Numbers in words are read. The
    real odd root of a negative number is real. `\\log` is natural or of base 10, the same on both sides. 52_8 may be
    written 52, not 42. 0/0 and 0^0 equal nothing.

    Repetition. An answer that only repeats an expression of the problem's prompt is none, whatever the gold: 57 - 1,
    -1 + 57 or x = 57 - 1 to "What is 57 - 1?", but not 57 - 1 = 56. What is written as the gold counts all the same
    ("Which is larger, 3/4 or 2/3?"). `repeated`: "accept" lets it count. Other arithmetic may be left undone (112/2
    for 56) with `unevaluated` "accept"; with "reject" nothing may that the gold has not; "auto" is "reject" in a task
    pack whose golds are all numbers, else "accept". The README beside this file says what counts as evaluated.

    Sums, products, integrals, limits, derivatives. An answer that is not evaluated needs a gold that is not: else it
    only restates the question. Two such are equal under another bound variable or index, with constant factors moved,
    and where their finite sums are. `symbolic`: by "gold" sympy evaluates a gold, by "both" the answer too, by "off"
    neither; it also decides what values leave open. This is done in the worker pool, `symbolic_seconds` of processor
    time for each evaluation. An indefinite integral is any function with that derivative. f(x) in an integrand is not
    evaluated.

    Structures. Cases are compared as functions, matrices after their arithmetic. Lists and sets in any order; tuples,
    vectors and matrices in theirs; a tuple may lack its brackets, (a, b) is also an open interval. `\\quad`, other
    dollar signs and new lines between formulas separate them. 1, 2, ..., 10 is written out. Both values of a plus-minus
    count; signs below one another are independent. Alternatives ("5 or 6") are a list, so no answer to a question with
    one. x = 5 is 5 and the other way round; x = 1, y = 2 or x = 2, y = 1 are two points, and y = 2, x = 1 is (1, 2):
    names in a row (x and y, a and b, x_1 and x_2) have their order, others that in which they are written; x = 1, 2
    gives y no value. A chain of equalities must hold, and each side of x/2 = y/3 = z/4 counts; an equation to be solved
    (2x = 10), a tautology and an unsolved inequality are not their solutions. A name of the value (f(2), P(X = 2),
    |AB|, sin A, a limit) may precede it; f(x) may be y or f(t), but not f(-x), and a_n a_k; a bound on a variable of
    the formula beside it is dropped where the gold has none and nothing is left out by it (k in Z); the parameter of a
    formula may begin at 0 or 1, that of points and angles not. x = 1 (mod 7) is a class, not 1; 1 (mod 7) is 1.
    Equations are equal up to a factor and cleared denominators, inequalities as sets of numbers or up to a factor; |x|
    < 3 and -x > -1 count as solved. 3:2 is 3/2. A determinant is a number. The parts (a), (b) of an answer are compared
    by their letters. Where a gold has an inverse or transpose of capital letters or a product of bold ones, they are
    matrices and the order of factors counts. Propositions and sets by name are equal where their truth tables are. 5
    \\angle 30^\\circ is a complex number.

    Functions. Equal where they agree wherever both have real values: x^2/x is x, \\ln x^2 is 2 \\ln x, \\sqrt{x}^2 is
    x; but \\sqrt{x^2} is |x|, and the answer must have values in every part of |x|, max, floor and the like in which
    the gold has some: \\ln x is not \\ln|x|. n, m, k and j in a floor are integers, in a factorial or gcd natural
    numbers. Arbitrary constants (+ C, c_1, ...; see `constants`) may have other names and scales, and k in
    \\pi/4 + k\\pi too: solutions with parameters are compared as sets.

    Units. Dropped where one side has none, converted where both have one (`units="ignore"`: always dropped); other
    dimensions are wrong, and so are words that exclude one another (north, south). Temperatures have a zero of their
    own. Words after a number are a noun (42 cats), letters in alphabetical order or without a vowel a product (42 abc,
    42 mgh), letters that may be both are read both ways (3 m). 42 tenths is 4.2. Degrees are radians against a multiple
    of pi. 4:30 p.m. is 4:30 and 16:30. Dates in either order.

    Text. Compared without case (but Co is not CO), articles and punctuation, never as a product of letters. A choice is
    its letter, with or without the text after it; letters that are not in alphabetical order are an order. Letters that
    look alike in another script are other letters.
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
        """Numbers within a tolerance are right, too."""
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

    Without the prompt, an answer that only repeats it is not told.
    """
    return MathVerifier(**options).without_deadline(Problem("", prompt, reference), completion)


def _pairs(pairs: Iterable[Asked]) -> list[tuple[Problem, str]]:
    return [
        (Problem(str(index), prompt[0] if prompt else "", reference), completion)
        for index, (reference, completion, *prompt) in enumerate(pairs)
    ]


def verify_math_batch(
    pairs: Iterable[Asked], *, workers: int = 2, timeout: float = 5.0, **options: Any
) -> list[Verdict]:
    """Return the verdicts on (reference, completion) or (reference, completion, prompt), in order.

    Long answers go to a pool of `workers` processes, with `timeout` seconds for each.
    """
    from rlvr.verifiers.runner import Runner

    with Runner(MathVerifier(**options), workers=workers, timeout=timeout) as runner:
        return runner.verify(_pairs(pairs))


async def verify_math_async(
    pairs: Iterable[Asked], *, workers: int = 2, timeout: float = 5.0, **options: Any
) -> list[Verdict]:
    """Return what `verify_math_batch` does, without blocking the event loop."""
    from rlvr.verifiers.runner import Runner

    with Runner(MathVerifier(**options), workers=workers, timeout=timeout) as runner:
        return await runner.averify(_pairs(pairs))
