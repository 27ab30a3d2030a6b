"""Golds of data sets equal themselves in other spellings, and no other gold."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable

import pytest

from rlvr.verifiers.math import verify_math
from tests.helpers.files import GOLDEN, DataSets, lines
from tests.helpers.rewritings import REWRITINGS
from tests.helpers.verifiers import holds

# --- respellings ------------------------------------------------------------------------------------------------------
_MATHEMATICS = re.compile(r"[\\^_=+*/(){}<>]")
_PIECES = re.compile(
    r"\\(?:text|mathrm|mbox|textbf|operatorname)\s*\{[^{}]*\}|\\(?:begin|end)\s*\{[^{}]*\}(?:\{[^{}]*\})?|\\[A-Za-z]+|\\."
    r"|(?:np|math)\.|\d*\.\d*\\overline\{\d+\}|\d+(?:\.\d+)?(?:(?:,\\!\s*|\\[,! ]|,)\d+)*|\.{3}|\.\d+|[A-Za-z]+|\s+|.",
    re.DOTALL,
)
_WORDS = ("\\text", "\\mathrm", "\\mbox", "\\begin")


def _where_mathematics(make: Callable[[str], str]) -> Callable[[str], str]:
    return lambda gold: make(gold) if _MATHEMATICS.search(gold) else gold


def _without_sides(gold: str) -> str:
    return gold if re.search(r"\\(?:left|right)\.", gold) else re.sub(r"\\(?:left|right)(?![a-z])\s*", "", gold)


RESPELLINGS: dict[str, Callable[[str], str]] = {
    "bare exponents": lambda gold: re.sub(r"([\^_])\{([0-9A-Za-z])\}(?!\d)", r"\1\2", gold),
    "braced exponents": lambda gold: re.sub(r"([\^_])([0-9A-Za-z])", r"\1{\2}", gold),
    **{
        name: lambda gold, name=name: re.sub(r"\\[dtc]?frac(?![a-z])", rf"\\{name}", gold)
        for name in ("frac", "dfrac", "tfrac")
    },
    "spaces between all signs": _where_mathematics(lambda gold: " ".join(_PIECES.findall(gold))),
    "spaces around relations": lambda gold: re.sub(r"(?<=[^\s\\])([+=<>])(?=[^\s])", r" \1 ", gold),
    "thin spaces": lambda gold: re.sub(r"(?<=[0-9)}])([+=<>])", r"\\,\1\\,", gold),
    "no spaces": lambda gold: (
        gold if any(word in gold for word in _WORDS) else re.sub(r"\s*([+=<>^_(){}-])\s*", r"\1", gold)
    ),
    "without left and right": _without_sides,
    "with left and right": lambda gold: (
        gold if "\\left" in gold else gold.replace("(", "\\left(").replace(")", "\\right)")
    ),
    "negative spaces": lambda gold: re.sub(r"(?<=[0-9)}])(?=[+=\-<>])", r"\\!", gold),
    "ties": _where_mathematics(lambda gold: re.sub(r"(?<=[^\\\s]) (?=\S)", "~", gold)),
    "dollar signs": lambda gold: gold if "$" in gold else f"${gold}$",
    "inline delimiters": lambda gold: gold if "$" in gold or "\\(" in gold else f"\\({gold}\\)",
    "display style": lambda gold: f"\\displaystyle {gold}",
    "period": lambda gold: f"{gold}." if gold[-1].isalnum() else gold,
    "doubled backslashes": lambda gold: (
        gold.replace("\\", "\\\\") if re.search(r"\\[a-z]{2}", gold) and "\\{" not in gold else gold
    ),
}


def all_golds(rlvr_data: DataSets) -> list[str]:
    """Return every gold of the data sets and tables that are there, once."""
    golds = [row["gold"] for name in ("math_adversarial", "math_reading") for row in lines(GOLDEN / f"{name}.jsonl")]
    for name, field in (
        ("gsm8k/train", "answer"),
        ("gsm8k/test", "answer"),
        ("math500/test", "answer"),
        ("aime/aime24", "answer"),
        ("svamp/test", "Answer"),
        ("math_cases", "gold"),
        ("math_cases_2", "reference"),
        ("math_completions", "answer"),
    ):
        path = rlvr_data(f"{name}.jsonl")
        golds += [str(row[field]).rsplit("####", 1)[-1].strip() for row in lines(path)] if path.exists() else []
    return list(dict.fromkeys(golds))


@pytest.fixture(scope="module")
def golds(rlvr_data):
    """Golds that are not too large to be read, and whose backslashes are single."""
    return [gold for gold in all_golds(rlvr_data) if 0 < len(gold) <= 400 and not re.search(r"\\\\[A-Za-z]{2}", gold)]


@pytest.mark.parametrize("name", sorted(RESPELLINGS))
def test_respellings_never_change_a_verdict(name, golds):
    """Each gold equals its respelling, which takes the place of the gold as well."""
    failures = []
    for gold in golds:
        respelt = RESPELLINGS[name](gold)
        if not (respelt == gold or (holds(gold, respelt) and holds(respelt, gold))):
            failures.append(json.dumps([gold, respelt]))
    assert failures == []


# --- golds and their rewritings ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(REWRITINGS))
def test_math500_golds_in_other_forms(name, rlvr_data):
    """Each gold of MATH-500 equals itself in every rewriting."""
    golds = [row["answer"] for row in lines(rlvr_data("math500/test.jsonl"))]
    answers = [(gold, REWRITINGS[name](gold)) for gold in golds]
    assert [pair for pair in answers if not verify_math(pair[0], f"So \\boxed{{{pair[1]}}}").correct] == []


def test_gsm8k_golds(rlvr_data):
    """Each solution of GSM8K equals itself, its number, and its number in every rewriting."""
    failures = []
    for row in lines(rlvr_data("gsm8k/test.jsonl")):
        gold = row["answer"]
        number = gold.rsplit("####", 1)[1].strip()
        completions = [gold, f"#### {number}", f"The answer is {number}.", f"The answer is ${number}."]
        completions += [f"So \\boxed{{{rewrite(number.replace(',', ''))}}}" for rewrite in REWRITINGS.values()]
        failures += [(number, text[-60:]) for text in completions if not verify_math(gold, text).correct]
    assert failures == []


# Neighbours that are the same number with and without its unit.
SAME_GOLDS = [("120", "120^\\circ"), ("15", "15\\mbox{ cm}^2"), ("30", "30^\\circ"), ("36", "36^\\circ")]


def test_golds_of_math500_differ(rlvr_data):
    """No gold of MATH-500 is taken for a different number, expression or structure of its neighbours."""
    golds = sorted({row["answer"] for row in lines(rlvr_data("math500/test.jsonl"))})
    same = [(g, a) for g, a in itertools.pairwise(golds) if verify_math(g, f"\\boxed{{{a}}}").correct]
    assert same == SAME_GOLDS
