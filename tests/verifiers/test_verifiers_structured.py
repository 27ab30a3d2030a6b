"""The verifiers of structured answers: json_schema, countdown, combine."""

from __future__ import annotations

import sys
import time

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Problem, Status, Verdict, correct, incorrect
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import verify_one

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PUZZLE = {"numbers": [25, 4, 3, 7], "target": 70}


def verdict(name: str, reference: object, completion: str, **options: object) -> Verdict:
    return make_verifier(name, **options)(Problem("1", "", reference), completion)


@pytest.mark.parametrize(
    ("completion", "status"),
    [
        ('{"name": "Ada", "age": 36}', Status.CORRECT),
        ('<think>{"x": 1}</think>{"name": "Ada", "age": 36}', Status.CORRECT),
        ('Here it is:\n```json\n{"name": "Ada", "age": 36}\n```\nDone.', Status.CORRECT),
        ('```\n{}\n```\nbetter:\n```JSON\n{"name": "Ada", "age": 36}\n```', Status.CORRECT),
        ('{"name": "Ada", "age": -1}', Status.INCORRECT),
        ('{"name": "Ada"}', Status.INCORRECT),
        ('{"name": "Ada", "age": 36, "x": 1}', Status.INCORRECT),
        ('{"name": "Ada", "age": 36.5}', Status.INCORRECT),
        ('{"name": "Ada", "age": 1, "age": 36}', Status.UNPARSEABLE),
        ('{"name": "Ada", "age": NaN}', Status.UNPARSEABLE),
        ("{'name': 'Ada', 'age': 36}", Status.UNPARSEABLE),
        ('The answer: {"name": "Ada", "age": 36}', Status.UNPARSEABLE),
        ("[" * 200_000, Status.LIMIT),
        ("9" * 1_000_001, Status.LIMIT),
        ("", Status.NO_ANSWER),
    ],
)
def test_json_schema(completion, status):
    """The whole text or the last fenced block, as strict JSON, against the schema."""
    assert verdict("json_schema", PERSON, completion).status is status


def test_json_schema_says_what_is_wrong():
    """The place in the document and the rule."""
    assert verdict("json_schema", PERSON, '{"name": "Ada", "age": -1}').reason.startswith("at $.age: -1 is less than")


def test_json_schema_as_option_and_as_text():
    """A schema may be JSON text; formats are checked unless switched off."""
    dated = '{"type": "string", "format": "date"}'
    assert verdict("json_schema", dated, '"2024-02-29"').correct
    assert not verdict("json_schema", dated, '"2023-02-29"').correct
    assert verdict("json_schema", None, '"2023-02-29"', schema=dated, formats=False).correct


@pytest.mark.parametrize("schema", [None, 3, "{", {"type": "nothing"}, "[1]", {"a": {1, 2}}])
def test_bad_schemas(schema):
    """Found when the data is loaded."""
    with pytest.raises(ValueError, match="schema"):
        make_verifier("json_schema").check_reference(schema)
    assert verdict("json_schema", schema, "1").status is Status.BAD_REFERENCE


def test_schemas_never_reach_the_network():
    """What a schema refers to must stand in it."""
    start = time.monotonic()
    found = verdict("json_schema", {"$ref": "http://192.0.2.1/schema.json"}, "1")
    assert found.status is Status.BAD_REFERENCE
    assert "192.0.2.1" in found.reason
    assert time.monotonic() - start < 10  # a connection would be tried for minutes


def test_a_catastrophic_schema_pattern_is_a_timeout():
    """A pattern keyword is a regular expression of the data's author, and a completion can be made for it."""
    problem = Problem("1", "", {"type": "string", "pattern": "^(a+)+$"})
    with Runner(make_verifier("json_schema"), timeout=1.0) as runner:
        hung, fine = runner.verify([(problem, f'"{"a" * 40}!"'), (problem, '"aa"')])
    assert (hung.status, fine.status) == (Status.TIMEOUT, Status.CORRECT)


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        (r"\boxed{25 * 4 - 3 * 7}", "equals 79, not 70"),
        (r"\boxed{(3 + 7) * (25 - 4) / 3}", "uses 3, which is not given"),
        (r"\boxed{(25 + 3 + 7) * 2}", "uses 2, which is not given"),
        (r"\boxed{(25 - 4) * 3 + 7}", None),
        (r"\boxed{(25 - 4) / 3 * 7}", "equals 49, not 70"),
        (r"\boxed{25 * 4 - 30}", "uses 30, which is not given"),
        (r"\boxed{(7 + 3) * 7}", "uses 7, which is not given"),
        (r"\boxed{7 * (3 + 4)}", "does not use 25"),
        (r"\boxed{25 / (4 - 4) - 3}", "division by zero"),
    ],
)
def test_countdown_says_why(completion, reason):
    """(25 - 4) * 3 + 7 is 70; the rest are near misses."""
    found = verdict("countdown", PUZZLE, completion)
    assert (found.correct, found.reason) == (reason is None, reason or "")


FOUR = {"numbers": [1, 2, 3, 4], "target": 24}


@pytest.mark.parametrize(
    "completion",
    [
        r"\boxed{1 * 2 * 3 * 4}",
        r"\boxed{4 \times 3 \times 2 \times 1}",
        r"\boxed{(1 + 2 + 3) \cdot 4 = 24}",
        r"$$\boxed{\left(1+2+3\right)\times 4}$$",
        r"\boxed{\frac{4 \cdot 3}{1} \cdot 2}",
        r"\boxed{4 × 3 × 2 ÷ 1}",
        "<think>1+2+3+4 = 10, no</think><answer>(1 + 3) * (4 + 2)</answer>",
        "The answer is (1 + 2 + 3) * 4.",
        "Let me try.\n4 * (1 + 2 + 3) = 24",
        "2 * 3 * 4 / 1",
        "-(-1 * 2) * 3 * 4",
    ],
)
def test_countdown_right(completion):
    """Boxes, tags, LaTeX, signs, "= target" behind."""
    found = verdict("countdown", FOUR, completion)
    assert found.correct, found


@pytest.mark.parametrize(
    ("completion", "status"),
    [
        (r"\boxed{2 * 3 * 4}", Status.INCORRECT),
        (r"\boxed{1 + 2 + 3 + 4}", Status.INCORRECT),
        (r"\boxed{24}", Status.INCORRECT),
        (r"\boxed{12 * (3 - 4 / 4)}", Status.INCORRECT),
        (r"\boxed{1 * 2 * 3 * 4 / 1}", Status.INCORRECT),
        (r"\boxed{1 / (2 - 2) + 3 * 4}", Status.INCORRECT),
        (r"\boxed{1 * 2 * 3 * 4 = 25}", Status.UNPARSEABLE),
        (r"\boxed{24 = 1 * 2 * 3 * 4}", Status.INCORRECT),
        (r"\boxed{4 ** 2 + 1 * 3}", Status.UNPARSEABLE),
        (r"\boxed{2 (3) (4) 1}", Status.UNPARSEABLE),
        (r"\boxed{4! * 1}", Status.UNPARSEABLE),
        (r"\boxed{__import__('os').system('true')}", Status.UNPARSEABLE),
        (r"\boxed{(1 * 2 * 3 * 4}", Status.UNPARSEABLE),
        (r"\boxed{1 * 2 * 3 * 4)}", Status.UNPARSEABLE),
        (r"\boxed{}", Status.UNPARSEABLE),
        ("", Status.NO_ANSWER),
        ("I cannot do it", Status.UNPARSEABLE),
        (r"\boxed{" + "(" * 400 + "1" + ")" * 400 + "}", Status.LIMIT),
        (r"\boxed{" + "-" * 400 + "1" + "}", Status.LIMIT),
        (r"\boxed{" + "1+" * 2000 + "1" + "}", Status.LIMIT),
        (r"\boxed{" + "9" * 500 + "}", Status.LIMIT),
        (r"\boxed{１ * ２ * ３ * ４}", Status.UNPARSEABLE),
    ],
)
def test_countdown_wrong(completion, status):
    """Other numbers, other operations, other text."""
    assert verdict("countdown", FOUR, completion).status is status


def test_countdown_is_exact():
    """8 / (3 - 8 / 3) is 24; in floating point it is not."""
    assert verdict("countdown", {"numbers": [3, 3, 8, 8], "target": 24}, r"\boxed{8 / (3 - 8 / 3)}").correct
    assert verdict("countdown", {"numbers": [0.1, 0.2], "target": 0.3}, r"\boxed{0.1 + 0.2}").correct


def test_countdown_at_most_once():
    """Numbers may be left over, not used twice."""
    assert verdict("countdown", FOUR, r"\boxed{2 * 3 * 4}", use="at_most_once").correct
    assert not verdict("countdown", FOUR, r"\boxed{2 * 3 * 2 * 2}", use="at_most_once").correct


@pytest.mark.parametrize(
    "reference",
    [
        None,
        "24",
        {"numbers": [1, 2]},
        {"numbers": [], "target": 3},
        {"numbers": 5, "target": 3},
        {"numbers": [1, "x"], "target": 3},
        {"numbers": [1, True], "target": 3},
        {"numbers": [1, 2], "target": "1/0"},
    ],
)
def test_countdown_references(reference):
    """Numbers and a target."""
    with pytest.raises(ValueError, match="number"):
        make_verifier("countdown").check_reference(reference)
    assert verdict("countdown", reference, "1").status is Status.BAD_REFERENCE


def test_combine_adds_weighted_scores():
    """1 * (18 is right) + 0.2 * (the format is not)."""
    parts = "math:1,format:0.2"
    found = verdict("combine", "18", r"\boxed{18}", parts=parts)
    assert (found.status, found.score, found.parts) == (Status.CORRECT, 1.0, {"math": 1.0, "format": 0.0})
    both = verdict("combine", "18", r"<think>so</think><answer>18</answer>", parts=parts)
    assert (both.status, both.score) == (Status.CORRECT, 1.2)
    wrong = verdict("combine", "18", r"<think>so</think><answer>17</answer>", parts=parts)
    assert (wrong.status, wrong.score, wrong.extracted) == (Status.INCORRECT, 0.2, "17")


def test_combine_gates():
    """A closed gate takes the whole score; pass@k still reads the primary part."""
    shut = verdict("combine", "18", r"\boxed{18}", parts="math", gates="format")
    assert (shut.status, shut.score) == (Status.CORRECT, 0.0)
    assert "gate format is closed" in shut.reason
    assert verdict("combine", "18", "<think>x</think><answer>18</answer>", parts="math", gates="format").score == 1.0


def test_combine_options_primary_and_negative_weights():
    """Parts take options of their own; a weight may punish."""
    made = make_verifier(
        "combine", parts="length:-0.5,exact:1", options="length.max=2,exact.case=true", primary="exact"
    )
    found = made(Problem("1", "", "Yes sir"), "Yes sir")
    assert (found.status, found.score) == (Status.CORRECT, 0.5)
    assert made(Problem("1", "", "Yes sir"), "yes sir").status is Status.INCORRECT


def test_combine_cannot_score_what_a_part_cannot():
    """A bad reference or an error of one part is one of the whole, never a 0."""
    found = verdict("combine", ["18", "19"], "x", parts="exact:1,math:1")
    assert (found.status, found.score) == (Status.BAD_REFERENCE, None)
    assert found.reason.startswith("math: ")
    with pytest.raises(ValueError, match="the reference is a list"):
        make_verifier("combine", parts="exact,math").check_reference(["18", "19"])


def test_combine_references_by_part():
    """Parts that need different references get them by name."""
    made = make_verifier("combine", parts="math:1,instructions:1", references="by_part")
    reference = {"math": "18", "instructions": [{"id": "punctuation:no_comma"}]}
    made.check_reference(reference)
    assert made(Problem("1", "", reference), r"\boxed{18}").score == 2.0
    assert made(Problem("1", "", {"math": "18"}), r"\boxed{18}").status is Status.BAD_REFERENCE


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"parts": ""}, ValueError, "expected different verifiers"),
        ({"parts": "math:1,math:2"}, ValueError, "expected different verifiers"),
        ({"parts": "math:nan"}, ValueError, "finite weight"),
        ({"parts": "mathh:1"}, LookupError, "did you mean math"),
        ({"parts": "math:1", "gates": "formt"}, LookupError, "did you mean format"),
        ({"parts": "math:1", "primary": "format"}, LookupError, "no part 'format' for primary"),
        ({"parts": "math:1", "options": "format.tags=a"}, LookupError, "no part 'format'"),
        ({"parts": "math:1", "options": "math.extrac=strict"}, LookupError, "did you mean extract"),
        ({"parts": "math:1", "options": "extract=strict"}, ValueError, "expected part.option=value"),
    ],
)
def test_combine_settings(options, error, message):
    """Every name is checked when the verifier is made."""
    with pytest.raises(error, match=message):
        make_verifier("combine", **options)


USER = """
import os
from rlvr.core.types import correct
class Hanging:
    isolate = True
    def __call__(self, problem, completion):
        while completion == "hang":
            pass
        return correct(str(os.getpid()))
class Batch:
    def __call__(self, problem, completion):
        raise AssertionError("verify_batch is to be used")
    def verify_batch(self, pairs):
        return [correct(str(len(pairs))) for _ in pairs]
def plain(problem, completion):
    if completion == "raise":
        raise KeyError("gone")
    return correct(str(os.getpid()))
"""


def test_combine_runs_each_part_in_its_own_way(tmp_path, monkeypatch):
    """Isolated parts in the pool, batches as one, plain ones in the caller; a hang and an exception hit one item."""
    (tmp_path / "combined_parts.py").write_text(USER)
    monkeypatch.syspath_prepend(tmp_path)
    names = [f"combined_parts:{name}" for name in ("Hanging", "Batch", "plain")]
    verifier = make_verifier("combine", parts=",".join(f"{name}:1" for name in names))
    assert VerifierTraits.of(verifier).isolate
    pairs = [(Problem(str(i), "", ""), c) for i, c in enumerate(["x", "hang", "raise"])]
    with Runner(verifier, timeout=1.0) as runner:
        fine, hung, broken = runner.verify(pairs)
    assert (fine.status, fine.score) == (Status.CORRECT, 3.0)
    assert (hung.status, hung.score) == (Status.TIMEOUT, 2.0)
    assert (broken.status, broken.score) == (Status.ERROR, None)
    assert hung.seconds >= 1.0
    del sys.modules["combined_parts"]


def test_an_exception_in_a_part_is_an_error_of_the_whole():
    """Also where nothing but `verify_one` runs it."""
    verifier = make_verifier("combine", parts="exact:1,length:1")
    object.__setattr__(verifier, "components", {"exact": lambda p, c: 1 / 0, "length": lambda p, c: True})
    assert verify_one(verifier, Problem("1", "", ""), "").status is Status.ERROR


def test_merge_keeps_the_primary_status():
    """A timeout of the answer's part is a timeout of the whole, whatever the others say."""
    verifier = make_verifier("combine", parts="math:1,format:0.5")
    merged = verifier.merge({"math": Verdict(Status.TIMEOUT, 0.0), "format": correct()})
    assert (merged.status, merged.score) == (Status.TIMEOUT, 0.5)
    assert verifier.merge({"math": correct(), "format": incorrect()}).correct
