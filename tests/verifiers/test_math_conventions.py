"""Conventions of fields and of answers in several parts: a table of right and wrong answers."""

from __future__ import annotations

import pytest

from rlvr.core.types import Problem
from rlvr.verifiers.math import MathVerifier, verify_math
from tests.helpers.files import GOLDEN, lines
from tests.helpers.timing import processor_time
from tests.helpers.verifiers import holds

CONVENTIONS = lines(GOLDEN / "math_conventions.jsonl")


@pytest.mark.parametrize("category", sorted({row["category"] for row in CONVENTIONS}))
def test_conventions(category):
    """Each kind of answer is compared as what it means; what is near it is refused."""
    rows = [row for row in CONVENTIONS if row["category"] == category]
    assert [row for row in rows if holds(row["gold"], row["answer"]) is not row["expected"]] == []
    assert {row["expected"] for row in rows} == {True, False}


REJECTED = [
    r"\boxed{5} est faux.",
    r"\boxed{5} ist falsch.",
    r"\boxed{5} 是错误的",
    r"\boxed{5} es incorrecto.",
    r"Ответ \boxed{5} неверен.",
    r"答えは \boxed{5} ではない。",
    r"답은 \boxed{5}가 아닙니다.",
    r"It's false that the answer is \boxed{5}.",
    r"\boxed{5} \neq answer",
    r"$\neg\boxed{5}$",
    r"\cancel{\boxed{5}} 6",
    r"<!-- \boxed{5} --> 6",
    "% \\boxed{5}\n6",
    "\\boxed{5}\n\nHmm, let me recheck: it should be 6 instead.",
    r"\boxed{5} (but I'm not sure; could be 6)",
    r"Do not answer \boxed{5}.",
    r"The final answer is \boxed{6}. The reference: \boxed{5}? No.",
    r"\boxed{5} million",
    r"1\boxed{5}",
    r"\boxed{5}0",
    r"$\boxed{5}x$",
]


@pytest.mark.parametrize("completion", REJECTED)
def test_boxes_rejected_by_what_is_beside_them(completion):
    """In other languages, by signs, struck out, in comments; or the box is a part of the answer only."""
    assert not verify_math("5", completion).correct


@pytest.mark.parametrize(
    "completion", [r"\boxed{5} is correct.", r"5\% of 100 is $\boxed{5}$.", r"Step 2: $\boxed{5}$"]
)
def test_boxes_beside_other_words_count(completion):
    """Words that do not reject a box change nothing."""
    assert verify_math("5", completion).correct


SLOW = [
    (r"\lceil \cosh(x)\rceil", r"\lceil\cosh(x)+0\rceil"),
    (r"\lfloor \sinh x \rfloor \lceil \cosh y \rceil", r"\lfloor \sinh x \rfloor \lceil \cosh(-y) \rceil"),
    (r"\sum_{k=1}^{1000} \frac{1}{k!}", r"\sum_{j=1}^{999} \frac{1}{j!}+\frac{1}{1000!}"),
    (r"|x|", r"|x|+0\cdot(\max(" + ",".join(f"x^{k}y^{k}z" for k in range(60)) + "))"),
]


@pytest.mark.parametrize(("gold", "answer"), SLOW)
def test_the_caller_is_not_kept(gold, answer):
    """What takes long is left to the worker pool, which can be killed."""
    verifier, problem = MathVerifier(), Problem("1", "", gold)
    verifier.fast_path(problem, r"\boxed{\lfloor x \rfloor + \sin x}")
    with processor_time() as taken:
        verifier.fast_path(problem, f"\\boxed{{{answer}}}")
    assert taken.seconds < 2
