"""Prompt and steps as a process reward model's token ids, with a tag behind each step, as its publishers write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rlvr.reward_model.text import Chat, Encoded, check_text, step_ends
from rlvr.types import Prompt


@dataclass(frozen=True)
class Steps(Encoded):
    """Token ids with the positions of the tags. ends: of the steps in the completion, in characters."""

    ends: tuple[int, ...] = ()


class StepRenderer:
    """Turns (prompt, completion) into token ids with a tag behind each step of the completion.

    With a chat template the steps, joined by the tag, are the message of the assistant. Without one they follow the
    prompt, each with " tag" behind it, on lines of their own. What a step spells of tags and special tokens is left
    out: only the renderer says where a step ends, and nobody else speaks. max_tokens 0: no limit.
    """

    def __init__(
        self, tokenizer: Any, *, tag: str, separator: str, system_prompt: str | None, chat: Chat, max_tokens: int
    ) -> None:
        self.tokenizer, self.tag, self.separator = tokenizer, tag, separator
        self.system_prompt, self.max_tokens = system_prompt, max_tokens
        self.chat = chat == "always" or (chat == "auto" and bool(tokenizer.chat_template))
        if self.chat and not tokenizer.chat_template:
            raise ValueError("chat=always, but the model's tokenizer has no chat template; use chat=never")
        self.tag_id = one_token(tokenizer, tag if self.chat else f" {tag}", "tag")
        special = {str(text) for text in (*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()) if str(text)}
        # A tag that is a word may be a part of others.
        word = rf"(?<!\w){re.escape(tag)}(?!\w)" if tag[0].isalnum() else re.escape(tag)
        known = sorted(filter(str.strip, special), key=len, reverse=True)
        self._forged = re.compile("|".join([word, *map(re.escape, known)]))

    def encode(self, prompt: Prompt, completion: str) -> Steps:
        """Return the ids, those of the tags as positions. Of a text that is too long no position, and what is too much.

        Raises ValueError for a prompt in messages without a chat template, text with a lone surrogate, and where the
        tags are not there when the text is encoded.
        """
        check_text(prompt, completion)
        ends, steps = self._steps(completion)
        if not steps:
            return Steps((self.tag_id,), ())
        ids = self._ids(prompt, steps)
        in_prompt = self._ids(prompt, ["x"]).count(self.tag_id) - 1
        if ids.count(self.tag_id) > len(steps) + in_prompt:  # a word that is tokenized as the tag
            everywhere = re.compile(re.escape(self.tag))
            ids = self._ids(prompt, [removed(everywhere, step) for step in steps])
        if self.max_tokens and len(ids) > self.max_tokens:
            return Steps((self.tag_id,), (), len(ids) - self.max_tokens)
        places = [place for place, number in enumerate(ids) if number == self.tag_id][-len(steps) :]
        if len(places) < len(steps):
            raise ValueError(f"the tag {self.tag!r} is not one token behind every step")
        return Steps(tuple(ids), tuple(places), ends=tuple(ends))

    def _steps(self, completion: str) -> tuple[list[int], list[str]]:
        """Return where the steps end, the last at the end of all, and their texts."""
        if not completion.strip():
            return [], []
        ends = [*step_ends(completion, self.separator), len(completion)]
        return ends, [removed(self._forged, completion[start:end]) for start, end in zip([0, *ends], ends)]

    def _ids(self, prompt: Prompt, steps: list[str]) -> list[int]:
        return self._chat_ids(prompt, steps) if self.chat else self._plain_ids(prompt, steps)

    def _chat_ids(self, prompt: Prompt, steps: list[str]) -> list[int]:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if self.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        messages.append({"role": "assistant", "content": "".join(f"{step}{self.tag}" for step in steps)})
        ids = self.tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=False, return_dict=False
        )
        return [int(i) for i in ids]

    def _plain_ids(self, prompt: Prompt, steps: list[str]) -> list[int]:
        if not isinstance(prompt, str):
            raise ValueError("the prompt is a list of messages, and the steps are rendered without a chat template")
        before = prompt if self.system_prompt is None else f"{self.system_prompt}\n\n{prompt}"
        text = f"{before} " + "\n".join(f"{step} {self.tag}" for step in steps)
        return [int(i) for i in self.tokenizer(text).input_ids]


def removed(pattern: re.Pattern[str], text: str) -> str:
    """Return a text without what matches, also where what is left matches again, and without space at its ends."""
    while (found := pattern.sub("", text)) != text:
        text = found
    return text.strip()


def one_token(tokenizer: Any, text: str, option: str) -> int:
    """Return the id of the last token of a text, which must hold all of it but spaces. Raises ValueError where not."""
    ids = tokenizer(text, add_special_tokens=False).input_ids
    said = tokenizer.decode(ids[-1:], skip_special_tokens=False) if ids else ""
    if said.strip() != text.strip() or ids[-1] == tokenizer.unk_token_id:
        raise ValueError(f"{option} {text.strip()!r}: the model's tokenizer has no token for it; name another")
    return int(ids[-1])
