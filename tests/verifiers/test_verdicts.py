"""Verdicts of the verifiers of text and of structured answers: golden/verdicts.jsonl, and what is no row of a table.

A row holds `verifier`, `options`, `reference`, `completion` and `status`; some also `score`, `extracted`, or a part of
the `reason`.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rlvr.commands.verifier_runners import with_extraction
from rlvr.core.registry import VERIFIERS, make_verifier
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Problem, Status, Verdict
from rlvr.verifiers import verify_math
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import verify_one
from rlvr.verifiers.smt import z3_program
from tests.helpers.files import GOLDEN

ROWS = [json.loads(line) for line in (GOLDEN / "verdicts.jsonl").read_text("utf-8").split("\n") if line]
NO_SOLVER = ("bad_reference", "unparseable", "no_answer")  # verdicts of `smt` that z3 has no part in


def verdict(name: str, reference: object, completion: str, **options: object) -> Verdict:
    return make_verifier(name, **options)(Problem("1", "", reference), completion)


def matches(row: dict[str, Any]) -> bool:
    """Whether a row has the verdict that it names."""
    found = verdict(row["verifier"], row["reference"], row["completion"], **row.get("options", {}))
    return (
        found.status == row["status"]
        and row.get("reason", "") in found.reason
        and found.extracted == row.get("extracted", found.extracted)
        and found.score == pytest.approx(row.get("score", found.score))
    )


@pytest.mark.parametrize("name", sorted({row["verifier"] for row in ROWS}))
def test_verdicts(name: str) -> None:
    """Each row has its verdict; where z3 is missing, only those that need no solver."""
    rows = [row for row in ROWS if row["verifier"] == name]
    if name == "smt" and z3_program() is None:
        rows = [row for row in rows if row["status"] in NO_SOLVER and "nosuch" not in str(row["reference"])]
    assert [row for row in rows if not matches(row)] == []


LONG = [
    ("json_schema", {"type": "object"}, "[" * 200_000, Status.LIMIT),
    ("json_schema", {"type": "object"}, "9" * 1_000_001, Status.LIMIT),
    ("json_schema", {"a": {1, 2}}, "1", Status.BAD_REFERENCE),
    ("countdown", {"numbers": [1, 2, 3, 4], "target": 24}, r"\boxed{" + "1+" * 2000 + "1}", Status.LIMIT),
    (
        "identities",
        {"identities": {"Ella": "knight"}},
        "CONCLUSION:\n" + "Ella is a knight\n" * 5000,
        Status.UNPARSEABLE,
    ),
]


@pytest.mark.parametrize(("name", "reference", "completion", "status"), LONG, ids=range(len(LONG)))
def test_long_answers(name: str, reference: object, completion: str, status: Status) -> None:
    assert verdict(name, reference, completion).status is status


def test_schemas_never_reach_the_network() -> None:
    """What a schema refers to must stand in it."""
    start = time.monotonic()
    found = verdict("json_schema", {"$ref": "http://192.0.2.1/schema.json"}, "1")
    assert found.status is Status.BAD_REFERENCE
    assert "192.0.2.1" in found.reason
    assert time.monotonic() - start < 10  # a connection would be tried for minutes


@pytest.mark.parametrize(
    ("name", "reference", "hangs", "right"),
    [
        ("regex", "(a+)+b", "a" * 40, "aab"),
        ("json_schema", {"type": "string", "pattern": "^(a+)+$"}, f'"{"a" * 40}!"', '"aa"'),
    ],
)
def test_a_catastrophic_pattern_is_a_timeout(name: str, reference: object, hangs: str, right: str) -> None:
    """Exponential matching costs its deadline, not the run."""
    problem = Problem("1", "", reference)
    with Runner(make_verifier(name), timeout=1.0) as runner:
        found = runner.verify([(problem, hangs), (Problem("2", "", "a+b" if name == "regex" else reference), right)])
    assert [v.status for v in found] == [Status.TIMEOUT, Status.CORRECT]


@pytest.mark.parametrize(
    ("name", "references", "message"),
    [
        ("exact", [None, True, {"a": 1}, [], ["a", None]], "expected"),
        ("choice", [1, None, "", "Paris", [], "B2"], "letter"),
        ("regex", ["(a", 3], "regular expression"),
        ("json_schema", [None, 3, "{", {"type": "nothing"}, "[1]", {"a": {1, 2}}], "schema"),
        ("countdown", [None, "24", {"numbers": [1, 2]}, {"numbers": [1, True], "target": 3}], "number"),
        ("smt", [1, "", "(check-sat)", "(declare-fun f (Int) Int)"], "reference|function"),
    ],
)
def test_references_that_cannot_be_used(name: str, references: list[object], message: str) -> None:
    """They are found when the data is loaded."""
    for reference in references:
        with pytest.raises(ValueError, match=message):
            make_verifier(name).check_reference(reference)


NAN = float("nan")
LISTLESS = {"instruction_id_list": None, "numbers": NAN, "target": None, "type": None}


@pytest.mark.parametrize("reference", [NAN, np.float32("nan"), Decimal("nan")])
@pytest.mark.parametrize("name", ["math", "exact"])
def test_a_missing_value_is_no_reference(name: str, reference: object) -> None:
    """A table gives NaN where a cell is empty: the data's fault, in a verdict and when the data is loaded."""
    found = verdict(name, reference, "The answer is \\boxed{nan}")
    assert (found.status, found.score) == (Status.BAD_REFERENCE, None)
    assert "NaN" in found.reason
    with pytest.raises(ValueError, match="NaN, which tables hold for a missing value"):
        make_verifier(name).check_reference(reference)


@pytest.mark.parametrize("reference", [3, 3.0, np.int64(3), np.float32(3), Decimal(3), Fraction(3), "\ufeff3"])
def test_numbers_of_every_kind_are_references(reference: object) -> None:
    """Those of numpy, as a table gives them, decimals and fractions; a byte order mark belongs to no text."""
    assert verdict("math", reference, "\\boxed{3}").correct
    assert verdict("exact", reference, "3" if "." not in str(reference) else "3.0").correct


@pytest.mark.parametrize("reference", [None, True, np.bool_(True), b"3", {}, np.array([3, 4]), [["3"]], LISTLESS])
@pytest.mark.parametrize("name", ["math", "exact", "choice", "regex", "countdown", "instructions", "unit_tests"])
def test_what_is_no_reference_is_a_bad_reference(name: str, reference: object) -> None:
    """Never an exception of the verifier, whatever the data holds."""
    assert verify_one(make_verifier(name), Problem("1", "", reference), "3").status is Status.BAD_REFERENCE


@pytest.mark.parametrize(
    ("name", "options", "reference", "completion"),
    [
        ("exact", {}, "yes", "yes"),
        ("exact", {}, ["no", "yes"], "<think>hm</think>yes"),
        ("choice", {}, "B", "B"),
        ("regex", {}, "y.s", "yes"),
        ("json_schema", {}, {"type": "object"}, "{}"),
        ("format", {}, None, "<think>a</think><answer>b</answer>"),
        ("math", {"extract": "strict"}, "3", "\\boxed{3}"),
    ],
)
def test_a_byte_order_mark_is_no_part_of_a_text(name, options, reference, completion) -> None:
    """Some editors put one at the beginning of a file, and so of its first field."""
    marked = "\ufeff" + reference if isinstance(reference, str) else reference
    assert verdict(name, reference, "\ufeff" + completion, **options).correct
    assert verdict(name, marked, completion, **options).correct


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("math", {"extract": "foo"}, "extract 'foo': expected strict, marked or lenient"),
        ("math", {"conflict": "foo"}, "conflict 'foo': expected last or reject"),
        ("math", {"units": None}, "units None: expected convert or ignore"),
        ("math", {"digits": 0}, "digits 0: expected a number of at least 1"),
        ("math", {"rel_tol": -0.1}, "rel_tol -0.1: expected a number of at least 0"),
        ("exact", {"extract": "boxed"}, "extract 'boxed': expected all, last_line, marked or strict"),
        ("choice", {"conflict": "first"}, "conflict 'first'"),
        ("countdown", {"use": "twice"}, "use 'twice'"),
        ("length", {"unit": "tokens"}, "unit 'tokens'"),
        ("length", {"min": -1}, "expected 0 <= min <= max"),
        ("length", {"max": 0}, "expected 0 <= min <= max"),
        ("length", {"min": 5, "max": 4}, "expected 0 <= min <= max"),
        ("regex", {"match": "start"}, "match 'start'"),
        ("regex", {"pattern": "(a"}, "'\\(a' is not a regular expression"),
        ("format", {"tags": ("a", "a")}, "expected different names"),
        ("format", {"tags": ("<a>",)}, "expected different names"),
        ("combine", {"parts": ("exact",), "reduce": "max"}, "reduce 'max'"),
    ],
)
def test_options_out_of_bounds(name, options, message) -> None:
    """From Python too, where no command line has checked them: a clear error and not another behaviour."""
    with pytest.raises(ValueError, match=message):
        VERIFIERS.get(name)(**options)
    if options == {"extract": "foo"}:
        with pytest.raises(ValueError, match=message):
            verify_math("4", "it is 4", extract="foo")


@dataclass
class Demanding:
    """A verifier of one's own that means something else by `extract`."""

    extract: str = "first"

    def __post_init__(self) -> None:
        if self.extract != "first":
            raise ValueError(f"extract {self.extract!r}")

    def __call__(self, problem: Problem, completion: str) -> bool:
        return True


def test_a_second_form_is_made_of_verifiers_that_have_it() -> None:
    """math has a lenient and a strict form; none is made of what lacks the mode, or reads the text and no boxes."""
    forms = {"math": ["lenient", "strict"], "regex": [], "exact": [], "choice": [], "countdown": []}
    marked = with_extraction(make_verifier("exact", extract="marked"), "strict")
    assert marked is not None
    assert marked.extract == "strict"
    assert with_extraction(make_verifier("regex", extract="last_line"), "strict") is None
    for name, wanted in forms.items():
        made = [with_extraction(make_verifier(name), mode) for mode in ("lenient", "strict")]
        assert [form.extract for form in made if form is not None] == wanted, name
    assert with_extraction(make_verifier("regex", extract="strict"), "strict") is None
    assert with_extraction(Demanding(), "strict") is None
    assert VerifierTraits.of(make_verifier("regex")).isolate
