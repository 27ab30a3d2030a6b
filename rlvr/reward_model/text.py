"""Prompt and completion as the token ids that a reward model reads. Training and scoring render them alike."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from rlvr.core.files.jsonl import check_encodable
from rlvr.core.types import Prompt

Chat = Literal["auto", "always", "never"]
# Tokenizers without a limit report a number like 1e30.
NO_LIMIT = 10**9


@dataclass(frozen=True)
class Encoded:
    """Token ids and the positions that are scored.

    cut: how many tokens the text has too many. ends: where the steps of the completion end, in characters.
    """

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    cut: int = 0
    ends: tuple[int, ...] = ()


class Renderer:
    """Turns a prompt and a completion into token ids, of which the last one is scored.

    With a chat template the completion is the last message, by the assistant. Without one the ids are those of the
    prompt, of the completion, and the end token. Tokenizers with class and separator tokens (BERT) join both as a pair.
    A truncated completion gets an end token too, because a verifier sees only its text. Of a text of more than
    `max_tokens` (0: no limit) the beginning is cut off, because the end of the completion decides.
    """

    def __init__(self, tokenizer: Any, *, system_prompt: str | None, chat: Chat, max_tokens: int) -> None:
        self.tokenizer, self.system_prompt, self.max_tokens = tokenizer, system_prompt, max_tokens
        self.chat = bool(tokenizer.chat_template) if chat == "auto" else chat == "always"
        self.pairs = not self.chat and tokenizer.cls_token_id is not None and tokenizer.sep_token_id is not None
        if self.chat and not tokenizer.chat_template:
            raise ValueError("chat=always, but the reward model's tokenizer has no chat template; use chat=never")

    def encode(self, prompt: Prompt, completion: str) -> Encoded:
        """Return the ids of a text.

        Raises ValueError for messages without a chat template, and for text with a lone surrogate.
        """
        check_encodable(prompt, "the prompt")
        check_encodable(completion, "the completion")
        if self.pairs:
            return self._encode_pair(self._text_of(prompt), completion)
        if self.chat:
            ids = self._chat_ids(prompt, completion)
        else:
            if self.tokenizer.eos_token_id is None:
                raise ValueError("the tokenizer has neither a chat template nor an end-of-sequence token")
            answer = self.tokenizer(completion, add_special_tokens=False).input_ids
            ids = [*self.tokenizer(self._text_of(prompt)).input_ids, *answer, self.tokenizer.eos_token_id]
        cut = max(len(ids) - self.max_tokens, 0) if self.max_tokens else 0
        return Encoded(tuple(ids[cut:]), (len(ids) - cut - 1,), cut)

    def _encode_pair(self, prompt: str, completion: str) -> Encoded:
        ids = self.tokenizer(prompt, completion).input_ids
        cut = max(len(ids) - self.max_tokens, 0) if self.max_tokens else 0
        if cut:
            side, self.tokenizer.truncation_side = self.tokenizer.truncation_side, "left"
            ids = self.tokenizer(prompt, completion, truncation="longest_first", max_length=self.max_tokens).input_ids
            self.tokenizer.truncation_side = side
        return Encoded(tuple(ids), (len(ids) - 1,), cut)

    def _text_of(self, prompt: Prompt) -> str:
        if not isinstance(prompt, str):
            raise ValueError("the prompt is a list of messages, and the reward model is used without a chat template")
        return prompt if self.system_prompt is None else f"{self.system_prompt}\n\n{prompt}"

    def _chat_ids(self, prompt: Prompt, answer: str) -> list[int]:
        """Return the ids of prompt and answer as messages of the chat template."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if self.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        messages.append({"role": "assistant", "content": answer})
        ids = self.tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=False, return_dict=False
        )
        return [int(i) for i in ids]


class StepRenderer(Renderer):
    """Puts a tag behind each step of a completion. The tags' positions are scored.

    With a chat template the steps, joined by the tag, are the assistant's message. Without one they follow the prompt,
    each on a line of its own with " tag" behind it. Tags and special tokens that a step itself spells are removed, so
    that a completion can neither make steps of its own nor speak for anybody else.
    """

    def __init__(self, tokenizer: Any, *, tag: str, separator: str, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.tag, self.separator = tag, separator
        self.tag_id = find_token(tokenizer, tag if self.chat else f" {tag}", "tag")
        special = {str(text) for text in (*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()) if str(text)}
        # A tag that is a word may be a part of other words.
        word = rf"(?<!\w){re.escape(tag)}(?!\w)" if tag[0].isalnum() else re.escape(tag)
        known = sorted(filter(str.strip, special), key=len, reverse=True)
        self._forged = re.compile("|".join([word, *map(re.escape, known)]))

    def encode(self, prompt: Prompt, completion: str) -> Encoded:
        """Return the ids with the tags' positions. A text that is too long has none, and `cut` says by how much.

        Raises ValueError as Renderer.encode does, and where the tokenizer merges a tag with the text before it.
        """
        check_encodable(prompt, "the prompt")
        check_encodable(completion, "the completion")
        if not completion.strip():
            return Encoded((self.tag_id,), ())
        ends = [*step_ends(completion, self.separator), len(completion)]
        steps = [remove_all(self._forged, completion[start:end]) for start, end in zip([0, *ends], ends)]
        ids = self._ids_of_steps(prompt, steps)
        in_prompt = self._ids_of_steps(prompt, ["x"]).count(self.tag_id) - 1
        if ids.count(self.tag_id) > len(steps) + in_prompt:  # a part of a word is tokenized as the tag
            everywhere = re.compile(re.escape(self.tag))
            ids = self._ids_of_steps(prompt, [remove_all(everywhere, step) for step in steps])
        if self.max_tokens and len(ids) > self.max_tokens:
            return Encoded((self.tag_id,), (), len(ids) - self.max_tokens)
        places = [place for place, number in enumerate(ids) if number == self.tag_id][-len(steps) :]
        if len(places) < len(steps):
            raise ValueError(f"the tag {self.tag!r} is not one token behind every step")
        return Encoded(tuple(ids), tuple(places), ends=tuple(ends))

    def _ids_of_steps(self, prompt: Prompt, steps: list[str]) -> list[int]:
        if self.chat:
            return self._chat_ids(prompt, "".join(f"{step}{self.tag}" for step in steps))
        text = f"{self._text_of(prompt)} " + "\n".join(f"{step} {self.tag}" for step in steps)
        return [int(i) for i in self.tokenizer(text).input_ids]


def step_ends(completion: str, separator: str) -> list[int]:
    """Return the offsets just behind the separators that end a step. The last step ends with the text.

    Empty steps are skipped, and a separator at the end of the completion ends no step.
    """
    ends, start = [], 0
    body = completion.rstrip()
    while (place := body.find(separator, start)) >= 0:
        if body[start:place].strip():
            ends.append(place + len(separator))
        start = place + len(separator)
    return ends


def remove_all(pattern: re.Pattern[str], text: str) -> str:
    """Return a text without what matches, until nothing matches any more, and without space at its ends."""
    while (shorter := pattern.sub("", text)) != text:
        text = shorter
    return text.strip()


def find_token(tokenizer: Any, text: str, option: str) -> int:
    """Return the id of the last token of a text. It must hold the whole text but for spaces; ValueError otherwise."""
    ids = tokenizer(text, add_special_tokens=False).input_ids
    said = tokenizer.decode(ids[-1:], skip_special_tokens=False) if ids else ""
    if said.strip() != text.strip() or ids[-1] == tokenizer.unk_token_id:
        raise ValueError(f"{option} {text.strip()!r}: the model's tokenizer has no token for it; name another")
    return int(ids[-1])


def token_limit(tokenizer: Any, config: Any, wanted: int) -> int:
    """Return how many tokens a model may read: `wanted`, or for 0 what tokenizer and config allow (0: no limit).

    Raises ValueError where `wanted` exceeds the model's positions.
    """
    positions = int(getattr(config.get_text_config(), "max_position_embeddings", None) or 0)
    own = int(tokenizer.model_max_length)
    allowed = [limit for limit in (positions, own if own < NO_LIMIT else 0) if limit > 0]
    if positions and wanted > positions:
        raise ValueError(f"max_tokens {wanted}: the reward model reads at most {positions}")
    return wanted or min(allowed, default=0)
