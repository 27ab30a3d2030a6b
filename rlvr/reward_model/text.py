"""Prompt and completion as a reward model's token ids, rendered the same in training and in scoring."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlvr.core.files.jsonl import check_encodable
from rlvr.core.types import Prompt

Chat = Literal["auto", "always", "never"]
# Tokenizers without a limit report a number like 1e30.
NO_LIMIT = 10**9


@dataclass(frozen=True)
class Encoded:
    """Token ids, the positions that are scored (the last token, or each step's), and how many tokens were cut off."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    cut: int = 0


class Renderer:
    """Turns (prompt, completion) into token ids.

    With a chat template the completion is the last message, by the assistant. Without one the ids are those of the
    prompt, of the completion, and the end token, which is what the policy itself read and wrote; a tokenizer with class
    and separator tokens (BERT and its relatives) joins the two as a text pair. Truncated completions get an end token
    too: a verifier sees only their text. Beyond `max_tokens` the beginning is cut off, since the end of the completion
    decides.
    """

    def __init__(self, tokenizer: Any, *, system_prompt: str | None, chat: Chat, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.system_prompt = system_prompt
        self.chat = bool(tokenizer.chat_template) if chat == "auto" else chat == "always"
        self.max_tokens = max_tokens
        self.pairs = not self.chat and tokenizer.cls_token_id is not None and tokenizer.sep_token_id is not None
        if self.chat and not tokenizer.chat_template:
            raise ValueError("chat=always, but the reward model's tokenizer has no chat template; use chat=never")
        if not self.chat and not self.pairs and tokenizer.eos_token_id is None:
            raise ValueError("the reward model's tokenizer has neither a chat template nor an end-of-sequence token")

    def encode(self, prompt: Prompt, completion: str) -> Encoded:
        """Return ids whose last token is scored.

        Raises ValueError for a prompt in messages without a chat template, and for text with a lone surrogate.
        """
        check_text(prompt, completion)
        if self.pairs:
            return self._joined(prompt, completion)
        ids = self._chat_ids(prompt, completion) if self.chat else self._plain(prompt, completion)[0]
        return self._cut(ids, [len(ids) - 1])

    def encode_steps(self, prompt: Prompt, completion: str, separator: str) -> Encoded:
        """Return ids that are scored at the end of every step: the last token of each separator, and the last of all.

        Raises ValueError like `encode`, and for a tokenizer that reads text pairs.
        """
        check_text(prompt, completion)
        if self.pairs:
            raise ValueError(
                "separator needs a causal model; this one's tokenizer reads prompt and completion as a pair"
            )
        ends = step_ends(completion, separator)
        if self.chat:
            ids, places = self._chat_steps(prompt, completion, ends)
        else:
            ids, first = self._plain(prompt, completion)
            places = [first + place for place in self._places(completion, ends)]
        return self._cut(ids, [*places, len(ids) - 1])

    def _plain(self, prompt: Prompt, completion: str) -> tuple[list[int], int]:
        """Return ids, and the position at which the completion begins."""
        before = list(self.tokenizer(self._text(prompt)).input_ids)
        after = self.tokenizer(completion, add_special_tokens=False).input_ids
        return [*before, *after, self.tokenizer.eos_token_id], len(before)

    def _joined(self, prompt: Prompt, completion: str) -> Encoded:
        whole = self.tokenizer(self._text(prompt), completion).input_ids
        cut = max(len(whole) - self.max_tokens, 0) if self.max_tokens else 0
        if cut:
            side, self.tokenizer.truncation_side = self.tokenizer.truncation_side, "left"
            whole = self.tokenizer(
                self._text(prompt), completion, truncation="longest_first", max_length=self.max_tokens
            ).input_ids
            self.tokenizer.truncation_side = side
        return Encoded(tuple(whole), (len(whole) - 1,), cut)

    def _text(self, prompt: Prompt) -> str:
        if not isinstance(prompt, str):
            raise ValueError("the prompt is a list of messages, and the reward model's tokenizer has no chat template")
        return prompt if self.system_prompt is None else f"{self.system_prompt}\n\n{prompt}"

    def _messages(self, prompt: Prompt, completion: str) -> list[dict[str, str]]:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if self.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return [*messages, {"role": "assistant", "content": completion}]

    def _chat_ids(self, prompt: Prompt, completion: str) -> list[int]:
        ids = self.tokenizer.apply_chat_template(
            self._messages(prompt, completion), tokenize=True, add_generation_prompt=False, return_dict=False
        )
        return [int(i) for i in ids]

    def _chat_steps(self, prompt: Prompt, completion: str, ends: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the ids of the conversation and the positions at which its steps end."""
        text = self.tokenizer.apply_chat_template(
            self._messages(prompt, completion), tokenize=False, add_generation_prompt=False
        )
        start = text.rfind(completion)
        if start < 0:  # many templates strip what the assistant says
            start = text.rfind(completion.strip()) - (len(completion) - len(completion.lstrip()))
        if completion.strip() not in text:
            raise ValueError("the chat template changes the completion, so that its steps cannot be located")
        encoding = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(encoding.input_ids), covering(encoding.offset_mapping, [start + end for end in ends])

    def _places(self, completion: str, ends: Sequence[int]) -> list[int]:
        encoding = self.tokenizer(completion, add_special_tokens=False, return_offsets_mapping=True)
        return covering(encoding.offset_mapping, ends)

    def _cut(self, ids: Sequence[int], positions: Sequence[int]) -> Encoded:
        cut = max(len(ids) - self.max_tokens, 0) if self.max_tokens else 0
        return Encoded(tuple(ids[cut:]), tuple(p - cut for p in positions if p >= cut), cut)


def check_text(prompt: Prompt, completion: str) -> None:
    """Raise ValueError for a lone surrogate in either: no tokenizer takes one, and its TypeError names no text."""
    check_encodable(prompt, "the prompt")
    check_encodable(completion, "the completion")


def step_ends(completion: str, separator: str) -> list[int]:
    """Return the offsets at which the steps of a completion end, each just behind a separator; not that of the last.

    Empty steps are skipped; a trailing separator ends no step.
    """
    ends, start = [], 0
    body = completion.rstrip()
    while (found := body.find(separator, start)) >= 0:
        if body[start:found].strip():
            ends.append(found + len(separator))
        start = found + len(separator)
    return ends


def covering(offsets: Sequence[tuple[int, int]], ends: Sequence[int]) -> list[int]:
    """Return for each end (an exclusive character offset) the index of the token that holds the character before it."""
    places, token = [], 0
    for end in ends:
        while token + 1 < len(offsets) and offsets[token][1] < end:
            token += 1
        places.append(token)
    return places


def token_limit(tokenizer: Any, config: Any, wanted: int) -> int:
    """Return how many tokens a model may read: `wanted`, or if that is 0 what tokenizer and config allow (0: no limit).

    Raises ValueError where `wanted` exceeds the model's positions.
    """
    text = config.get_text_config()
    positions = int(getattr(text, "max_position_embeddings", None) or 0)
    own = int(tokenizer.model_max_length)
    allowed = [limit for limit in (positions, own if own < NO_LIMIT else 0) if limit > 0]
    if positions and wanted > positions:
        raise ValueError(f"max_tokens {wanted}: the reward model reads at most {positions}")
    return wanted or min(allowed, default=0)


# Prompt and steps as a process reward model's token ids, with a tag behind each step, as its publishers write them.


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
