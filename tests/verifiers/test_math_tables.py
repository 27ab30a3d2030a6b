"""Tables of answers: every row of tests/golden/math_*.jsonl, and of the labelled data, has the verdict that it names.

A row has a gold, an answer (boxed) or a whole completion, and what is expected; some have a prompt or options.
"""

from __future__ import annotations

import glob
import itertools
from typing import Any

import pytest

from rlvr.core.types import Verdict
from rlvr.verifiers.math import verify_math
from tests.helpers.files import GOLDEN, ROOT, DataSets, lines
from tests.helpers.machine import processor_time

TABLES = {path.stem.removeprefix("math_"): lines(path) for path in sorted(GOLDEN.glob("math_*.jsonl"))}
RULES = TABLES.pop("rules")
CATEGORIES = sorted({(table, row["category"]) for table, rows in TABLES.items() for row in rows})
ONE_SIDED = ("adversarial", "extraction", "options", "reading", "restating")  # with categories of one verdict


def judge(row: dict[str, Any]) -> Verdict:
    """Return the verdict on a row."""
    completion = row["completion"] if "completion" in row else f"So \\boxed{{{row['answer']}}}"
    options = row.get("options", {}) | ({"extract": row["mode"]} if "mode" in row else {})
    return verify_math(row.get("gold", row.get("reference")), completion, row.get("prompt", ""), **options)


def wrong(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the rows with another verdict than the expected one, and its reason."""
    found = [(row, judge(row)) for row in rows]
    return [(row, verdict.status, verdict.reason) for row, verdict in found if verdict.correct is not row["expected"]]


@pytest.mark.parametrize(("table", "category"), CATEGORIES)
def test_table(table, category):
    """Other forms of the gold are accepted; near misses, hedges, repetitions and what only looks alike are not."""
    rows = [row for row in TABLES[table] if row["category"] == category]
    assert wrong(rows) == []
    if table not in ONE_SIDED:
        assert {row["expected"] for row in rows} == {True, False}
    assert glob.glob("/tmp/rlvr_canary_*") == []


def test_tables_have_right_and_wrong_rows():
    """Each category of readings has a wrong row, and about half of the rows of extraction are right."""
    assert {row["category"] for row in TABLES["reading"] if not row["expected"]} == {
        row["category"] for row in TABLES["reading"]
    }
    assert 0.4 < sum(row["expected"] for row in TABLES["extraction"]) / len(TABLES["extraction"]) < 0.6


def test_repetitions_are_no_answers_without_a_box():
    """Nor is an expression of the prompt an answer where the whole completion is read leniently."""
    rows = [row for row in TABLES["restating"] if not row["expected"]]
    alone = [{**row, "completion": row["answer"], "mode": "lenient"} for row in rows]
    assert wrong(alone) == []


# --- the rules --------------------------------------------------------------------------------------------------------


def render_rules() -> str:
    """Return the rules as tables in Markdown, one a section."""

    def cell(text: str) -> str:
        return text.replace("|", "\\|")

    sections = []
    for name, rows in itertools.groupby(RULES, key=lambda row: row["section"]):
        text = f"### {name}\n\n| gold | answer | verdict | rule |\n|---|---|---|---|\n"
        for row in rows:
            verdict = "right" if row["expected"] else "wrong"
            text += f"| `{cell(row['gold'])}` | `{cell(row['answer'])}` | {verdict} | {cell(row['rule'])} |\n"
        sections.append(text)
    return "\n".join(sections)


def test_rules():
    """The page on the rules shows the rules as the golden rows have them, and they hold."""
    assert wrong(RULES) == []
    assert render_rules() in (ROOT / "docs" / "explained" / "math-rules.md").read_text(encoding="utf-8")


# --- labelled data ----------------------------------------------------------------------------------------------------


def development_cases(rlvr_data: DataSets) -> list[dict[str, Any]]:
    """Return the development data's table; where there is none, our own, whose cases are all firm."""
    path = rlvr_data("math_cases.jsonl")
    return lines(path) if path.exists() else [{"note": "", "debatable": False, **row} for row in TABLES["adversarial"]]


def test_development_cases(rlvr_data):
    """At most one in a hundred firm cases is judged wrongly, no attack is right, and none takes five seconds."""
    failures, cases = [], development_cases(rlvr_data)
    for case in cases:
        with processor_time() as taken:
            verdict = judge(case)
        assert taken.seconds < 5, case["note"]
        if not case["debatable"] and verdict.correct is not case["expected"]:
            failures.append((case, verdict.status, verdict.reason))
    assert len(failures) <= sum(not case["debatable"] for case in cases) / 100, failures
    assert not [case for case, *_ in failures if case["category"] in ("game", "inject", "dos") and not case["expected"]]
    assert glob.glob("/tmp/rlvr_canary_*") == []


@pytest.mark.parametrize(
    ("name", "debatable"),
    [("math_whitebox.jsonl", True), ("math_cases_3.jsonl", False), ("math_cases_2.jsonl", False)],
)
def test_labelled_cases(rlvr_data, name, debatable):
    """Cases that people labelled get the verdict of their label; those without a box are read leniently."""
    if not rlvr_data(name).exists():
        pytest.skip(f"{name} is not there")
    rows = [row for row in lines(rlvr_data(name)) if debatable or not row.get("debatable")]
    for row in rows:
        several = name.startswith("math_whitebox") and row["completion"].count("\\boxed") > 1
        row["options"] = {"conflict": "reject"} if several else {}
        row |= {"mode": "lenient"} if row.get("type") == "unboxed" else {}
    assert wrong(rows) == []


def test_real_completions(rlvr_data):
    """On 400 completions the only differences from the other grader are its own mistakes: 4:30 p.m. is 4:30 p.m."""
    differing = {
        (row["problem"], row["answer"])
        for row in lines(rlvr_data("math_completions.jsonl"))
        if verify_math(row["answer"], row["completion"]).correct is not row["judged"]
    }
    assert differing == {(3, "\\text{4:30 p.m.}")}
