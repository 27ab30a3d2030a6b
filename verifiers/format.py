"""The verifier `format`: reasoning and answer in their tags, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from rlvr.core.registry import register
from rlvr.core.types import Problem, Verdict, correct, incorrect

from .extract import BYTE_ORDER_MARK
from .extract.answer import excerpt
from .runner.base import accepts_many


@register("format")
@dataclass(frozen=True, kw_only=True)
class FormatVerifier:
    """Whether the completion is exactly <think>...</think><answer>...</answer>.

    Each tag must stand there once, in this order, with text in it, and with only white space before, between and after.
    tags: their names. opened: the prompt ends with the first opening tag, so the completion begins after it.
    """

    tags: tuple[str, ...] = ("think", "answer")
    opened: bool = False

    isolate: ClassVar[bool] = False  # bounded work

    def __post_init__(self) -> None:
        wrong = [tag for tag in self.tags if not re.fullmatch(r"[\w-]+", tag)]
        if wrong or not self.tags or len(set(self.tags)) < len(self.tags):
            raise ValueError(f"format tags {','.join(self.tags)!r}: expected different names such as think,answer")

    open_answers = accepts_many

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        text = completion.removeprefix(BYTE_ORDER_MARK)
        text = f"<{self.tags[0]}>{text}" if self.opened else text
        for tag in self.tags:
            for mark in (f"<{tag}>", f"</{tag}>"):
                if text.count(mark) != 1:
                    return incorrect(f"{mark} occurs {text.count(mark)} times; expected once")
        place, content = 0, ""
        for tag in self.tags:
            start, end = text.index(f"<{tag}>"), text.index(f"</{tag}>")
            if start < place or end < start:
                return incorrect(f"<{tag}> is out of order")
            if text[place:start].strip():
                return incorrect(f"text before <{tag}> outside the tags")
            content = text[start + len(tag) + 2 : end].strip()
            if not content:
                return incorrect(f"<{tag}> is empty")
            place = end + len(tag) + 3
        if text[place:].strip():
            return incorrect(f"text after </{self.tags[-1]}>")
        return correct(excerpt(content))
