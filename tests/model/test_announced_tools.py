"""How prompts tell of an environment's tools: by the chat template where it shows them, else as text."""

from __future__ import annotations

import pytest

from rlvr.environments.tools import tools
from rlvr.model.load.pretrained import use_template
from rlvr.model.text.rendering import Rendering
from tests.helpers.chat_templates import FAMILIES, TEMPLATES, chat_tokenizer


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
