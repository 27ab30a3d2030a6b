"""Prompts that tell of an environment's tools, what an environment hears of a turn, and replies that are cut."""

from __future__ import annotations

import re
from random import Random

import pytest
from tokenizers import AddedToken

from rlvr.core.types import Problem
from rlvr.environments.tools import tool, tools
from rlvr.environments.tools.calls import escape_result, join_results, read_calls
from rlvr.model.load.pretrained import use_template
from rlvr.model.text.rendering import Rendering, shorten
from tests.helpers.chat_templates import FAMILIES, TEMPLATES, chat_tokenizer
from tests.helpers.environments import conversation, fence, hermes, llama

PYTHON = tools("python").prepared_tools
THOUGHT = "<think>\nI could run this:\n"
SAID = {
    "fenced": fence("python", "print(1)"),
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
    return text, rendering.add_marks(ids, text, tools("python", calls=form).marks)


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
        said = rendering.add_marks(ids, text, marks)
        if set(numbers).isdisjoint(ids):
            assert said == text
        assert said.count("<tool_call>") == ids.count(numbers[0])
        assert said.count("</tool_call>") == ids.count(numbers[1])
        assert rendering.add_marks(ids, text, ()) == text
        shorter = text[: len(text) - 1]
        assert rendering.add_marks(ids, shorter, ()) == shorter


@pytest.mark.parametrize("form", ["hermes", "llama"])
@pytest.mark.parametrize("stop", ["1)", ")", "print"])
def test_a_turn_that_a_stop_string_ended_is_heard_as_far(form, stop):
    """Its last token may say more than its text."""
    rendering = rendering_of("qwen2", ("<tool_call>", "</tool_call>", "<|python_tag|>"))
    whole = SAID[form].split(stop)[0] + stop
    ids = rendering.encode(whole + "}}")
    text = rendering.decode(rendering.encode(whole))
    assert rendering.add_marks(ids, text, tools("python", calls=form).marks) == whole


# Replies that are too long: their payload is cut, and the marks around it stay.

FORMS = ("fenced", "hermes", "llama")
NOTE = re.compile(r"\n\[(\d+) more characters\]\n")
# Bytes that are left of a reply where nothing fits: the marks of one result, a note, and one for all behind it.
SHORTEST = 15 + 2 * len("\n[10000 more characters]\n")
PIECES = ["12", " the ", "\n", "\n\n", "```", "<tool_response>", "</tool_call>", "é漢", "<|im_end|>", "x" * 60, "]"]


def texts(rng: Random) -> list[str]:
    """Return results of tools as they are shown: some empty, some long, some that spell marks."""
    return [
        escape_result("".join(rng.choice(PIECES) for _ in range(rng.choice((0, 1, 5, 80)))), 2000)
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
        whole, payload = join_results(results, form)
        assert [whole[start:end] for start, end in payload] == results
        short = rendering.shorten_reply(whole, tokens, payload)
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
    whole, payload = join_results(["a" * 300, "7", "b" * 300], "fenced")
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
    call = {"fenced": fence, "hermes": hermes, "llama": llama}[form]
    said = call("flood", "12") + ("; " if form == "llama" else "\n") + call("flood", "34")
    [reply], _ = conversation(tools(flood, calls=form), Problem("p", "?", ""), [said])
    assert len(reply.payload) == 2
    assert join_results([reply.text[start:end] for start, end in reply.payload], form) == (reply.text, reply.payload)
    rendering = Rendering(chat_tokenizer("qwen2.5"))
    short = rendering.shorten_reply(reply.text, 100, reply.payload)
    assert "12" in short
    assert "34" in short
    assert len(NOTE.findall(short)) == 2


# How prompts tell of an environment's tools: by the chat template where it shows them, else as text.


def prompts(rendering):
    """Return the text of a prompt of each kind."""
    asked = ["Ask.", [{"role": "user", "content": "Ask."}]] if rendering.chat else ["Ask."]
    return [rendering.decode(rendering.render(prompt), special=True) for prompt in asked]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["fenced", "hermes", "llama"])
@pytest.mark.parametrize("chat", ["auto", "never"])
def test_every_prompt_tells_of_the_tools_once(family, form, chat):
    """Whatever the template does with tools, and without one."""
    rendering = Rendering(chat_tokenizer(family), chat=chat)
    before = prompts(rendering)
    environment = tools("calculator", calls=form)
    rendering.announce(environment)
    native = chat == "auto" and form != "fenced" and "<tools>" in TEMPLATES[family]
    for text in prompts(rendering):
        assert text.count("Compute an expression") == 1
        assert ('"type": "function"' in text) == native
        assert (environment.announcement in text) == (not native)
    rendering.announce(None)
    assert prompts(rendering) == before


def test_a_system_prompt_comes_first():
    """With chat as a message of its own, without as text."""
    for chat in ("auto", "never"):
        rendering = Rendering(chat_tokenizer("qwen2"), system_prompt="Be brief.", chat=chat)
        rendering.announce(tools("calculator"))
        [text, *_] = prompts(rendering)
        assert text.index("Be brief.") < text.index("You can use these tools") < text.index("Ask.")


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"\xff\xfe", "UTF-8"), (b"  \n", "is empty")])
def test_a_file_that_holds_no_template_is_refused(tmp_path, content, said):
    """In one line that names it."""
    file = tmp_path / "template.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=f"model.chat_template .*template.jinja: .*{said}"):
        use_template(chat_tokenizer("qwen2"), file)


def test_a_template_of_a_file_replaces_one_that_removes_thinking(tmp_path):
    """Then several turns can be played."""
    file, tokenizer = tmp_path / "template.jinja", chat_tokenizer.__wrapped__("qwen3")
    with pytest.raises(ValueError, match="tiny/qwen3 cannot be used for several turns"):
        Rendering(tokenizer).check_turns()
    Rendering(tokenizer, chat="never").check_turns()
    file.write_text(TEMPLATES["qwen3_kept"])
    use_template(tokenizer, None)
    use_template(tokenizer, file)
    Rendering(tokenizer).check_turns()


THINKING = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{{ size }}{% endif %}"
)


def test_variables_of_a_chat_template_are_set_in_every_prompt_and_saved_once(tmp_path) -> None:
    tokenizer = chat_tokenizer.__wrapped__(FAMILIES[0])
    tokenizer.chat_template = THINKING
    use_template(tokenizer, None, ("enable_thinking=false", 'size="{x}"'))
    text = tokenizer.decode(Rendering(tokenizer).render("hi"))
    assert text.replace(" ", "").endswith("[user]hi[assistant]<think></think>{x}")
    tokenizer.chat_template = "{{ size.a }} {{ size.b is none }} {{ size.c[0] is none }}"
    use_template(tokenizer, None, ('size={"a": "nullable", "b": null, "c": [null, 1.5]}',))
    hello = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(hello, tokenize=False) == "nullable True True"
    tokenizer.chat_template = THINKING
    use_template(tokenizer, None, ("enable_thinking=false", 'size="{x}"'))
    tokenizer.save_pretrained(tmp_path)
    again = type(tokenizer).from_pretrained(tmp_path)
    use_template(again, None, ('size="{x}"',))
    assert again.chat_template == tokenizer.chat_template


@pytest.mark.parametrize("option", ["enable_thinking=False", "size=", "size=big"])
def test_a_variable_that_is_no_json_is_told_in_one_line(option: str) -> None:
    tokenizer = chat_tokenizer.__wrapped__(FAMILIES[0])
    with pytest.raises(ValueError, match="expected JSON"):
        use_template(tokenizer, None, (option,))
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        use_template(tokenizer, None, ("size=3",))
