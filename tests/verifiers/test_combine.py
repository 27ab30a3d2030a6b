"""`combine`: weights, gates, options of parts; over learned models aliases, reducers, clipping, whitening."""

from __future__ import annotations

import pytest

from rlvr.core.registry import VERIFIERS, make_verifier
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Problem, Status, Verdict
from rlvr.verifiers.runner import Runner


def verdict(name: str, reference: object, completion: str, **options: object) -> Verdict:
    return make_verifier(name, **options)(Problem("1", "", reference), completion)


MODELS = '''
from rlvr.core.types import Status, Verdict


class Model:
    """A learned model in small: scale times the number that the completion is, plus shift."""

    def __init__(self, *, scale: float = 1.0, shift: float = 0.0) -> None:
        self.scale, self.shift = scale, shift

    def __call__(self, problem, completion):
        return Verdict(Status.PARTIAL, self.scale * float(completion) + self.shift)
'''


@pytest.fixture
def model(tmp_path, monkeypatch) -> str:
    """The name of a verifier whose scores the completion sets."""
    (tmp_path / "scripted_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    return "scripted_models:Model"


class Stepwise:
    """Scores 1, and each half of a completion by itself."""

    isolate = False

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        return Verdict(Status.CORRECT, 1.0, steps=((len(completion) // 2, 0.25), (len(completion), 0.5)))


@pytest.mark.parametrize(
    ("completion", "reduce", "steps"),
    [
        ("aaaa", "sum", ((2, 0.5), (2, -0.25), (4, 1.0), (4, -0.5))),
        ("aaaa", "min", ((2, 0.5), (2, -0.25), (4, 1.0), (4, -0.5))),
        ("bbbb", "sum", ()),
    ],
)
def test_process_rewards_of_parts(completion, reduce, steps, monkeypatch):
    """Each times the weight of its part, in order; behind a closed gate there are none."""
    monkeypatch.setitem(VERIFIERS._entries, "stepwise", Stepwise)
    combine = make_verifier(
        "combine",
        parts="a=stepwise:2,b=stepwise:-1",
        gates="regex",
        options=("regex.pattern=a+",),
        reduce=reduce,
        closed_score=-3.0,
    )
    assert combine(Problem("1", ""), completion).steps == steps


def scores(completions: list[str], **options: object) -> list[float | None]:
    with Runner(make_verifier("combine", **options)) as runner:
        return [verdict.score for verdict in runner.verify([(Problem("1", ""), text) for text in completions])]


# Of the completion 2 the parts give 2, 8 (4 * 2) and 5 (2 + 3).
REDUCED = [
    ("sum", "", (1, 1, 1), 15.0),
    ("sum", "", (1, 0.5, -1), 1.0),
    ("product", "", (1, 1, 1), 80.0),
    ("product", "", (1, 2, 0.5), 2 * 64 * 5**0.5),
    ("min", "", (1, 1, 1), 2.0),
    ("min", "", (5, 1, 1), 5.0),
    ("mean_std", "", (1, 1, 1), 5 - 6**0.5),
    ("mean_std", "0.5", (1, 1, 1), 5 - 0.5 * 6**0.5),
]


@pytest.mark.parametrize(("reduce", "std_coef", "weights", "expected"), REDUCED)
def test_reducers_by_hand(model, reduce, std_coef, weights, expected):
    """Sum, product of powers, minimum, and mean less deviation: 2, 8, 5 have mean 5 and variance (9 + 9 + 0) / 3."""
    parts = ",".join(f"{name}={model}:{weight}" for name, weight in zip("abc", weights))
    found = scores(["2"], parts=parts, options="b.scale=4,c.shift=3", reduce=reduce, std_coef=std_coef)
    assert found == [pytest.approx(expected)]


def test_one_verifier_can_be_several_parts(model):
    """Each under its own name in `parts`, with options of its own."""
    made = make_verifier("combine", parts=f"a={model}:1,b={model}:2", options="b.shift=1", gates=f"c={model}")
    with pytest.raises(ValueError, match="alias=name"):
        make_verifier("combine", parts=f"{model},{model}")
    assert made(Problem("1", ""), "3").parts == {"a": 3.0, "b": 4.0, "c": 3.0}


def test_a_product_of_negative_scores_is_an_error(model):
    """Two bad scores must not make a good one: no score, and a reason that says what to do."""
    with Runner(make_verifier("combine", parts=f"a={model},b={model}", reduce="product")) as runner:
        fine, broken = runner.verify([(Problem("1", ""), "2"), (Problem("1", ""), "-2")])
    assert (fine.score, broken.status, broken.score) == (4.0, Status.ERROR, None)
    assert "clip that part" in broken.reason


def test_clipping_bounds_a_part(model):
    """A part's score stays within low and high; `parts` shows what the part said."""
    made = make_verifier("combine", parts=f"a={model}:10,b={model}", clip="a=-1:1")
    for text, expected in (("5", 15.0), ("0.5", 5.5), ("-7", -17.0)):
        found = made(Problem("1", ""), text)
        assert (found.score, found.parts["a"]) == (expected, float(text))


def test_a_closed_gate_is_never_better_than_an_open_one(model):
    """With a model that scores below 0: closed at the floor, open ones raised to it, and no floor is an error."""
    gated = {"parts": f"a={model}", "gates": "length", "options": "length.max=3,length.unit=characters"}
    texts = ["2", "-2", "-9", "-8.00"]  # the last is too long: its gate is closed
    assert scores(texts, **gated, closed_score="-5") == [2.0, -2.0, -5.0, -5.0]
    assert scores(texts, **gated, clip="a=-5:1", closed_score="-5") == [1.0, -2.0, -5.0, -5.0]
    with Runner(make_verifier("combine", **gated)) as runner:
        open_, below, _, closed = runner.verify([(Problem("1", ""), text) for text in texts])
    assert (open_.score, closed.score) == (2.0, 0.0)
    assert below.status is Status.ERROR
    assert "set closed_score" in below.reason


def test_whitening_is_over_the_whole_batch(model):
    """Scores 1, 1, 5, 5 have mean 3 and deviation 2; each counts as often as it stands in the batch."""
    options = {"parts": f"a={model}:1,b={model}:0.1", "whiten": "a"}
    assert scores(["1", "1", "5", "5"], **options) == pytest.approx([-0.9, -0.9, 1.5, 1.5])
    # 1, 1, 1, 5: mean 2, deviation 3 ** 0.5
    third = 3**-0.5
    assert scores(["1", "1", "1", "5"], **options) == pytest.approx([0.1 - third] * 3 + [0.5 + 3 * third])
    assert scores(["1", "1", "5", "5"], **options, clip="a=-0.5:2")[0] == pytest.approx(-0.4)
    assert scores(["4"], **options) == pytest.approx([0.4])


def test_callers_know_what_must_not_be_cut(model):
    """whole_batch is true of whitened parts, and of a combination that has such a part."""
    plain = make_verifier("combine", parts=model)
    whitened = make_verifier("combine", parts=model, whiten=model)
    outer = make_verifier("combine", parts="combine", options=f"combine.parts={model},combine.whiten={model}")
    assert [made.whole_batch for made in (plain, whitened, outer)] == [False, True, True]
    with Runner(whitened) as runner:
        assert runner.whole_batch


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"parts": "math", "std_coef": 1}, ValueError, "reduce mean_std only"),
        ({"parts": "math:-1", "reduce": "product"}, ValueError, "weights above 0"),
        ({"parts": "math", "reduce": "median"}, ValueError, "expected one of sum, product, min, mean_std"),
        ({"parts": "math", "closed_score": -1}, ValueError, "there are no gates"),
        ({"parts": "math", "gates": "format", "whiten": "math"}, ValueError, "set closed_score"),
        ({"parts": "math", "whiten": "maths"}, LookupError, "'maths' for whiten; did you mean math"),
        ({"parts": "math", "clip": "format=0:1"}, LookupError, "'format' for clip"),
        ({"parts": "math", "clip": "math=1:0"}, ValueError, "low below high"),
        ({"parts": "math", "clip": "math"}, ValueError, "expected part=low:high"),
        ({"parts": "a=:1"}, ValueError, "expected alias=name"),
        ({"parts": ""}, ValueError, "expected different verifiers"),
        ({"parts": "math:1,math:2"}, ValueError, "expected different verifiers"),
        ({"parts": "math:nan"}, ValueError, "finite weight"),
        ({"parts": "mathh:1"}, LookupError, "did you mean math"),
        ({"parts": "math:1", "gates": "formt"}, LookupError, "did you mean format"),
        ({"parts": "math:1", "gates": "format:0.2"}, ValueError, "gate 'format:0.2': a gate has no weight"),
        ({"parts": "math:1", "primary": "format"}, LookupError, "no part 'format' for primary"),
        ({"parts": "math:1", "options": "format.tags=a"}, LookupError, "no part 'format'"),
        ({"parts": "math:1", "options": "math.extrac=strict"}, LookupError, "did you mean extract"),
        ({"parts": "math:1", "options": "extract=strict"}, ValueError, "expected part.option=value"),
    ],
)
def test_settings_that_contradict_each_other(options, error, message):
    """Refused when the verifier is made."""
    with pytest.raises(error, match=message):
        make_verifier("combine", **options)


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
