"""What a server is asked with: token ids, a text, or messages. Rollouts themselves are made of token ids."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.core.endpoint import CHARACTERS, Generated, Question
from rlvr.core.files.jsonl import check_encodable
from rlvr.core.types import Completion, Message, Prompt, Reply, Sampling
from rlvr.model.text.rendering import Rendering, prompt_in_messages, prompt_in_text, shorten

NO_IDS = (
    "the server returns no token ids (vLLM does), without which turns would be encoded anew; leave out --tokenizer, "
    "and use --api chat"
)


class TokenSpeaker(Rendering):
    """Renders prompts and replies with the served model's tokenizer: token ids in, token ids out.

    eos_ids: the tokenizer's, and those with which turns have ended so far.
    """

    def __init__(self, tokenizer: Any, *, system_prompt: str | None, chat: str) -> None:
        super().__init__(tokenizer, system_prompt=system_prompt, chat=chat)
        self._eos_ids = frozenset({tokenizer.eos_token_id} - {None})
        self.needs_ids = False

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._eos_ids

    def check_turns(self) -> None:
        """Check as Rendering does. From then on completions must come with their ids."""
        super().check_turns()
        self.needs_ids = True

    def question(self, context: Sequence[int]) -> Question:
        return context

    def forget(self, ids: Sequence[int]) -> None:
        """Do nothing, because what was said is held in token ids."""

    def completion(self, answer: Generated, sampling: Sampling) -> Completion:
        """Return what was sampled as the torch sampler does: an EOS is in the ids only, a stop string in the text.

        Without ids from the server its text is kept, with placeholders for the tokens.
        """
        if answer.ids is None and self.needs_ids:
            raise ValueError(NO_IDS)
        if answer.ids is None:
            return Completion(answer.text, (-1,) * answer.tokens, (0.0,) * answer.tokens, answer.finish)
        by_eos = answer.finish == "stop" and not answer.stop and bool(answer.ids)
        if by_eos:
            self._eos_ids |= {answer.ids[-1]}
        text = self.decode(answer.ids[:-1] if by_eos else answer.ids)
        ends = [text.find(string) + len(string) for string in sampling.stop if not by_eos and string in text]
        return Completion(text[: min(ends)] if ends else text, answer.ids, (0.0,) * len(answer.ids), answer.finish)


class MessageSpeaker:
    """Conversations as messages, or a single text, for a server that has the tokenizer.

    Each message is held here. In token ids a run of numbers that no other message has stands for it. The run is as long
    as the message has tokens: the server counts those of the model's turns; prompts and replies count a quarter of
    their characters.
    """

    eos_ids: frozenset[int] = frozenset()

    def __init__(self, *, chat: bool, system_prompt: str | None, tool_role: str = "tool") -> None:
        self.chat, self.system_prompt, self.tool_role = chat, system_prompt, tool_role
        self._announcement = ""
        self._held: dict[int, tuple[Sequence[Message], int]] = {}
        self._next = 0
        self._lock = threading.Lock()

    def announce(self, environment: Any) -> None:
        """Add the description of an environment's tools to the text of every prompt."""
        self._announcement = str(getattr(environment, "announcement", "") or "")

    def render(self, prompt: Prompt) -> list[int]:
        """Return the ids that stand for a prompt. Raises ValueError for messages where texts are sent."""
        check_encodable(prompt, "the prompt")
        if not self.chat:
            if not isinstance(prompt, str):
                raise ValueError("a prompt in chat messages needs --api chat, or --tokenizer with a chat template")
            text = prompt_in_text(prompt, self.system_prompt, self._announcement)
            return self._hold([{"role": "user", "content": text}])
        return self._hold(prompt_in_messages(prompt, self.system_prompt, self._announcement))

    def encode_reply(self, reply: Reply, *, ended: int | None) -> list[int]:
        role = self.tool_role if reply.role == "tool" else reply.role
        return self._hold([{"role": role, "content": reply.text}])

    def add_marks(self, ids: Sequence[int], text: str, marks: Sequence[str]) -> str:
        """Return a turn's text: the server gives no other."""
        return text

    def shorten_reply(self, text: str, tokens: int, payload: Sequence[tuple[int, int]] = ()) -> str:
        """Return a text cut to so many tokens of four characters, as Rendering's does."""
        return shorten(text, tokens, payload, lambda part, most: len(part) <= most * CHARACTERS)

    def check_turns(self) -> None:
        """Raise ValueError where replies cannot be put between turns of the model."""
        if not self.chat:
            raise ValueError("an environment needs --api chat, or --api completions with --tokenizer")

    def question(self, context: Sequence[int]) -> Question:
        """Return the messages, or the text, that a context stands for."""
        messages: list[Message] = []
        place = 0
        while place < len(context):
            held, length = self._held[context[place]]
            messages += held
            place += length
        return messages if self.chat else messages[0]["content"]

    def forget(self, ids: Sequence[int]) -> None:
        """Drop the messages of a rollout that has ended. ids: those of its turns and replies, without the prompt."""
        place = 0
        with self._lock:
            while place < len(ids):
                place += self._held.pop(ids[place])[1]

    def completion(self, answer: Generated, sampling: Sampling) -> Completion:
        """Return what was sampled. Verifiers and environments see its reasoning; later turns of the model do not."""
        length = max(1, answer.tokens)
        content = answer.content + answer.stop
        ids = self._hold([{"role": "assistant", "content": content}], length)
        return Completion(answer.text, tuple(ids), (0.0,) * length, answer.finish)

    def _hold(self, messages: Sequence[Mapping[str, str]], length: int = 0) -> list[int]:
        length = length or 1 + sum(len(message["content"]) for message in messages) // CHARACTERS
        with self._lock:
            first, self._next = self._next, self._next + length
            self._held[first] = (messages, length)
        return list(range(first, first + length))


Speaker = TokenSpeaker | MessageSpeaker
