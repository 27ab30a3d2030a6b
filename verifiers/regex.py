"""The verifier `regex`: a pattern that the completion must match."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

from rlvr.core.printable import kind_of
from rlvr.core.registry import register
from rlvr.core.types import Problem, Verdict, bad_reference, correct, incorrect

from .extract import BYTE_ORDER_MARK
from .extract.answer import Part, excerpt, read_answer, without_answer
from .runner.base import accepts_many, check_choices


@register("regex")
@dataclass(frozen=True, kw_only=True)
class RegexVerifier:
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
        check_choices(self)
        if self.pattern is not None:
            _compile(self.pattern)

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        try:
            pattern = _compile(problem.reference if self.pattern is None else self.pattern)
        except ValueError as error:
            return bad_reference(str(error))
        answer = read_answer(completion, self.extract)
        if answer.text is None:
            return without_answer(completion, answer)
        text = answer.text.strip()
        found = pattern.fullmatch(text) if self.match == "full" else pattern.search(text)
        if found is None:
            return incorrect("does not match", excerpt(text))
        return correct(excerpt(found.group()))

    open_answers = accepts_many

    def check_reference(self, reference: Any) -> None:
        """Raise ValueError if the pattern is the reference and is not a regular expression."""
        if self.pattern is None:
            _compile(reference)


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
