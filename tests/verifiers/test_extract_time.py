"""Extraction takes time in proportion to the completion, whatever that repeats, and reads a bounded length."""

from __future__ import annotations

import string

import pytest

from rlvr.core.types import Problem, Status
from rlvr.verifiers import verify_math
from rlvr.verifiers.choice import ChoiceVerifier
from rlvr.verifiers.exact import ExactVerifier
from rlvr.verifiers.extract import MAX_COMPLETION, extract
from rlvr.verifiers.json_schema import json_text
from tests.helpers.machine import processor_time

SIZE = 40_000
ENOUGH = 0.05  # seconds; below it noise decides
PIECES = [
    *string.printable,
    *"，。：；！？（）答案是不选故≤−√π∞’“🎉\u200b\u00a0",
    "\\boxed{",
    "\\boxed{}",
    "\\boxed{2}",
    "\\boxed{2} or ",
    "\\boxed ",
    "\\fbox[",
    "{}",
    "\\{",
    "```",
    "``` ",
    "<answer>",
    "</answer>",
    "<answer>1</answer>",
    "<think>",
    "</think>",
    "<|a|>",
    "The answer is ",
    "The wrong answer is ",
    "the answer is not 1. ",
    "the answer to ",
    "1 is the answer. ",
    "Option A is correct. ",
    "answer\n",
    "Answer | ",
    "ans:",
    "A:",
    "####",
    "选A",
    "or ",
    "wait, no, ",
    "not ",
    "so ",
    "$1$ ",
    "\\(1\\)",
    "\\[",
    "$$",
    "**1**",
    "** ",
    "1 is wrong ",
    "1, ",
    "1.",
    "x = ",
    "sqrt(",
    " and",
]


def seconds(text: str, mode: str) -> float:
    """The least processor time of three."""
    times = []
    for _ in range(3):
        with processor_time() as taken:
            extract(text, mode)  # type: ignore[arg-type]
        times.append(taken.seconds)
    return min(times)


@pytest.mark.parametrize("mode", ["strict", "marked", "lenient"])
@pytest.mark.parametrize(
    "frame", ["{}", "The answer is {}", "\\boxed{{1}} {}", "{}\\boxed{{1}}", "The answer is 1. {}."]
)
def test_time_is_linear(mode, frame):
    """Four times as much of any piece takes less than eight times as long."""
    slow = []
    for piece in PIECES:
        short, long = (frame.format(piece * (size // len(piece))) for size in (SIZE // 4, SIZE))
        taken = seconds(long, mode)
        if taken > ENOUGH and taken > 8 * seconds(short, mode):
            slow.append((piece, taken))
    assert slow == []


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
