"""What a reward model reads: a prompt and a completion as token ids, the same in training and in scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlvr.types import Prompt

Chat = Literal["auto", "always", "never"]
# Tokenizers that know no limit say so with a number like 1e30.
NO_LIMIT = 10**9


@dataclass(frozen=True)
class Encoded:
    """Token ids, the positions whose scores count (the last token, or each step's), and how many tokens were cut."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    cut: int = 0


class Renderer:
    """Turns (prompt, completion) into token ids.

    With a chat template the completion is the last message, by the assistant. Without one the ids are those of the
    prompt, of the completion, and the end token, which is what the policy itself saw and wrote; a tokenizer with a
    class and a separator token (BERT and its kin) joins the two in its own way. The end token stands behind truncated
    completions too: a verifier sees their text only. What is longer than `max_tokens` loses its beginning, since the
    end of the completion is what decides.
    """

    def __init__(self, tokenizer: Any, *, system_prompt: str | None, chat: Chat, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.system_prompt = system_prompt
        self.chat = bool(tokenizer.chat_template) if chat == "auto" else chat == "always"
        self.max_tokens = max_tokens
        self.pairs = not self.chat and tokenizer.cls_token_id is not None and tokenizer.sep_token_id is not None
        if self.chat and not tokenizer.chat_template:
            raise ValueError("chat always, and the reward model's tokenizer has no chat template; use chat=never")
        if not self.chat and not self.pairs and tokenizer.eos_token_id is None:
            raise ValueError("the reward model's tokenizer has neither a chat template nor an end-of-sequence token")

    def encode(self, prompt: Prompt, completion: str) -> Encoded:
        """Ids whose last token carries the score. ValueError for a prompt in messages where there is no template."""
        if self.pairs:
            return self._joined(prompt, completion)
        ids = self._chat_ids(prompt, completion) if self.chat else self._plain(prompt, completion)[0]
        return self._cut(ids, [len(ids) - 1])

    def encode_steps(self, prompt: Prompt, completion: str, separator: str) -> Encoded:
        """Ids with a position at the end of every step: the token that ends each separator, and the last token."""
        if self.pairs:
            raise ValueError("a separator needs a model that reads from left to right; this one reads pairs of texts")
        ends = step_ends(completion, separator)
        if self.chat:
            ids, places = self._chat_steps(prompt, completion, ends)
        else:
            ids, first = self._plain(prompt, completion)
            places = [first + place for place in self._places(completion, ends)]
        return self._cut(ids, [*places, len(ids) - 1])

    def _plain(self, prompt: Prompt, completion: str) -> tuple[list[int], int]:
        """Ids, and where the completion begins."""
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
            raise ValueError("a prompt in chat messages needs a reward model whose tokenizer has a chat template")
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
        """Ids of the conversation and the positions of the steps' ends in it."""
        text = self.tokenizer.apply_chat_template(
            self._messages(prompt, completion), tokenize=False, add_generation_prompt=False
        )
        start = text.rfind(completion)
        if start < 0:  # many templates strip what the assistant says
            start = text.rfind(completion.strip()) - (len(completion) - len(completion.lstrip()))
        if completion.strip() not in text:
            raise ValueError("the chat template changes the completion, so that its steps cannot be found in it")
        read = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(read.input_ids), covering(read.offset_mapping, [start + end for end in ends])

    def _places(self, completion: str, ends: Sequence[int]) -> list[int]:
        read = self.tokenizer(completion, add_special_tokens=False, return_offsets_mapping=True)
        return covering(read.offset_mapping, ends)

    def _cut(self, ids: Sequence[int], positions: Sequence[int]) -> Encoded:
        cut = max(len(ids) - self.max_tokens, 0) if self.max_tokens else 0
        return Encoded(tuple(ids[cut:]), tuple(p - cut for p in positions if p >= cut), cut)


def step_ends(completion: str, separator: str) -> list[int]:
    """Where the steps of a completion end: the characters before, each a separator's last. The last step is not listed.

    Empty steps do not count, nor does a separator after which nothing follows.
    """
    ends, start = [], 0
    body = completion.rstrip()
    while (found := body.find(separator, start)) >= 0:
        if body[start:found].strip():
            ends.append(found + len(separator))
        start = found + len(separator)
    return ends


def covering(offsets: Sequence[tuple[int, int]], ends: Sequence[int]) -> list[int]:
    """For each end (a character's place, exclusive) the token that holds the character before it."""
    places, token = [], 0
    for end in ends:
        while token + 1 < len(offsets) and offsets[token][1] < end:
            token += 1
        places.append(token)
    return places


def token_limit(tokenizer: Any, config: Any, wanted: int) -> int:
    """Tokens that a model can read: `wanted`, or where that is 0 what the tokenizer and the config allow; 0: no limit.

    ValueError where more are wanted than the model has positions for.
    """
    text = config.get_text_config()
    positions = int(getattr(text, "max_position_embeddings", None) or 0)
    own = int(tokenizer.model_max_length)
    allowed = [limit for limit in (positions, own if own < NO_LIMIT else 0) if limit > 0]
    if positions and wanted > positions:
        raise ValueError(f"max_tokens {wanted}: the reward model reads at most {positions}")
    return wanted or min(allowed, default=0)
