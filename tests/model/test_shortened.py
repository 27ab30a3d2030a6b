"""Replies that are too long: their payload is cut, and the marks around it stay."""

from __future__ import annotations

import re
from random import Random

import pytest

from rlvr.core.types import Problem
from rlvr.environments.tools import tool, tools
from rlvr.environments.tools.calls import shown, written
from rlvr.model.text.rendering import Rendering, shorten
from tests.helpers.chat_templates import FAMILIES, chat_tokenizer
from tests.helpers.environments import conversation, fenced, hermes, llama

FORMS = ("fenced", "hermes", "llama")
NOTE = re.compile(r"\n\[(\d+) more characters\]\n")
# Bytes that are left of a reply where nothing fits: the marks of one result, a note, and one for all behind it.
SHORTEST = 15 + 2 * len("\n[10000 more characters]\n")
PIECES = ["12", " the ", "\n", "\n\n", "```", "<tool_response>", "</tool_call>", "é漢", "<|im_end|>", "x" * 60, "]"]


def texts(rng: Random) -> list[str]:
    """Return results of tools as they are shown: some empty, some long, some that spell marks."""
    return [
        shown("".join(rng.choice(PIECES) for _ in range(rng.choice((0, 1, 5, 80)))), 2000)
        for _ in range(rng.randint(1, 5))
    ]


def left_out(text: str) -> int:
    """Return the characters that the notes of a reply speak of."""
    return sum(int(number) for number in NOTE.findall(text))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", FORMS)
def test_whatever_is_cut_the_marks_stay_whole(family, form):
    """Blocks that are opened are closed, numbers of results stay, and notes tell of all that is missing."""
    rendering, rng = Rendering(chat_tokenizer(family)), Random(f"{family}/{form}")
    cut = 0
    for _ in range(40):
        results, tokens = texts(rng), rng.choice((4, 40, 150, 400))
        whole, payload = written(results, form)
        assert [whole[start:end] for start, end in payload] == results
        short = rendering.shortened(whole, tokens, payload)
        size = len(rendering.encode_literally(short))
        if len(rendering.encode_literally(whole)) > tokens:
            cut += 1
            if form == "fenced":
                lines = short.split("\n")
                number = lines.count("```output")
                assert lines.count("```") == number >= 1
                marks = 15 * number
            else:
                numbers = re.findall(r"^\[\d\] ", short, re.MULTILINE)
                assert len(numbers) >= 1 or len(payload) == 1
                marks = len("\n".join(numbers))
            assert size <= max(tokens, SHORTEST)
            assert len(NOTE.sub("", short)) + left_out(short) == sum(map(len, results)) + marks
        else:
            assert short == whole
    assert cut > 5


def test_by_hand():
    """A token is a character: of 55, fifteen are marks and a note of 22 leaves 18."""
    text = "```output\n" + "a" * 50 + "\n```\n"
    short = shorten(text, 55, [(10, 60)], lambda part, tokens: len(part) <= tokens)
    assert short == "```output\n" + "a" * 18 + "\n[32 more characters]\n\n```\n"
    assert len(short) == 55
    assert shorten(text, 65, [(10, 60)], lambda part, tokens: len(part) <= tokens) == text
    assert shorten("b" * 30, 10, (), lambda part, tokens: len(part) <= tokens) == f"{'b' * 10}\n[20 more characters]\n"


def test_several_results_are_cut_alike_and_short_ones_stay():
    """What a short one leaves goes to the long ones; where not even notes fit, the last ones are left out."""
    whole, payload = written(["a" * 300, "7", "b" * 300], "fenced")
    short = shorten(whole, 200, payload, lambda part, tokens: len(part) <= tokens)
    assert short.count("a") - short.count("characters") * 2 == short.count("b")
    assert "```output\n7\n```\n" in short
    assert 190 < len(short) <= 200
    few = shorten(whole, 60, payload, lambda part, tokens: len(part) <= tokens)
    assert few.startswith("```output\n")
    assert few.count("```output") == few.count("\n```\n") == 1
    assert "[301 more characters]" in few


@tool
def flood(code: str) -> str:
    """Say much."""
    return f"{code}\n" * 500


@pytest.mark.parametrize("form", FORMS)
def test_tools_tell_what_of_their_replies_may_be_cut(form):
    """Every result, in order, of every format."""
    call = {"fenced": fenced, "hermes": hermes, "llama": llama}[form]
    said = call("flood", "12") + ("; " if form == "llama" else "\n") + call("flood", "34")
    [reply], _ = conversation(tools(flood, calls=form), Problem("p", "?", ""), [said])
    assert len(reply.payload) == 2
    assert written([reply.text[start:end] for start, end in reply.payload], form) == (reply.text, reply.payload)
    rendering = Rendering(chat_tokenizer("qwen2.5"))
    short = rendering.shortened(reply.text, 100, reply.payload)
    assert "12" in short
    assert "34" in short
    assert len(NOTE.findall(short)) == 2
