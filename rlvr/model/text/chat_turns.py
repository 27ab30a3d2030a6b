"""Append an environment's reply to a conversation as tokens; sampled tokens are never tokenized again.

A chat template is rendered with a placeholder for the reply; what it puts around the placeholder is the frame of every
reply. Of the reply's own text no token becomes a control token, whatever the text spells.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any

from rlvr.core.types import Reply

# Placeholders: letters and digits, which no template changes and no tokenizer has as one token.
_SAID, _TEXT = "Qx7said7xQ", "Qx7reply7xQ"
_ASK: Mapping[str, str] = {"role": "user", "content": "1 + 1"}
# Turns and replies of the conversations that `append_only` renders.
_TURNS = (
    "two",
    "<think>\nadd\n</think>\n\ntwo",
    "<think>add",
    '<tool_call>\n{"name": "python", "arguments": {"code": "print(1)"}}\n</tool_call>',
    " \n two \n\n",
    "",
)
_REPLIES = ("2", " \n 2 \n", "", "<tool_response>2</tool_response>")
_ROLES = ("tool", "user")
# What a template may call the role of a reply, the first that it takes.
_CALLED = {"tool": ("tool", "observation", "user")}
_MARK = re.compile(r"<\|\w+\|>")


@dataclass(frozen=True)
class Frame:
    """What a template puts around a reply: the text from the end of the turn to the reply, and from it to the next.

    head: the end-of-turn token included; closing: the part of it that the turn's end-of-sequence token stands for.
    role: of the message as the template calls it; for a tool "observation" or "user" where it has no such role.
    """

    head: str
    tail: str
    closing: str
    role: str


def reply_ids(tokenizer: Any, *, chat: bool, ended: int | None, reply: Reply) -> tuple[int, ...]:
    """Return the ids that follow those of a turn of the model: the reply, and what the next turn begins with.

    ended: the end-of-sequence token at the end of the turn, if it has one. With chat what follows is what the template
    renders from the end of the turn to the end of the generation prompt, without the end-of-turn token where the turn
    has one. Where a turn ends as the next message begins (GLM-4), the reply is in the message that the model has begun.
    Without chat it is the reply's text. Raise ValueError for a template that takes no reply.
    """
    tokens = _tokens_of(tokenizer)
    if not chat:
        return tuple(tokens.encode_plainly(reply.text))
    frame = tokens.frame(reply.role)
    begun = None if ended is None or frame.closing else tokens.frame_begun_by(ended, reply.role)
    frame = begun or frame
    text = _as_rendered(tokenizer, frame, reply.text)
    opening, before = _cut_behind(tokens.control, frame.head)
    behind, rest = _cut_before(tokens.control, frame.tail)
    spelled = tokens.control.search(before + text + frame.tail)
    if spelled is None or spelled.start() == len(before + text + behind):
        ids = tokens.encode_behind(frame.head + text + frame.tail)
    else:
        ids = [
            *tokens.encode_behind(opening),
            *tokens.encode_plainly(before + text + behind),
            *tokens.encode_behind(rest),
        ]
    if ended is None:
        return tuple(ids)
    return tuple(ids[1 if begun else tokens.closing_length(ids, frame) :])


def append_only(tokenizer: Any) -> str:
    """Return "" where turns that are added to a conversation change nothing before them, and why not otherwise.

    It is proved on conversations of up to three turns: with and without <think>, with calls of tools, whitespace at the
    ends, and empty ones, with replies of tools and of the user. The reason is one line that names the tokenizer.
    """
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    if not tokenizer.chat_template:
        return ""
    try:
        reason = _violation(tokenizer)
    except ValueError as error:
        reason = str(error)
    if not reason:
        return ""
    return (
        f"the chat template of {name} cannot be used for several turns: {reason}; give one that keeps earlier turns "
        "with --model.chat-template FILE, or use --model.chat never"
    )


def _violation(tokenizer: Any) -> str:
    for role in _ROLES:
        frame = _tokens_of(tokenizer).frame(role)
        for turns, texts in product(_several(_TURNS), _several(_REPLIES, 2)):
            if reason := _violated_by(tokenizer, frame, turns, texts):
                return reason
    return ""


def _violated_by(tokenizer: Any, frame: Frame, turns: Sequence[str], texts: Sequence[str]) -> str:
    """Return how a conversation shows that adding to it changes it; "" where it does not, or leaves out empty text."""
    messages: list[Mapping[str, str]] = [_ASK]
    rendered = _render(tokenizer, messages, ask=True)
    for turn, text in zip(turns, [*texts, None]):
        messages.append({"role": "assistant", "content": turn})
        said = _render(tokenizer, messages)
        if not turn and said == _render(tokenizer, messages[:-1]):
            return ""
        if not said.startswith(rendered):
            return _describe_change(rendered, said)
        if text is None:
            break
        messages.append({"role": frame.role, "content": text})
        rendered = _render(tokenizer, messages, ask=True)
        if not text and rendered == _render(tokenizer, messages[:-1], ask=True):
            return ""
        if not rendered.startswith(said):
            return _describe_change(said, rendered)
        added = _as_rendered(tokenizer, frame, text)
        if not rendered.endswith(frame.head + added + frame.tail):
            return f"what it puts around the reply {text!r} depends on what came before"
    return ""


def _describe_change(before: str, after: str) -> str:
    """Return what was changed in earlier text."""
    if before.count("<think>") > after.count("<think>"):
        return "it removes <think> from earlier turns"
    place = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    was, now = (text[max(0, place - 8) : place + 24] for text in (before, after))
    return f"a turn that is added changes what was there: {was!r} becomes {now!r}"


def _several(texts: Sequence[str], count: int = 3) -> Iterator[tuple[str, ...]]:
    """Yield sequences in which each text is at the beginning, in the middle and at the end, beside the first text."""
    seen = set()
    for text in texts:
        for place in range(count):
            row = tuple(text if i == place else texts[0] for i in range(count))
            if row not in seen:
                seen.add(row)
                yield row
    yield from {(a, b, a)[:count] for a, b in pairwise(texts)} - seen


class _Tokens:
    """A tokenizer's control tokens, and encoding with and without them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = weakref.proxy(tokenizer)
        self._frames: dict[tuple[str, str], Frame] = {}
        special = {str(token) for token in tokenizer.all_special_tokens}
        added = {str(text): int(number) for text, number in tokenizer.get_added_vocab().items()}
        # An added token of whitespace, or of one character, is a way of writing text.
        texts = special | {text for text in added if len(text) > 1 and not text.isspace()}
        ids = {added.get(text, tokenizer.convert_tokens_to_ids(text)) for text in texts}
        self._ids = ids - ({tokenizer.unk_token_id} - {tokenizer.eos_token_id})
        longest_first = sorted((re.escape(text) for text in texts if text), key=len, reverse=True)
        self.control = re.compile("|".join(longest_first) or "(?!)")

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text in which control tokens are meant."""
        return list(self._tokenizer(text, add_special_tokens=False).input_ids) if text else []

    @cached_property
    def _anchor(self) -> tuple[str, list[int]]:
        """A token before a text, so that it is encoded as one that continues another: no space before it."""
        eos = self._tokenizer.eos_token
        ids = self.encode(str(eos)) if eos else []
        return (str(eos), ids) if len(ids) == 1 else ("", [])

    def encode_behind(self, text: str) -> list[int]:
        """Return the ids of a text that continues another; control tokens are meant."""
        anchor, before = self._anchor
        ids = self.encode(anchor + text)
        # A token that takes the whitespace behind it cannot stand before.
        taken = ids[: len(before)] != before or (text[:1].isspace() and len(self.encode(anchor + "\n")) == len(before))
        return self.encode(text) if taken else ids[len(before) :]

    def encode_plainly(self, text: str) -> list[int]:
        """Return the ids of a text that continues another, none of them a control token's."""
        ids: list[int] = []
        for part in _parts(self.control, text):
            found = self.encode_behind(part)
            if not self._ids.isdisjoint(found):
                # What the tokenizer makes of a text before it looks for its tokens can be one.
                found = [i for character in part for i in self.encode_behind(character) if i not in self._ids]
            ids += found
        return ids

    def closing_length(self, ids: Sequence[int], frame: Frame) -> int:
        """Return how many of the ids, those of the head at the beginning, are those of the end of the turn."""
        if not frame.closing:
            return 0
        return next(place for place, number in enumerate(ids) if number in self._ids) + 1

    def frame_begun_by(self, ended: int, role: str) -> Frame | None:
        """Return the frame of a reply whose first token is the one that ended the turn, this role's before others."""
        for tried in dict.fromkeys((role, *_ROLES)):
            frame = self.frame(tried)
            if self.encode_behind(frame.head)[:1] == [ended]:
                return frame
        return None

    def frame(self, role: str) -> Frame:
        """Return what the template puts around a reply of a role. Raise ValueError where it takes none."""
        key = (role, str(self._tokenizer.chat_template))
        if key not in self._frames:
            self._frames[key] = self._find_frame(role)
        return self._frames[key]

    def _find_frame(self, role: str) -> Frame:
        said = {"role": "assistant", "content": _SAID}
        reasons = []
        for tried in _CALLED.get(role, (role, "user")):
            try:
                whole = _render(self._tokenizer, [_ASK, said, {"role": tried, "content": _TEXT}], ask=True)
                turn = _render(self._tokenizer, [_ASK, said])
            except ValueError as error:
                reasons.append(str(error))
                continue
            if whole.count(_SAID) != 1 or whole.count(_TEXT) != 1 or turn.count(_SAID) != 1:
                reasons.append(f"it leaves out what the role {tried} says")
                continue
            head, tail = whole.split(_SAID)[1].split(_TEXT)
            spelled = [mark for mark in _MARK.findall(head) if not self.control.fullmatch(mark)]
            if spelled:
                reasons.append(f"it writes {spelled[-1]} before a reply of the role {tried}, which is no token")
                continue
            closing = self.control.search(turn.split(_SAID)[1])
            if closing is not None and not head.startswith(turn.split(_SAID)[1][: closing.end()]):
                reasons.append("the end of a turn is another one when a reply follows")
                continue
            return Frame(head, tail, "" if closing is None else closing.group(), tried)
        raise ValueError(f"it takes no reply: {reasons[0]}")


_OF: weakref.WeakKeyDictionary[Any, _Tokens] = weakref.WeakKeyDictionary()


def _tokens_of(tokenizer: Any) -> _Tokens:
    found = _OF.get(tokenizer)
    if found is None:
        found = _OF[tokenizer] = _Tokens(tokenizer)
    return found


def _render(tokenizer: Any, messages: Sequence[Mapping[str, str]], *, ask: bool = False) -> str:
    """Return a conversation as text, with the generation prompt where `ask`. Raise ValueError where it is refused."""
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=ask))
    except Exception as error:  # a template is a program of its own
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from error


def _as_rendered(tokenizer: Any, frame: Frame, text: str) -> str:
    """Return a reply's text as the template writes it: as JSON, or without whitespace at its ends, in some."""
    said = {"role": "assistant", "content": _SAID}
    whole = _render(tokenizer, [_ASK, said, {"role": frame.role, "content": text}], ask=True)
    start = whole.find(_SAID) + len(_SAID)
    if whole[start:].startswith(frame.head) and whole.endswith(frame.tail):
        end = len(whole) - len(frame.tail)
        if end >= start + len(frame.head):
            return whole[start + len(frame.head) : end]
    return text


def _parts(control: re.Pattern[str], text: str) -> Iterator[str]:
    """Yield a text in parts, cut within each control token of two characters or more that it spells."""
    match = control.search(text)
    if match is None or len(match.group()) < 2:
        if text:
            yield text
        return
    cut = match.start() + len(match.group()) // 2
    # What is left of a token may spell another.
    yield from _parts(control, text[:cut])
    yield from _parts(control, text[cut:])


def _cut_behind(control: re.Pattern[str], text: str) -> tuple[str, str]:
    """Return a text up to the end of its last control token, and the rest."""
    end = max((match.end() for match in control.finditer(text)), default=0)
    return text[:end], text[end:]


def _cut_before(control: re.Pattern[str], text: str) -> tuple[str, str]:
    """Return a text up to its first control token, and the rest."""
    match = control.search(text)
    return (text, "") if match is None else (text[: match.start()], text[match.start() :])
