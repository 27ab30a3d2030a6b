"""Templates of which no token ends a turn (GLM-4): the token that the model ends with begins the next message."""

from __future__ import annotations

from random import Random

import pytest

from rlvr.config import ModelConfig
from rlvr.core.types import Reply
from rlvr.model.load.policy import load_policy
from rlvr.model.load.tiny import tiny_model
from rlvr.model.text.chat_turns import append_only, reply_ids
from tests.helpers.chat_templates import chat_tokenizer

OBSERVED = {"tool": "<|observation|>", "user": "<|user|>"}
WORDS = ["the answer", " is", "12", "\n", "\n\n", "é", "{", "<", "|", "```"]
PROVED = ("glm4", "glm4_0414")


def words(rng: Random) -> str:
    """Return a random text that is not empty."""
    return f"a{''.join(rng.choice(WORDS) for _ in range(rng.randrange(8)))}b"


@pytest.mark.parametrize("family", PROVED)
def test_conversations_are_what_the_template_renders(family):
    """Token for token: 150 conversations, with turns that were cut and ended ones, of the user and of tools."""
    tokenizer, rng = chat_tokenizer(family), Random(family)

    def encoded(messages, ask):
        whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
        return list(tokenizer(whole, add_special_tokens=False).input_ids)

    for _ in range(150):
        messages = [{"role": "user", "content": words(rng)}]
        ids = encoded(messages, ask=True)
        for _ in range(rng.randint(1, 4)):
            role, turn, said = rng.choice(("tool", "user")), words(rng), words(rng)
            # The model writes the line's end behind its role.
            ids += tokenizer(f"\n{turn}", add_special_tokens=False).input_ids
            ended = tokenizer.convert_tokens_to_ids(OBSERVED[role]) if rng.random() < 0.7 else None
            ids += [] if ended is None else [ended]
            ids += reply_ids(tokenizer, chat=True, ended=ended, reply=Reply(said, role=role))
            called = "observation" if role == "tool" else role
            messages += [{"role": "assistant", "content": turn}, {"role": called, "content": said}]
        assert ids == encoded(messages, ask=True)


@pytest.mark.parametrize("family", PROVED)
def test_the_reply_is_in_the_message_that_the_model_began(family):
    """Whatever its role; behind another token that ends a turn a message of its own role begins."""
    tokenizer = chat_tokenizer(family)
    for role in OBSERVED:
        for begun in OBSERVED.values():
            ended = tokenizer.convert_tokens_to_ids(begun)
            ids = [ended, *reply_ids(tokenizer, chat=True, ended=ended, reply=Reply("7", role=role))]
            assert tokenizer.decode(ids) == f"{begun}\n7<|assistant|>"
        ids = reply_ids(tokenizer, chat=True, ended=tokenizer.eos_token_id, reply=Reply("7", role=role))
        assert tokenizer.decode(ids) == f"{OBSERVED[role]}\n7<|assistant|>"


@pytest.mark.parametrize("family", PROVED)
def test_they_are_proved_with_messages_that_they_leave_out(family):
    """Empty text changes nothing that was said."""
    assert append_only(chat_tokenizer(family)) == ""


def test_one_that_rewrites_thoughts_is_refused_in_one_line():
    """With its name."""
    said = append_only(chat_tokenizer("glm4.5"))
    assert said.startswith("the chat template of tiny/glm4.5 cannot be used for several turns: ")
    assert "\n" not in said


def test_a_role_that_is_written_as_text_is_refused():
    """No token says who speaks."""
    tokenizer = chat_tokenizer.__wrapped__("glm4")
    tokenizer.chat_template = tokenizer.chat_template.replace("item['role'] +", "'new_' + item['role'] +")
    assert "it writes <|new_" in append_only(tokenizer)


def test_a_policy_ends_turns_with_all_of_them(tmp_path):
    """As its generation config says; the replies of a rollout follow."""
    tokenizer = chat_tokenizer("glm4_0414")
    model = tiny_model(tokenizer, seed=0)
    names = ("<|endoftext|>", "<|user|>", "<|observation|>")
    model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(name) for name in names]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    policy = load_policy(ModelConfig(name=str(tmp_path), device="cpu"))
    policy.check_turns()
    assert {*model.generation_config.eos_token_id} <= policy.eos_ids
    for name in names[1:]:
        ended = tokenizer.convert_tokens_to_ids(name)
        assert policy.decode(policy.encode_reply(Reply("7"), ended=ended), special=True) == "\n7<|assistant|>"
