"""The math verifier on tables of cases: ours, the development data, the golds of GSM8K and MATH-500."""

from __future__ import annotations

import asyncio
import glob
import itertools
import pickle
import subprocess
import sys

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Status
from rlvr.verifiers.math import MathVerifier, verify_math, verify_math_async, verify_math_batch
from tests.helpers.files import GOLDEN, DataSets, lines
from tests.helpers.rewritings import REWRITINGS
from tests.helpers.timing import processor_time

ADVERSARIAL = lines(GOLDEN / "math_adversarial.jsonl")


def development_cases(rlvr_data: DataSets) -> list[dict]:
    """Return the development data's table; where there is none, our own, whose cases are all firm."""
    path = rlvr_data("math_cases.jsonl")
    return lines(path) if path.exists() else [{"note": "", "debatable": False, **case} for case in ADVERSARIAL]


def wrong(cases: list[dict]) -> list[tuple]:
    """The cases whose verdict is not the expected one."""
    verdicts = [(case, verify_math(case["gold"], case["completion"])) for case in cases]
    return [
        (case["gold"][:60], case["completion"][-80:], case["expected"], verdict.status, verdict.reason)
        for case, verdict in verdicts
        if verdict.correct is not case["expected"]
    ]


@pytest.mark.parametrize("category", sorted({row["category"] for row in ADVERSARIAL}))
def test_adversarial_cases(category):
    """Equivalent forms are accepted; near misses, hedges, look-alikes, floods and code are not."""
    assert wrong([row for row in ADVERSARIAL if row["category"] == category]) == []
    assert glob.glob("/tmp/rlvr_canary_*") == []


def test_development_cases(rlvr_data):
    """At most one in a hundred firm cases is judged wrongly, none of them a false positive on an attack."""
    cases = [case for case in development_cases(rlvr_data) if not case["debatable"]]
    failures = wrong(cases)
    assert len(failures) <= len(cases) / 100, failures
    attacks = [case for case in cases if case["category"] in ("game", "inject", "dos") and not case["expected"]]
    assert wrong(attacks) == []
    assert glob.glob("/tmp/rlvr_canary_*") == []


def test_development_cases_take_no_time(rlvr_data):
    """No case, whatever it tries, takes five seconds."""
    for case in development_cases(rlvr_data):
        with processor_time() as taken:
            verify_math(case["gold"], case["completion"])
        assert taken.seconds < 5, case["note"]


def test_real_completions(rlvr_data):
    """On 400 completions the only differences from the other grader are its own mistakes: 4:30 p.m. is 4:30 p.m."""
    differing = {
        (row["problem"], row["answer"])
        for row in lines(rlvr_data("math_completions.jsonl"))
        if verify_math(row["answer"], row["completion"]).correct is not row["judged"]
    }
    assert differing == {(3, "\\text{4:30 p.m.}")}


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


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "gold", "completion", "expected"),
    [
        ({"extract": "strict"}, "42", "The answer is 42", False),
        ({"extract": "strict"}, "42", "\\boxed{42}", True),
        ({"extract": "lenient"}, "42", "so we get 6 * 7 = 42", True),
        ({"extract": "lenient"}, "42", "so we get $x = 42$ in the end", True),
        ({}, "42", "so we get 6 * 7 = 42", False),
        ({"conflict": "last"}, "42", "First \\boxed{10}, then \\boxed{42}", True),
        ({"conflict": "reject"}, "42", "First \\boxed{10}, then \\boxed{42}", False),
        ({"conflict": "reject"}, "42", "First \\boxed{42}, again \\boxed{ 42 }", True),
        ({}, "12\\pi", "\\boxed{37.699}", False),
        ({"digits": 5}, "12\\pi", "\\boxed{37.699}", True),
        ({"digits": 5}, "12\\pi", "\\boxed{37.698}", False),
        ({"digits": 3}, "20000", "\\boxed{20001}", False),
        ({"rel_tol": 1e-3}, "\\frac{1}{3}", "\\boxed{0.333}", True),
        ({"rel_tol": 1e-3}, "\\frac{1}{3}", "\\boxed{0.33}", False),
        ({"rel_tol": 1e-3}, "20000", "\\boxed{20001}", False),
        ({"exact_digits": 5}, "12\\pi", "\\boxed{37.699}", True),
        ({}, "5\\text{ cm}", "\\boxed{5\\text{ m}}", False),
        ({"units": "ignore"}, "5\\text{ cm}", "\\boxed{5\\text{ m}}", True),
        ({}, "2024", "\\boxed{2025-1}", True),
        ({"unevaluated": "reject"}, "2024", "\\boxed{2025-1}", False),
        ({"unevaluated": "reject"}, "\\frac{1}{2}", "\\boxed{0.5}", True),
        ({"unevaluated": "reject"}, "x^2-1", "\\boxed{(x-1)(x+1)}", True),
    ],
)
def test_options(options, gold, completion, expected):
    """Each debatable rule is an option."""
    assert verify_math(gold, completion, **options).correct is expected


def test_options_from_the_command_line():
    """Options given as text are converted, and a wrong one is named."""
    assert make_verifier("math", digits="5", extract="strict") == MathVerifier(digits=5, extract="strict")
    with pytest.raises(LookupError, match="did you mean digits"):
        make_verifier("math", digit="5")


@pytest.mark.parametrize(
    ("gold", "completion", "status", "reason"),
    [
        ("5", "\\boxed{5 or 6}", Status.INCORRECT, "2 alternatives, not a number"),
        ("5", "\\boxed{5, 6}", Status.INCORRECT, "2 values, not a number"),
        ("5", "\\boxed{6}", Status.INCORRECT, "6, not 5"),
        ("x^2", "\\boxed{2x}", Status.INCORRECT, "not equal"),
        ("(0,1]", "\\boxed{5}", Status.INCORRECT, "a number, not an interval"),
        ("5", "I think so", Status.NO_ANSWER, "no boxed or marked answer"),
        ("5", "\\boxed{}", Status.NO_ANSWER, "no boxed or marked answer"),
        ("5", "<think>\\boxed{5}", Status.NO_ANSWER, "unterminated <think> block"),
        ("5", "\\boxed{\\text{your answer}}", Status.NO_ANSWER, "placeholder"),
        ("5", "\\boxed{5 (or maybe 6)}", Status.UNPARSEABLE, "'or'"),
        ("5", "\\boxed{" + "(" * 100 + "5" + ")" * 100 + "}", Status.LIMIT, "nested deeper"),
        ("5", "\\boxed{" + "5" * 3000 + "}", Status.LIMIT, "3000 digits"),
        ("5", "\\boxed{9^{9^{9^{9}}}}", Status.LIMIT, "bits"),
        ("", "\\boxed{5}", Status.BAD_REFERENCE, "no answer"),
        (None, "\\boxed{5}", Status.BAD_REFERENCE, "the reference is null"),
    ],
)
def test_the_verdict_says_why(gold, completion, status, reason):
    """Every verdict has its status and a reason that names the cause."""
    verdict = verify_math(gold, completion)
    assert verdict.status is status
    assert reason in verdict.reason


def test_references():
    """A reference may be a number, a solution that ends with ####, or a text with a box."""
    assert verify_math(18, "\\boxed{18}").correct
    assert verify_math(0.5, "\\boxed{\\frac12}").correct
    assert verify_math("She sells 9 eggs. #### 18", "\\boxed{18}").correct
    assert verify_math("Hence $\\boxed{\\frac{1}{2}}$.", "\\boxed{0.5}").correct
    MathVerifier().check_reference("\\text{Evelyn}")
    with pytest.raises(ValueError, match="holds no answer"):
        MathVerifier().check_reference("  ")
    with pytest.raises(ValueError, match="list"):
        MathVerifier().check_reference(["18"])


def test_quick_leaves_long_answers_to_the_pool():
    """What could take longer than milliseconds is not decided in the caller's process."""
    verifier = MathVerifier()
    long = "\\boxed{" + "+".join(["\\sin x"] * 400) + "}"
    assert verifier.fast_path(Problem("", "", "400 \\sin x"), long) is None
    assert verifier(Problem("", "", "400 \\sin x"), long).correct
    quick = verifier.fast_path(Problem("", "", "5"), "\\boxed{5}")
    assert quick is not None
    assert quick.correct


def test_verifier_survives_pickling():
    """A verifier can be sent to a worker process."""
    verifier = MathVerifier(digits=4)
    verifier(Problem("", "", "5"), "\\boxed{5}")
    assert pickle.loads(pickle.dumps(verifier)) == verifier


PAIRS = [("\\frac12", "\\boxed{0.5}"), ("5", "\\boxed{6}"), ("", "\\boxed{6}")]
EXPECTED = [Status.CORRECT, Status.INCORRECT, Status.BAD_REFERENCE]


def test_batch():
    """The batch form keeps the order."""
    assert [verdict.status for verdict in verify_math_batch(PAIRS)] == EXPECTED


def test_async():
    """The async form gives the same verdicts."""
    assert [verdict.status for verdict in asyncio.run(verify_math_async(PAIRS))] == EXPECTED


def test_import_stays_light():
    """Importing the verifier imports neither sympy nor mpmath nor torch."""
    code = "import sys, rlvr.verifiers.math; print([m for m in ('sympy', 'mpmath', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
