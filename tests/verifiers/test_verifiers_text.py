"""The verifiers of text: exact, choice, regex, length, repetition, format."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from rlvr.commands.verifier_runners import with_extraction
from rlvr.core.registry import VERIFIERS, make_verifier
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Problem, Status, Verdict
from rlvr.verifiers import verify_math
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import verify_one


def verdict(name: str, reference: object, completion: str, **options: object) -> Verdict:
    return make_verifier(name, **options)(Problem("1", "", reference), completion)


@pytest.mark.parametrize(
    ("reference", "completion", "options", "right"),
    [
        ("Paris", "Paris", {}, True),
        ("Paris", "  paris.\n", {}, True),
        ("New  York", "new york", {}, True),
        ("Paris", "London", {}, False),
        ("Paris", "Paris or London", {}, False),
        ("Paris", "paris", {"case": True}, False),
        ("Paris", "Paris ", {"strip": False}, False),
        ("wait...", "wait..", {}, False),
        ("Paris", "<think>London, Rome</think>\nParis", {}, True),
        ("Paris", "It is old.\nParis", {"extract": "last_line"}, True),
        ("Paris", "It is old.\nParis", {}, False),
        ("Paris", "So the answer is Paris.", {"extract": "marked"}, True),
        ("Paris", r"\boxed{Paris}", {"extract": "strict"}, True),
        (["Paris", "Lutetia"], "lutetia", {}, True),
        (18, "18", {}, True),
        ("ﬁne", "fine", {}, True),
        ("Straße", "STRASSE", {}, True),
    ],
)
def test_exact(reference, completion, options, right):
    """Text equals text, after white space, case and Unicode form unless told otherwise."""
    assert verdict("exact", reference, completion, **options).correct is right


def test_exact_without_an_answer():
    """Nothing said, or thinking that never ends, is no answer."""
    assert verdict("exact", "x", " \n").status is Status.NO_ANSWER
    assert verdict("exact", "x", "<think>x").status is Status.NO_ANSWER
    assert verdict("exact", "x", "x", extract="strict").status is Status.NO_ANSWER


LISTLESS = {"instruction_id_list": None, "numbers": float("nan"), "target": None, "type": None}


@pytest.mark.parametrize("reference", [None, True, {"a": 1}, [], ["a", None]])
def test_exact_references(reference):
    """Text, a number, or a list of them."""
    with pytest.raises(ValueError, match="expected"):
        make_verifier("exact").check_reference(reference)
    assert verdict("exact", reference, "a").status is Status.BAD_REFERENCE


@pytest.mark.parametrize(
    "completion",
    [
        "B",
        "(B)",
        "B.",
        "The answer is (B)",
        "The answer is B.",
        "The correct answer is **B**",
        "the answer is b",
        r"\boxed{B}",
        r"\boxed{\text{B}}",
        r"\boxed{\textbf{(B)}}",
        r"$\boxed{\mathrm{B}}$",
        "Answer: B",
        "Answer: (B) Paris",
        "The answer is B) Paris",
        "The answer is B: Paris",
        "The answer is option B",
        "The answer is B because A is too small.",
        "The answer is B since C is odd and D or even A is too large.",
        "The answer is B) vitamin C",
        "I think about A first.\nThen about C.\n\nB",
        "Long reasoning about A, C and D.\n(B) Paris",
        "<think>The answer is C</think>The answer is B.",
        "The answer is A. No, wait: I forgot a sign. The answer is B.",
        "<answer>B</answer>",
        "最终答案是 B",
    ],
)
def test_choice_reads_the_letter(completion):
    """However the answer is dressed."""
    found = verdict("choice", "B", completion)
    assert (found.status, found.extracted) == (Status.CORRECT, "B")


@pytest.mark.parametrize(
    "completion",
    [
        "The answer is B or C",
        "The answer is either B or C.",
        "The answer is A, B",
        r"\boxed{A} or \boxed{B}",
        r"\boxed{B, C}",
        "The answer is B and C",
        "The answer is not B",
        "The answer is maybe B",
        "The answer is (B) or (C)",
        "The answer is A/B/C/D",
        "Answer: ABCD",
        "The answer is (B) Paris (C) London",
        "The answer is C",
        "The answer is Berlin",
        "A B C D",
        "B\nC",
        "",
        "I do not know",
        "B <think>B",
        "A man has a plan, B",
        r"\boxed{}",
    ],
)
def test_choice_is_not_fooled(completion):
    """Hedges, lists and letters in passing do not count."""
    assert not verdict("choice", "B", completion).correct


def test_choice_statuses():
    """A hedge is wrong; text without a letter cannot be read; silence is no answer."""
    assert verdict("choice", "B", "The answer is B or C").reason == "hedged"
    assert verdict("choice", "B", "The answer is Berlin").status is Status.UNPARSEABLE
    assert verdict("choice", "B", "no idea at all").status is Status.NO_ANSWER
    assert verdict("choice", "B", r"\boxed{A} is wrong, so \boxed{B}", conflict="reject").status is Status.NO_ANSWER


def test_choice_of_several_letters():
    """All of them and no more, in any order."""
    for reference in ("AC", ["A", "C"], "A, C"):
        assert verdict("choice", reference, "The answer is A and C").correct
        assert verdict("choice", reference, r"\boxed{CA}").correct
        assert not verdict("choice", reference, "The answer is A").correct
        assert not verdict("choice", reference, "The answer is A, B, C").correct
        assert not verdict("choice", reference, "The answer is A or C").correct


@pytest.mark.parametrize("reference", [1, None, "", "Paris", [], "B2"])
def test_choice_references(reference):
    """Letters only."""
    with pytest.raises(ValueError, match="letter"):
        make_verifier("choice").check_reference(reference)


@pytest.mark.parametrize(
    ("pattern", "completion", "options", "right"),
    [
        (r"\d{4}", "2024", {}, True),
        (r"\d{4}", "in 2024", {}, False),
        (r"\d{4}", "in 2024", {"match": "search"}, True),
        (r"(?i)yes", "YES", {}, True),
        (r"^b$", "a\nb", {"match": "search"}, False),
        (r"(?m)^b$", "a\nb", {"match": "search"}, True),
        (r"(?s)a.b", "a\nb", {}, True),
        (r"\d+", "The answer is 18.", {"extract": "marked"}, True),
    ],
)
def test_regex(pattern, completion, options, right):
    """The pattern is the reference, or the option."""
    assert verdict("regex", pattern, completion, **options).correct is right
    assert verdict("regex", None, completion, pattern=pattern, **options).correct is right


def test_a_catastrophic_pattern_is_a_timeout():
    """Exponential matching costs its deadline, not the run."""
    problems = [(Problem("1", "", "(a+)+b"), "a" * 40), (Problem("2", "", "a+b"), "aab")]
    with Runner(make_verifier("regex"), timeout=1.0) as runner:
        assert [v.status for v in runner.verify(problems)] == [Status.TIMEOUT, Status.CORRECT]


def test_a_broken_pattern_is_found_early():
    """As an option when the verifier is made, as a reference when the data is loaded."""
    with pytest.raises(ValueError, match="'\\(a' is not a regular expression"):
        make_verifier("regex", pattern="(a")
    with pytest.raises(ValueError, match="not a regular expression"):
        make_verifier("regex").check_reference("(a")
    assert verdict("regex", "(a", "a").status is Status.BAD_REFERENCE
    assert verdict("regex", 3, "a").status is Status.BAD_REFERENCE
    assert VerifierTraits.of(make_verifier("regex")).isolate


@pytest.mark.parametrize(
    ("completion", "options", "score"),
    [
        ("one two three", {"max": 3}, 1),
        ("one two three", {"max": 2}, 0),
        ("one two three", {"max": 2, "graded": True}, 0.5),
        ("one two three four", {"max": 2, "graded": True}, 0),
        ("one", {"min": 4, "graded": True}, 0.25),
        ("one", {"min": 4}, 0),
        ("", {"min": 4, "graded": True}, 0),
        ("abcd", {"min": 4, "max": 4, "unit": "characters"}, 1),
        ("a\n\nb\n", {"max": 2, "unit": "lines"}, 1),
    ],
)
def test_length(completion, options, score):
    """Within the bounds 1; outside 0, or as far off as it is."""
    assert verdict("length", None, completion, **options).score == score


@pytest.mark.parametrize("options", [{"min": -1}, {"max": 0}, {"min": 5, "max": 4}])
def test_length_bounds(options):
    """Bounds that nothing can meet are refused."""
    with pytest.raises(ValueError, match="expected 0 <= min <= max"):
        make_verifier("length", **options)


def test_repetition():
    """ "a b a b a b" has four 2-grams... five, two of them different: 1 - 3/5 stay."""
    found = verdict("repetition", None, "a b a b a b", n=2)
    assert found.score == pytest.approx(0.4)
    assert found.parts == pytest.approx({"repeated": 0.6})
    assert verdict("repetition", None, "A b a B a b", n=2, penalty=2).score == pytest.approx(-0.2)
    assert verdict("repetition", None, "all words differ here").correct
    assert verdict("repetition", None, "too short").correct
    assert verdict("repetition", None, "").correct


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("<think>a</think><answer>b</answer>", True),
        ("\n<think>\na\n</think>\n\n<answer>\nb\n</answer>\n", True),
        ("<think>a</think><answer>b</answer> done", False),
        ("So: <think>a</think><answer>b</answer>", False),
        ("<think>a</think> so <answer>b</answer>", False),
        ("<think> </think><answer>b</answer>", False),
        ("<think>a</think><answer></answer>", False),
        ("<answer>b</answer><think>a</think>", False),
        ("<think>a</think><answer>b</answer><answer>b</answer>", False),
        ("<think>a<think></think><answer>b</answer>", False),
        ("<think>a<answer>b</answer></think>", False),
        ("<think>a</think>b", False),
        ("a</think><answer>b</answer>", False),
        ("</think>a<think><answer>b</answer>", False),
        ("", False),
    ],
)
def test_format(completion, right):
    """Each tag once, in order, not empty, and nothing around."""
    assert verdict("format", None, completion).correct is right


def test_format_options():
    """Other tags, and a prompt that ends with the opening one."""
    assert verdict("format", None, "<plan>a</plan><code>b</code>", tags="plan,code").correct
    assert verdict("format", None, "a</think><answer>b</answer>", opened=True).correct
    assert not verdict("format", None, "<think>a</think><answer>b</answer>", opened=True).correct
    assert verdict("format", None, "<think>a</think><answer> b </answer>").extracted == "b"
    with pytest.raises(ValueError, match="expected different names"):
        make_verifier("format", tags="a,a")
    with pytest.raises(ValueError, match="expected different names"):
        make_verifier("format", tags="<a>")


NAN = float("nan")


@pytest.mark.parametrize("reference", [NAN, np.float32("nan"), Decimal("nan")])
@pytest.mark.parametrize("name", ["math", "exact"])
def test_a_missing_value_is_no_reference(name, reference):
    """A table gives NaN where a cell is empty: the data's fault, in a verdict and when the data is loaded."""
    found = verdict(name, reference, "The answer is \\boxed{nan}")
    assert (found.status, found.score) == (Status.BAD_REFERENCE, None)
    assert "NaN" in found.reason
    with pytest.raises(ValueError, match="NaN, which tables hold for a missing value"):
        make_verifier(name).check_reference(reference)


@pytest.mark.parametrize("reference", [3, 3.0, np.int64(3), np.float32(3), Decimal(3), Fraction(3), "\ufeff3"])
def test_numbers_of_every_kind_are_references(reference):
    """Those of numpy, as a table gives them, decimals and fractions; a byte order mark belongs to no text."""
    assert verdict("math", reference, "\\boxed{3}").correct
    assert verdict("exact", reference, "3" if "." not in str(reference) else "3.0").correct


@pytest.mark.parametrize("reference", [None, True, np.bool_(True), b"3", {}, np.array([3, 4]), [["3"]], LISTLESS])
@pytest.mark.parametrize("name", ["math", "exact", "choice", "regex", "countdown", "instructions", "unit_tests"])
def test_what_is_no_reference_is_a_bad_reference(name, reference):
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
def test_a_byte_order_mark_is_no_part_of_a_text(name, options, reference, completion):
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
        ("regex", {"match": "start"}, "match 'start'"),
        ("combine", {"parts": ("exact",), "reduce": "max"}, "reduce 'max'"),
    ],
)
def test_options_that_are_no_choice(name, options, message):
    """From Python too, where no command line has checked them: a clear error and not another behaviour."""
    with pytest.raises(ValueError, match=message):
        VERIFIERS.get(name)(**options)


def test_verify_math_checks_its_options():
    """As it is called in a notebook."""
    with pytest.raises(ValueError, match="extract 'foo': expected strict, marked or lenient"):
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
