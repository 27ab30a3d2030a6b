"""The verifier `regex`: a pattern that the completion must match."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

from rlvr.core.printable import kind_of
from rlvr.core.registry import register
from rlvr.core.types import Verdict, correct, incorrect

from .extract import BYTE_ORDER_MARK
from .extract.answer import Part, excerpt, read_answer, without_answer
from .runner.base import ReferenceVerifier, accepts_many


@register("regex")
@dataclass(frozen=True, kw_only=True)
class RegexVerifier(ReferenceVerifier[re.Pattern[str]]):
    """Whether the completion matches a regular expression (Python's `re`): the option pattern, or the reference.

    match: "full": the whole text must match; "search": a part of it must. extract: the text that is matched (see
    `exact`). Flags are written into the pattern: (?i) ignores case, in (?m) ^ and $ match at each line, in (?s) a dot
    matches a line break. Matching runs in the worker pool, since a pattern may take exponential time.
    """

    pattern: str | None = None
    match: Literal["full", "search"] = "full"
    extract: Part = "all"

    isolate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pattern is not None:
            _compile(self.pattern)

    def judge(self, pattern: re.Pattern[str], completion: str) -> Verdict:
        answer = read_answer(completion, self.extract)
        if answer.text is None:
            return without_answer(completion, answer)
        text = answer.text.strip()
        found = pattern.fullmatch(text) if self.match == "full" else pattern.search(text)
        if found is None:
            return incorrect("does not match", excerpt(text))
        return correct(excerpt(found.group()))

    open_answers = accepts_many

    def read_reference(self, reference: Any) -> re.Pattern[str]:
        """Return the pattern. Raise ValueError if it is the reference and is not a regular expression."""
        return _compile(reference if self.pattern is None else self.pattern)


def _compile(pattern: Any) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise ValueError(f"the pattern is {kind_of(pattern)}; expected a regular expression as text")
    return _compile_text(pattern.removeprefix(BYTE_ORDER_MARK))


@lru_cache(maxsize=1024)
def _compile_text(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{excerpt(pattern, 200)!r} is not a regular expression: {error}") from None
