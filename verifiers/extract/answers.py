"""The part of a completion that a text verifier compares, and references as text."""

from __future__ import annotations

import numbers
from typing import Any, Literal

from rlvr.core.printable import kind_of
from rlvr.core.types import Verdict, limit, no_answer
from rlvr.verifiers.extract import BYTE_ORDER_MARK, MAX_COMPLETION, Extracted, after_thinking, extract, too_long

Part = Literal["all", "last_line", "marked", "strict"]


def read_answer(completion: str, part: Part) -> Extracted:
    """Return the part of a completion that holds the answer; without one, `text` is None and `how` says why.

    Text before the last `</think>` never counts. "all" is the rest, "last_line" its last line that is not blank,
    "marked" a boxed, tagged or announced answer ("the answer is ..."), "strict" a boxed one.
    """
    if part in ("marked", "strict"):
        return extract(completion, "strict" if part == "strict" else "marked")
    if len(completion) > MAX_COMPLETION:
        return too_long(completion)
    text = after_thinking(completion)
    if text is None:
        return Extracted(None, "unterminated <think> block")
    if part == "last_line":
        text = text.rstrip().rpartition("\n")[2]
    if not text.strip():
        return Extracted(None, "the completion is empty")
    return Extracted(text, part)


def without_answer(completion: str, found: Extracted) -> Verdict:
    """Return the verdict on a completion that holds no answer, or is too long to be read."""
    return limit(found.how) if len(completion) > MAX_COMPLETION else no_answer(found.how)


def reference_text(reference: Any) -> str:
    """Return a reference as text: itself without a byte order mark, or a number written out.

    Raise ValueError for anything else, and for NaN, which tables hold where a value is missing.
    """
    if isinstance(reference, str):
        return reference.removeprefix(BYTE_ORDER_MARK)
    if isinstance(reference, bool) or not isinstance(reference, numbers.Number):
        raise ValueError(f"the reference is {kind_of(reference)}; expected the answer as text or a number")
    if reference != reference:
        raise ValueError("the reference is NaN, which tables hold for a missing value; expected the answer")
    return str(reference)


def excerpt(text: str, longest: int = 2000) -> str:
    """Return `text`, cut to what a verdict shows."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
