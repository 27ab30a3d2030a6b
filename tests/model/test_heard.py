"""What an environment hears of a turn: the marks of calls too, where they are special tokens of the tokenizer."""

from __future__ import annotations

from random import Random

import pytest
from tokenizers import AddedToken

from rlvr.environments.tools import tools
from rlvr.environments.tools.calls import read_calls
from rlvr.model.text.rendering import Rendering
from tests.helpers.chat_templates import FAMILIES, chat_tokenizer
from tests.helpers.environments import fenced, hermes

PYTHON = tools("python").made
THOUGHT = "<think>\nI could run this:\n"
SAID = {
    "fenced": fenced("python", "print(1)"),
    "hermes": hermes("python", "print(1)"),
    "llama": "<|python_tag|>print(1)",
}


def rendering_of(family: str, special: tuple[str, ...]) -> Rendering:
    """Return a rendering whose tokenizer has these texts as special tokens too."""
    tokenizer = chat_tokenizer.__wrapped__(family)
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in special], special_tokens=True)
    return Rendering(tokenizer)


def heard(rendering: Rendering, said: str, form: str) -> tuple[str, str]:
    """Return the text that a verifier sees of a turn, and that of the environment."""
    ids = [*rendering.encode(said), rendering.tokenizer.eos_token_id]
    text = rendering.decode(ids[:-1])
    return text, rendering.heard(ids, text, tools("python", calls=form).marks)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", SAID)
@pytest.mark.parametrize("special", [True, False])
def test_calls_are_found_whether_their_marks_are_special_or_not(family, form, special):
    """And what is thought is no call, whose marks may be special as well."""
    marks = tuple(tools("python", calls=form).marks) if special else ()
    rendering = rendering_of(family, marks)
    text, said = heard(rendering, SAID[form], form)
    assert [call.wrong for call in read_calls(said, form, PYTHON)] == [""]
    assert "".join(said.split()) == "".join(SAID[form].split())
    own = {mark for mark in (*marks, "<|python_tag|>") if mark in rendering._special}
    assert text == rendering.decode(rendering.encode(SAID[form]))
    assert not any(mark in text for mark in own)
    _, thought = heard(rendering, THOUGHT + SAID[form], form)
    assert read_calls(thought, form, PYTHON) == []
    _, after = heard(rendering, f"{THOUGHT}</think>{SAID[form]}", form)
    assert [call.wrong for call in read_calls(after, form, PYTHON)] == [""]


@pytest.mark.parametrize("family", FAMILIES)
def test_other_special_tokens_are_left_out_and_text_is_the_same(family):
    """Whatever was sampled, also bytes of unfinished characters: without its marks it is the verifier's text."""
    rendering, rng = rendering_of(family, ("<tool_call>", "</tool_call>", "<other>")), Random(family)
    marks = ("<tool_call>", "</tool_call>")
    numbers = [rendering._special[mark] for mark in marks]
    others = [number for text, number in rendering._special.items() if text not in marks]
    size = len(rendering.tokenizer)
    for _ in range(200):
        ids = [rng.choice((rng.randrange(size), rng.choice(numbers), rng.choice(others))) for _ in range(12)]
        text = rendering.decode(ids)
        said = rendering.heard(ids, text, marks)
        if set(numbers).isdisjoint(ids):
            assert said == text
        assert said.count("<tool_call>") == ids.count(numbers[0])
        assert said.count("</tool_call>") == ids.count(numbers[1])
        assert rendering.heard(ids, text, ()) == text
        shorter = text[: len(text) - 1]
        assert rendering.heard(ids, shorter, ()) == shorter


@pytest.mark.parametrize("form", ["hermes", "llama"])
@pytest.mark.parametrize("stop", ["1)", ")", "print"])
def test_a_turn_that_a_stop_string_ended_is_heard_as_far(form, stop):
    """Its last token may say more than its text."""
    rendering = rendering_of("qwen2", ("<tool_call>", "</tool_call>", "<|python_tag|>"))
    whole = SAID[form].split(stop)[0] + stop
    ids = rendering.encode(whole + "}}")
    text = rendering.decode(rendering.encode(whole))
    assert rendering.heard(ids, text, tools("python", calls=form).marks) == whole
