"""The verifier `regex`: a pattern that the completion must match."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

from rlvr.core.printable import kind_of
from rlvr.core.registry import register
from rlvr.core.types import Problem, Verdict, bad_reference, correct, incorrect
from rlvr.verifiers.extract import BYTE_ORDER_MARK
from rlvr.verifiers.extract.answer import Part, excerpt, read_answer, without_answer
from rlvr.verifiers.runner.base import check_choices


@register("regex")
@dataclass(frozen=True, kw_only=True)
class RegexVerifier:
    """Whether the completion matches a regular expression (Python's `re`): the option pattern, else the reference.

    match: "full": the whole text must match; "search": some part of it. extract: the text that is matched (see
    `exact`). ignore_case, multiline (^ and $ at each line), dotall (a dot matches a line break): flags. Matching runs
    in the worker pool, since a pattern may take exponential time.
    """

    pattern: str | None = None
    match: Literal["full", "search"] = "full"
    extract: Part = "all"
    ignore_case: bool = False
    multiline: bool = False
    dotall: bool = False

    isolate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choices(self)
        if self.pattern is not None:
            _compile(self.pattern, self._flags)

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        try:
            pattern = _compile(problem.reference if self.pattern is None else self.pattern, self._flags)
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

    def open_answers(self, reference: Any) -> bool:
        """Many texts match a pattern."""
        return True

    def check_reference(self, reference: Any) -> None:
        """Raise ValueError where the pattern is the reference, and not a valid one."""
        if self.pattern is None:
            _compile(reference, self._flags)

    @property
    def _flags(self) -> int:
        return self.ignore_case * re.IGNORECASE | self.multiline * re.MULTILINE | self.dotall * re.DOTALL


def _compile(pattern: Any, flags: int) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise ValueError(f"the pattern is {kind_of(pattern)}; expected a regular expression as text")
    return _compile_text(pattern.removeprefix(BYTE_ORDER_MARK), flags)


@lru_cache(maxsize=1024)
def _compile_text(pattern: str, flags: int) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{excerpt(pattern, 200)!r} is not a regular expression: {error}") from None
