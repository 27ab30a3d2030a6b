"""Render prompts as token ids: chat template, system prompt, encoding and decoding."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from rlvr.core.files.jsonl import check_encodable
from rlvr.core.types import Prompt, Reply

from .chat_turns import append_only, reply_ids

Fits = Callable[[str, int], bool]  # whether a text has at most so many tokens
# Characters that a token may stand for: the longest of published vocabularies are runs of white space.
LONGEST_TOKEN = 128
NAMED = 10  # pieces of text that a warning names


def prompt_in_text(prompt: str, system_prompt: str | None, announcement: str) -> str:
    """Return a prompt with a system prompt and an announcement before it."""
    return "\n\n".join(part for part in (system_prompt, announcement or None, prompt) if part is not None)


def prompt_in_messages(prompt: Prompt, system_prompt: str | None, announcement: str) -> list[dict[str, Any]]:
    """Return the messages of a prompt, with a system prompt, and an announcement in the user's first message."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    if announcement:
        first = next((message for message in messages if message["role"] == "user"), messages[-1])
        first["content"] = f"{announcement}\n\n{first['content']}"
    if system_prompt is not None:
        messages.insert(0, {"role": "system", "content": system_prompt})
    return messages


class Rendering:
    """A tokenizer with a system prompt and the choice of chat: how a prompt becomes the ids that the policy sees."""

    def __init__(self, tokenizer: Any, *, system_prompt: str | None = None, chat: str = "auto") -> None:
        self.tokenizer = tokenizer
        self.system_prompt = system_prompt
        self.chat = bool(tokenizer.chat_template) if chat == "auto" else chat == "always"
        if self.chat and not tokenizer.chat_template:
            raise ValueError("model.chat always, and the tokenizer has no chat template; use --model.chat never")
        self._schemas: list[Any] = []
        self._announcement = ""
        self._warned = False  # of a reply with text that the tokenizer has no token for

    def announce(self, environment: Any) -> None:
        """Show an environment's tools in every prompt.

        Read of it are `schemas`, functions with JSON schemas, for a chat template that has a place for tools, and
        otherwise `announcement`, a text, which is put before the prompt. An environment without them changes nothing.
        """
        self._schemas, self._announcement = [], ""
        schemas = list(getattr(environment, "schemas", ()))
        if schemas and self.chat and self._takes(schemas):
            self._schemas = schemas
        else:
            self._announcement = str(getattr(environment, "announcement", ""))

    def _takes(self, schemas: list[Any]) -> bool:
        """Whether the chat template shows the tools."""
        asked = [{"role": "user", "content": "x"}]
        try:
            text = str(self.tokenizer.apply_chat_template(asked, tools=schemas, tokenize=False))
        except Exception:  # a template is a program of its own
            return False
        return all(
            schema["function"]["name"] in text and schema["function"]["description"] in text for schema in schemas
        )

    def render(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt, ready for the completion to follow. Only here is a chat template applied.

        With chat, a string becomes one user message. Without, system prompt and prompt are joined by a blank line, and
        a prompt in messages raises ValueError; so does a lone surrogate, which no tokenizer takes.
        """
        check_encodable(prompt, "the prompt")
        if not self.chat:
            if not isinstance(prompt, str):
                raise ValueError("a prompt in chat messages needs a tokenizer with a chat template, and chat is off")
            return list(self.tokenizer(prompt_in_text(prompt, self.system_prompt, self._announcement)).input_ids)
        messages = prompt_in_messages(prompt, self.system_prompt, self._announcement)
        tools = {"tools": self._schemas} if self._schemas else {}
        ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **tools
        )
        return [int(i) for i in ids]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text that continues a prompt: no special tokens are added."""
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def warning_of_unknown(self, texts: Iterable[Prompt], where: str) -> str:
        """Return a warning that names what the tokenizer has no token for; "" where it reads all of the texts."""
        unknown = self.tokenizer.unk_token_id
        if unknown is None or not self.tokenizer.is_fast:
            return ""
        found: set[str] = set()
        for text in texts:
            for part in [text] if isinstance(text, str) else [message["content"] for message in text]:
                encoded = self.tokenizer(part, add_special_tokens=False, return_offsets_mapping=True)
                spans = zip(encoded.input_ids, encoded.offset_mapping, strict=True)
                found |= {part[start:end] for number, (start, end) in spans if number == unknown}
        pieces = sorted(found - {self.tokenizer.unk_token})
        if not pieces:
            return ""
        named = ", ".join(map(repr, pieces[:NAMED])) + (f" and {len(pieces) - NAMED} more" if pieces[NAMED:] else "")
        return (
            f"the tokenizer has no token for {named} of the {where}: the model reads {self.tokenizer.unk_token} there, "
            "and cannot write it; take another model, or other characters"
        )

    def encode_literally(self, text: str) -> list[int]:
        """Return the token ids of a text in which nothing stands for a special token, whatever it looks like."""
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)

    def encode_reply(self, reply: Reply, *, ended: int | None) -> list[int]:
        """Return the token ids of a reply, as they follow the ids of the model's turn.

        ended: the end-of-sequence token that ended that turn, if any. No text of the reply becomes a special token.
        """
        ids = list(reply_ids(self.tokenizer, chat=self.chat, ended=ended, reply=reply))
        if self.tokenizer.unk_token_id in ids and not self._warned:
            self._warned = True
            if warning := self.warning_of_unknown([reply.text], "environment's replies"):
                warnings.warn(warning, RuntimeWarning, stacklevel=2)
        return ids

    def check_turns(self) -> None:
        """Raise ValueError where replies cannot be put between turns of the model."""
        if self.chat and (reason := append_only(self.tokenizer)):
            raise ValueError(reason)

    def shorten_reply(self, text: str, tokens: int, payload: Sequence[tuple[int, int]] = ()) -> str:
        """Return a text cut to this many tokens, with a note that tells how much was left out; unchanged if it fits.

        payload: see `Reply`. All of its parts are cut to the same number of characters, with a note in each; those at
        the end are left out where not even the notes fit. One is always there, at most cut to its note.
        """
        return shorten(text, tokens, payload, self._fits)

    def _fits(self, text: str, tokens: int) -> bool:
        """Whether a text has at most so many tokens."""
        return len(text) <= tokens * LONGEST_TOKEN and len(self.encode_literally(text)) <= tokens

    def add_marks(self, ids: Sequence[int], text: str, marks: Sequence[str]) -> str:
        """Return a turn's text with those marks in it that are special tokens of the tokenizer, which `text` lacks.

        ids: of the turn; text: what `decode` makes of them, perhaps ended earlier, by a stop string.
        """
        kept = {number for mark in marks if (number := self._special.get(mark)) is not None}
        if kept.isdisjoint(ids):
            return text
        left_out = set(self._special.values()) - kept
        whole = self.decode([number for number in ids if number not in left_out], special=True)
        return whole[: len(whole) - (len(self.decode(ids)) - len(text))]

    @cached_property
    def _special(self) -> dict[str, int]:
        """The tokens that `decode` leaves out, by their text."""
        added = self.tokenizer.added_tokens_decoder
        named = zip(self.tokenizer.all_special_tokens, self.tokenizer.all_special_ids)
        return {str(token): number for token, number in named} | {
            str(token): number for number, token in added.items() if token.special
        }

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of token ids, without special tokens unless `special`."""
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
        )


def shorten(text: str, tokens: int, payload: Sequence[tuple[int, int]], fits: Fits) -> str:
    """Return a text cut to `tokens` tokens, with a note that tells how much was left out; unchanged if it fits.

    payload: start and end of the parts that are cut, in order. Without any the text is cut at its end, and the note is
    beyond the limit. Else they are cut to the same number of characters, what is around them stays, and those at the
    end are left out where not even the notes fit. One always stays.
    """
    if fits(text, tokens):
        return text
    if not payload:
        count = largest_that(len(text), lambda count: fits(text[:count], tokens))
        return f"{text[:count]}{note(len(text) - count)}"
    starts, ends = zip(*payload)
    parts = [text[start:end] for start, end in payload]
    marks = [text[end:start] for end, start in zip((0, *ends), (*starts, len(text)))]
    for number in range(len(parts), 0, -1):

        def cut(count: int, number: int = number) -> str:
            """Return the first parts, each with at most so many characters, or a note's."""
            whole = "".join(before + shorten_part(part, count) for before, part in zip(marks, parts[:number]))
            lost = sum(map(len, parts[number:]))
            return whole + marks[-1] + (note(lost) if lost else "")

        if fits(cut(0), tokens) or number == 1:
            return cut(largest_that(max(map(len, parts)), lambda count: fits(cut(count), tokens)))
    raise AssertionError("one part always stays")


def largest_that(top: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number below `top` for which it holds, by halving; 0 where there is none."""
    return bisect_left(range(1, max(top, 1)), True, key=lambda number: not holds(number))


def shorten_part(text: str, count: int) -> str:
    """Return the first characters of a text and a note; all of it where that has no more bytes than a note."""
    if len(text) <= count or len(text.encode()) <= len(note(len(text))):
        return text
    return f"{text[:count]}{note(len(text) - count)}"


def note(count: int) -> str:
    """Return what stands for text that was left out."""
    return f"\n[{count} more characters]\n"
