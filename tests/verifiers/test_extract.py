"""Where the answer stands in a completion, and that it is found in linear time."""

from __future__ import annotations

import string

import pytest

from rlvr.core.types import Problem, Status
from rlvr.verifiers import verify_math
from rlvr.verifiers.choice import ChoiceVerifier
from rlvr.verifiers.exact import ExactVerifier
from rlvr.verifiers.extract import MAX_COMPLETION, after_thinking, boxes, extract, is_placeholder
from rlvr.verifiers.json_schema import json_text
from tests.helpers.machine import processor_time


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("a \\boxed{1} b \\boxed{2}", ["1", "2"]),
        ("\\boxed{\\frac{1}{2}}", ["\\frac{1}{2}"]),
        ("\\boxed{\\{1,2\\}}", ["\\{1,2\\}"]),
        ("\\boxed{\\boxed{42}}", ["\\boxed{42}"]),
        ("\\boxed{x = \\boxed{5}}", ["x = \\boxed{5}"]),
        ("\\boxed{1 \\boxed{2}", ["2"]),
        ("\\boxed{1", []),
        ("\\fbox{3} \\framebox[2cm]{4}", ["3", "4"]),
        ("\\boxed 42", ["42"]),
        ("\\boxed\\frac12.", ["\\frac12"]),
        ("\\boxed\n{7}", ["7"]),
        ("} \\boxed{1}", ["1"]),
        ("{ \\boxed{1}", ["1"]),
        ("\\boxed{1} and } more }", ["1"]),
        ("{\\boxed{1}} and } more", ["1"]),
        ("\\\\boxed{1} }", []),
        ("\\unboxed{1}", []),
        ("\\boxedsomething{1}", []),
        ("no box", []),
    ],
)
def test_boxes(text, contents):
    """Complete outermost boxes in order; what is never closed is passed over."""
    assert [box.text for box in boxes(text)] == contents


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),
        ("<think>a</think>b</think>c", "c"),
        ("<think>a", None),
        ("<think>a</think><think>b", None),
        ("a < b", "a < b"),
        ("<|begin_of_thought|>a<|end_of_thought|>b", "b"),
    ],
)
def test_after_thinking(text, rest):
    """What was thought is not answered; thinking that never ends holds no answer."""
    assert after_thinking(text) == rest


@pytest.mark.parametrize(
    ("text", "answer", "how"),
    [
        ("Hence \\boxed{4}. (It is 5 to 1.)", "4", "box"),
        ("\\boxed{1} and \\boxed{2}", "1, 2", "box"),
        ("$\\boxed{1}$ or $\\boxed{2}$", "1 or 2", "box"),
        ("\\boxed{1}, then \\boxed{2}", "2", "box"),
        ("<answer> 42 </answer>", "42", "tag"),
        ("The answer is $\\frac{1}{2}$.", "$\\frac{1}{2}$", "marker"),
        ("**Final Answer:**\n\n$$x = 3$$\nDone.", "x = 3", "marker"),
        ("The answer is 3.5. I am sure.", "3.5", "marker"),
        ("The answer is 42, since 6 * 7 = 42.", "42", "marker"),
        ("#### 1,234", "1,234", "marker"),
        ("答案：6", "6", "marker"),
        ("La respuesta final es 7.", "7", "marker"),
        ("so it must be **12**", "12", "bold"),
        ("it is 12", None, "no boxed or marked answer"),
        ("Put it in \\boxed{}", None, "no boxed or marked answer"),
        ("\\boxed{1} or \\boxed{}", None, "the last box is empty"),
    ],
)
def test_extract(text, answer, how):
    """The last box, else a marked answer, and how it was found."""
    assert extract(text) == (answer, how)


@pytest.mark.parametrize(
    ("text", "answer"),
    [("6 * 7 = 42", "42"), ("we find $x = 42$ at last", "42"), ("about 1,234.5 of them", "1,234.5"), ("", None)],
)
def test_lenient(text, answer):
    """Leniently, the last formula or number is the answer."""
    assert extract(text, "lenient").text == answer


def test_strict_reads_boxes_only():
    """A marked answer is none."""
    assert extract("The answer is 42", "strict").text is None


def test_conflict():
    """Different boxes are no answer when conflicts are rejected; the same box again is no conflict."""
    assert extract("\\boxed{1}, hence \\boxed{2}", conflict="reject").text is None
    assert extract("\\boxed{1}, hence \\boxed{ 1 }", conflict="reject").text == "1"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["", "?", "...", "answer", "your answer", "___", "\\ldots", "n/a"], True),
        (["0", "x", "\\infty", "\\emptyset", "none"], False),
    ],
)
def test_placeholders(texts, expected):
    """What stands where an answer should be is none; short answers are answers."""
    assert {is_placeholder(text) for text in texts} == {expected}


SIZE = 100_000
PIECES = [
    *string.printable,
    *"，。：；！？（）答案是不选故≤−√π∞’“🎉\u200b\u00a0",
    *r"\boxed{ \boxed{} \boxed{2} \fbox[ {} \{ ``` <answer> </answer> <answer>1</answer> <think> </think>".split(),
    *r"answer| ans: A: #### 选A $1$| \(1\) \[ $$ ** **1** 1, 1. sqrt( <| 答案 a: 1,".split(),
    "\\boxed{2} or ", "\\boxed ", "``` ", "answer\n", "Answer | ", "or ", "wait, no, ", "not ", "so ", "is ", "x = ",
    "The answer is ", "The wrong answer is ", "the answer is not 1. ", "the answer to ", "1 is the answer. ", "$1$ ",
    "Option A is correct. ", "1 is wrong ", " and", "** ", "<|a|>",
]  # fmt: skip


@pytest.mark.parametrize("mode", ["strict", "marked", "lenient"])
@pytest.mark.parametrize(
    "frame", ["{}", "The answer is {}", "\\boxed{{1}} {}", "{}\\boxed{{1}}", "The answer is 1. {}."]
)
def test_time_is_linear(mode, frame):
    """A hundred thousand characters of anything are read in a fraction of a second."""
    for piece in PIECES:
        with processor_time() as taken:
            extract(frame.format(piece * (SIZE // len(piece))), mode)
        assert taken.seconds < 3, piece


@pytest.mark.parametrize("depth", [1_000, 40_000])
def test_nested_boxes(depth):
    """The outermost of nested boxes is the answer; unclosed ones hold none."""
    assert extract("\\boxed{" * depth + "2" + "}" * depth).text == "\\boxed{" * (depth - 1) + "2" + "}" * (depth - 1)
    assert extract("\\boxed{" * depth + "2").text is None


def test_fences_take_linear_time():
    """A fence that turns out to be none is read once."""
    with processor_time() as taken:
        json_text("```" + " " * SIZE + "`")
        json_text(("```json" + " " * 100 + "x\n") * 400)
    assert taken.seconds < 5


def test_a_completion_has_a_bounded_length():
    """What is longer is not read, and gets the status limit."""
    text = " " * MAX_COMPLETION + "\\boxed{42}"
    problem = Problem("", "", "A")
    for verdict in (verify_math("42", text), ChoiceVerifier()(problem, text), ExactVerifier()(problem, text)):
        assert verdict.status is Status.LIMIT
        assert f"{len(text)} characters" in verdict.reason
    assert verify_math("42", text[12:]).correct
