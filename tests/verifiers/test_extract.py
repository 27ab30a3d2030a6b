"""Where the answer stands in a completion."""

from __future__ import annotations

import pytest

from rlvr.verifiers.extract import after_thinking, boxes, extract, is_placeholder, last_boxes
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
    assert [box.text for box in last_boxes(text)][-1:] == contents[-1:]


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


@pytest.mark.parametrize("text", ["", "?", "...", "answer", "your answer", "___", "\\ldots", "n/a"])
def test_placeholders(text):
    """What stands where an answer should be is none."""
    assert is_placeholder(text)


@pytest.mark.parametrize("text", ["0", "x", "\\infty", "\\emptyset", "none"])
def test_no_placeholders(text):
    """Short answers are answers."""
    assert not is_placeholder(text)


FLOODS = [
    "\\boxed{" * 20_000,
    "\\boxed{2}" * 15_000,
    "{" * 100_000 + "\\boxed{2}",
    "}" * 100_000 + "\\boxed{2}",
    "The answer is " * 10_000,
    "the answer to " * 10_000,
    "**" * 50_000,
    "$" * 100_001,
    "\\(" * 50_000,
    "\\[" * 50_000 + "\\]",
    "<think>" * 15_000,
    "</think>" * 15_000,
    "<answer>" * 15_000,
    "#" * 100_000,
    "\n" * 100_000,
    "1" * 100_000,
    "1," * 50_000,
    "\\" * 100_001,
    "答案" * 50_000,
    "\\boxed " * 15_000,
    " " * 100_000,
    "<|" * 50_000 + "a" * 1000,
    "is " * 40_000,
    "a:" * 50_000,
]


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: repr(flood[:12]))
@pytest.mark.parametrize("mode", ["strict", "marked", "lenient"])
def test_floods_take_linear_time(flood, mode):
    """A hundred thousand characters of anything are read in a fraction of a second."""
    with processor_time() as taken:
        extract(flood, mode)
        extract("The answer is " + flood, mode)
    assert taken.seconds < 5
