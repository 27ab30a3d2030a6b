"""Answers that repeat their prompt, or leave its arithmetic undone: a table, and the prompts of data sets."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from rlvr.core.registry import make_task
from rlvr.core.types import Problem
from rlvr.verifiers.math import MathVerifier, verify_math
from tests.helpers.files import DataSets, lines
from tests.helpers.rewritings import REWRITINGS

LENIENT, BOXED, EVALUATED = MathVerifier(extract="lenient"), MathVerifier(), MathVerifier(unevaluated="reject")


# --- expressions of prompts -------------------------------------------------------------------------------------------

_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SEPARATOR = re.compile(r"=|\\le(?:q)?\b|\\ge(?:q)?\b|<|>|,|\\\\|&|\\text\{[^}]*\}|;")
_BRACKET = re.compile(r"[\[({|]([^\[\](){}|]+)[\])}|]")
_ARITHMETIC = re.compile(r"[-+]?[\d(][\d\s+*/^().,=%$x×÷\-:]*[\d)%]")
_OPERATION = re.compile(
    r"[-+*/^=×÷]|\b(?:sum|difference|product|quotient|average|half|twice|double|triple|times|plus|minus|divided|root"
    r"|squared|cubed|third|quarter|percent|less|more|total|of)\b"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
LONGEST = 9  # words of a phrase


def phrases(prompt: str) -> Iterator[str]:
    """Yield pieces of a text with a number and an operation in them."""
    words = prompt.split()
    for size in range(2, LONGEST + 1):
        for start in range(len(words) - size + 1):
            phrase = " ".join(words[start : start + size])
            if _NUMBER.search(phrase) and _OPERATION.search(phrase):
                yield phrase


def expressions(prompt: str, *, in_words: bool) -> list[str]:
    """Return formulas with their parts, arithmetic, and with `in_words` phrases: found without the verifier's help."""
    found: list[str] = []
    for match in _FORMULA.finditer(prompt):
        formula = next(group for group in match.groups() if group is not None)
        found += [formula, *_SEPARATOR.split(formula), *_BRACKET.findall(formula)]
    found += _ARITHMETIC.findall(prompt)
    found += phrases(prompt) if in_words else ()
    return list(dict.fromkeys(text for item in found if (text := item.strip().strip(".,;:?"))))


def says(text: str, gold: str) -> bool:
    """Whether a piece of a prompt says the gold itself: the same text, the same choice, or the only number in it."""
    if choice := re.fullmatch(r"\\text\{\(([A-J])\)\}", gold):
        return re.search(rf"(?<![A-Za-z]){choice[1]}(?![A-Za-z])", text.upper()) is not None
    bare = gold.replace("\\text", "").strip("$(){} ")
    numbers = {float(number) for number in _NUMBER.findall(text.replace(",", ""))}
    return (
        gold in text
        or text.strip("$(){} ").lower() == bare.lower()
        or (_is_number(bare) and numbers == {abs(float(bare))})
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(?:\.\d+)?", text) is not None


def find_repeated(problems: list[tuple[str, str]], *, in_words: bool) -> list[tuple[str, str, str]]:
    """Return prompt, gold and the expression of the prompt, where it is accepted as the answer."""
    return [
        (prompt, gold, text)
        for prompt, gold in problems
        for text in expressions(prompt, in_words=in_words)
        if not says(text, gold)
        and (
            BOXED.without_deadline(Problem("", prompt, gold), f"\\boxed{{{text}}}").correct
            or LENIENT.without_deadline(Problem("", prompt, gold), text).correct
        )
    ]


PHRASES = [False, pytest.param(True, marks=pytest.mark.survey)]


@pytest.mark.parametrize("in_words", PHRASES)
def test_prompts_of_math500_are_no_answers(in_words: bool, rlvr_data: DataSets):
    """No formula, part of a formula or phrase of a prompt is an answer, unless it is the gold."""
    rows = lines(rlvr_data("math500/test.jsonl"))
    assert find_repeated([(row["prompt"], row["answer"]) for row in rows], in_words=in_words) == []


@pytest.mark.parametrize("part", ["test", "train"])
@pytest.mark.parametrize("in_words", PHRASES)
def test_prompts_of_gsm8k_are_no_answers(part: str, in_words: bool, rlvr_data: DataSets):
    """Nor is one of a word problem."""
    rows = lines(rlvr_data(f"gsm8k/{part}.jsonl"))[: 1_500 if in_words else None]
    problems = [(row["question"], row["answer"].rsplit("####", 1)[1].strip().replace(",", "")) for row in rows]
    assert find_repeated(problems, in_words=in_words) == []


@pytest.mark.parametrize("pack", ["arithmetic", "bilingual_sums", "private_sums", "secret_sums", "higher_lower"])
def test_prompts_of_generated_packs_are_no_answers(pack: str):
    """Nor is the sum that a generated prompt asks for."""
    task = make_task(pack)
    problems = [
        (problem.prompt, str(problem.reference))
        for problem in (*task.train[:100], *task.test[:100])
        if isinstance(problem.prompt, str) and isinstance(problem.reference, (str, int))
    ]
    assert problems
    assert find_repeated(problems, in_words=True) == []


def test_golds_are_answers_to_their_prompts(rlvr_data: DataSets):
    """What is written as the gold is evaluated and no repetition, in all its forms, though it stands in the prompt."""
    wrong = []
    for row in lines(rlvr_data("math500/test.jsonl")):
        gold, own = row["answer"], row["prompt"]
        for name, rewrite in REWRITINGS.items():
            for prompt, judge in ((own, BOXED), (f"Is it ${gold}$? {own}", BOXED), (own, EVALUATED)):
                if not judge.without_deadline(Problem("", prompt, gold), f"\\boxed{{{rewrite(gold)}}}").correct:
                    wrong.append((name, gold, prompt[:60], judge.unevaluated))
    assert wrong == []


def test_real_completions_with_their_prompts(rlvr_data: DataSets):
    """Verdicts on completions of a model are the same with the prompts at hand."""
    rows = lines(rlvr_data("math_completions.jsonl"))
    differing = [
        (row["question"], row["answer"], row["completion"][-80:])
        for row in rows
        if BOXED.without_deadline(Problem("", row["question"], row["answer"]), row["completion"]).correct
        is not verify_math(row["answer"], row["completion"]).correct
    ]
    assert differing == []


def test_messages():
    """Of a conversation, what the user says is the prompt."""
    prompt = [{"role": "system", "content": "57 - 1 is not 55."}, {"role": "user", "content": "How much is 60 - 4?"}]
    problem = Problem("", prompt, "56")
    assert BOXED(problem, "\\boxed{57-1}").correct
    assert BOXED(problem, "\\boxed{60-4}").status == "no_answer"
