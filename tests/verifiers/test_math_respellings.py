"""Golds of data sets equal themselves in other spellings, and no other gold."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from rlvr.verifiers.math import verify_math
from tests.helpers.files import GOLDEN, DataSets, lines
from tests.helpers.rewritings import REWRITINGS
from tests.helpers.verifiers import holds


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


@pytest.mark.parametrize("name", sorted(REWRITINGS))
def test_rewritings_never_change_a_verdict(name, golds):
    """Each gold equals its rewriting, which takes the place of the gold as well."""
    failures = []
    for gold in golds:
        rewritten = REWRITINGS[name](gold)
        if not (rewritten == gold or (holds(gold, rewritten) and holds(rewritten, gold))):
            failures.append(json.dumps([gold, rewritten]))
    assert failures == []


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
