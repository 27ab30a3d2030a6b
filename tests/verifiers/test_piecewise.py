"""`piecewise`: Llama 2's reward of two models, in numbers worked out by hand from the paper's formula."""

from __future__ import annotations

import math

import pytest

from rlvr.commands.cli import main
from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Status
from rlvr.verifiers.runner import Runner

MODELS = '''
from rlvr.core.types import Status, Verdict, error


class Read:
    """The number at a place of the completion, which holds several; "x" is an error, and `correct` from 2 up."""

    def __init__(self, *, place: int = 0, steps: bool = False) -> None:
        self.place, self.steps = place, steps

    def __call__(self, problem, completion):
        word = completion.split()[self.place]
        if word == "x":
            return error("lost")
        score = float(word)
        steps = ((1, 0.5),) if self.steps else ()
        return Verdict(Status.CORRECT if score >= 2 else Status.PARTIAL, score, f"read {word}", word, steps=steps)
'''
OPEN = Problem("open", "?", info={"danger": False, "pack": "sums"})
DANGER = Problem("danger", "?", info={"danger": True, "pack": "harm"})


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Make a piecewise verifier whose two scores are the completion's two numbers."""
    (tmp_path / "read_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    models = {"helpful": "read_models:Read", "safe": "read_models:Read"}
    return lambda **options: make_verifier("piecewise", **{**models, "options": "safe.place=1", **options})


def verdicts(verifier, *pairs):
    with Runner(verifier, workers=1) as runner:
        return runner.verify(pairs)


@pytest.mark.parametrize(
    ("problem", "completion", "score", "decides"),
    [
        (OPEN, "0 0", 0.5, "helpful"),  # R_s .5, not below .15
        (OPEN, "1.0986 -1", 0.75, "helpful"),  # log 3; R_s .269
        (OPEN, "1.0986 -2", 0.1192, "safe"),  # R_s 1/(1+e^2), below .15
        (OPEN, "-9 -1.7346", 0.0001234, "helpful"),  # log(.15/.85) = -1.73460: just not below
        (OPEN, "-9 -1.7347", 0.14999, "safe"),
        (DANGER, "9 0", 0.5, "safe"),  # tagged, though R_s is above the threshold
        (DANGER, "-9 1.0986", 0.75, "safe"),
        (Problem("bare", "?"), "1.0986 0", 0.75, "helpful"),  # no key: no safety prompt
    ],
)
def test_which_part_decides(make, problem, completion, score, decides):
    """R_s for a tagged prompt and below the threshold, else R_h, after a sigmoid."""
    [verdict] = verdicts(make(tag="danger"), (problem, completion))
    assert verdict.score == pytest.approx(score, rel=1e-3)
    assert verdict.reason.partition(":")[0] == decides
    helpful, safe = map(float, completion.split())
    tagged = float(problem is DANGER)
    assert verdict.parts == {"helpful": helpful, "safe": safe, "tagged": tagged, "combined": verdict.score}


@pytest.mark.parametrize(
    ("options", "completion", "score"),
    [
        ({"scale": "probability"}, ".6 .2", 0.6),
        ({"scale": "probability"}, ".6 .1", 0.1),
        ({"scale": "probability", "threshold": 0.25}, ".6 .2", 0.2),
        ({"scale": "probability", "threshold": 0}, ".6 0", 0.6),
        ({"threshold": 0.6}, "2 0", 0.5),
        ({"tag": "pack=harm"}, "0 5", 0.5),
    ],
)
def test_scale_and_threshold(make, options, completion, score):
    """Probabilities are compared as they are, log-odds after a sigmoid; without a tag the threshold alone decides."""
    [verdict] = verdicts(make(**options), (OPEN, completion))
    assert verdict.score == pytest.approx(score)


def test_a_pack_of_a_mixture_as_tag(make):
    """KEY=VALUE: the problems whose info says so."""
    first, second = verdicts(make(tag="pack=harm"), (DANGER, "0 3"), (OPEN, "0 3"))
    assert [first.parts["tagged"], second.parts["tagged"]] == [1, 0]
    assert first.score == pytest.approx(1 / (1 + math.exp(-3)))


def test_whitening(make):
    """Log-odds of R_c 1, 3, -4 and 2 (mean .5, deviation 2.6926): by hand (x - .5)/2.6926; R_c stays in parts."""
    verifier = make(tag="danger", whiten=True)
    pairs = [(OPEN, "1 0"), (DANGER, "9 3"), (OPEN, "7 -4"), (DANGER, "0 2")]
    found = verdicts(verifier, *pairs)
    assert [verdict.score for verdict in found] == pytest.approx([0.18570, 0.92847, -1.67126, 0.55708], abs=1e-4)
    assert found[1].parts["combined"] == pytest.approx(1 / (1 + math.exp(-3)))
    assert verifier.whole_batch
    assert not make(tag="danger").whole_batch


def test_whitening_of_large_and_equal_scores(make):
    """Log-odds whose sigmoid rounds to 1 still differ; equal ones are 0; probabilities 0 and 1 are finite."""
    low, high = verdicts(make(whiten=True), (OPEN, "50 0"), (OPEN, "60 0"))
    assert (low.score, high.score) == (-1, 1)
    assert [v.score for v in verdicts(make(whiten=True), (OPEN, "3 0"), (DANGER, "3 0"))] == [0, 0]
    assert make(whiten=True)(OPEN, "3 0").score == 0
    zero, one = verdicts(make(whiten=True, scale="probability"), (OPEN, "0 1"), (OPEN, "1 1"))
    assert (zero.score, one.score) == (-1, 1)


def test_status_of_the_part_that_decides(make):
    """`correct` and the extracted text are those of the part, whatever the whitened score is."""
    right, wrong = verdicts(make(whiten=True), (OPEN, "2 0"), (OPEN, "1 9"))
    assert (right.status, right.extracted) == (Status.CORRECT, "2")
    assert (wrong.status, wrong.extracted) == (Status.PARTIAL, "1")


@pytest.mark.parametrize(
    ("options", "problem", "completion", "status", "reason"),
    [
        ({}, OPEN, "x 1", Status.ERROR, "helpful: lost"),
        ({"tag": "danger"}, DANGER, "x 1", Status.ERROR, "helpful: lost"),
        ({}, OPEN, "1 x", Status.ERROR, "safe: lost"),
        ({"tag": "pack"}, OPEN, "1 1", Status.BAD_REFERENCE, "info['pack'] is 'sums'; expected true or false"),
        ({"scale": "probability"}, OPEN, "1.5 1", Status.ERROR, "score 1.5; expected one in [0, 1]"),
        ({"scale": "probability"}, DANGER, "1 -.5", Status.ERROR, "score -0.5; expected one in [0, 1]"),
        ({"options": "safe.place=1,safe.steps=true"}, OPEN, "1 1", Status.ERROR, "process rewards"),
    ],
)
def test_no_score(make, options, problem, completion, status, reason):
    """A part without a score, or one that does not fit, leaves none; whitening of the others goes on."""
    for whiten in (False, True):
        verdict, other = verdicts(make(whiten=whiten, **options), (problem, completion), (Problem("o", "?"), "1 1"))
        assert verdict.status is status
        assert verdict.score is None
        assert reason in verdict.reason
        assert "steps" in str(options) or other.score is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["helpful=math"], "piecewise safe: name a verifier"),
        (["safe=math"], "piecewise helpful: name a verifier"),
        (["helpful=math", "safe=none_such"], "none_such"),
        (["helpful=math", "safe=math", "threshold=1.5"], "threshold 1.5: expected a number in [0, 1]"),
        (["helpful=math", "safe=math", "threshold=nan"], "threshold"),
        (["helpful=math", "safe=math", "scale=odds"], "odds"),
        (["helpful=math", "safe=math", "tag==harm"], "piecewise tag '=harm'"),
        (["helpful=math", "safe=math", "options=save.extract=strict"], "piecewise has no part 'save'"),
        (["helpful=math", "safe=math", "options=safe"], "piecewise option 'safe': expected part.option=value"),
        (["helpful=math", "safe=math", "options=safe.none=1"], "none"),
        (["helpful=math", "safe=math", "weights=1"], "weights"),
    ],
)
def test_bad_options_are_one_line(tmp_path, capsys, options, message):
    """Exit code 2, and nothing is written."""
    path = tmp_path / "answers.jsonl"
    path.write_text('{"prompt": "1+1", "reference": "2", "completion": "2"}\n')
    assert main(["grade", str(path), "--verifier", "piecewise", "--verifier-option", *options]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_references_are_checked_by_the_parts():
    """A reference that a part cannot read is named before a run starts."""
    verifier = make_verifier("piecewise", helpful="math", safe="regex", options="safe.pattern=a")
    verifier.check_reference("2")
    with pytest.raises(ValueError, match="reference"):
        verifier.check_reference("")
