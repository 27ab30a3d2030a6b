"""Which part of a completion a text verifier compares."""

from __future__ import annotations

import numbers
from typing import Any, Literal

from rlvr.verifiers.extract import BYTE_ORDER_MARK, Extracted, after_thinking, extract

Part = Literal["all", "last_line", "marked", "strict"]


def read_answer(completion: str, part: Part) -> Extracted:
    """The part of a completion that holds the answer; `text` is None, and `how` says why, where there is none.

    What stands before the last `</think>` never counts. "all" is the rest, "last_line" its last line that is not blank,
    "marked" a boxed, tagged or announced answer ("the answer is ..."), "strict" a boxed one.
    """
    if part in ("marked", "strict"):
        return extract(completion, "strict" if part == "strict" else "marked")
    text = after_thinking(completion)
    if text is None:
        return Extracted(None, "the thinking does not end")
    if part == "last_line":
        text = text.rstrip().rpartition("\n")[2]
    if not text.strip():
        return Extracted(None, "the completion is empty")
    return Extracted(text, part)


def reference_text(reference: Any) -> str:
    """A reference as text: itself, or a number written out. ValueError for anything else, and for NaN.

    NaN is what a table holds where a value is missing. A byte order mark before the text is none of it.
    """
    if isinstance(reference, str):
        return reference.removeprefix(BYTE_ORDER_MARK)
    if isinstance(reference, bool) or not isinstance(reference, numbers.Number):
        raise ValueError(f"a reference of type {type(reference).__name__}; expected the answer as text or a number")
    if reference != reference:
        raise ValueError("the reference is NaN, as a table has it for a missing value")
    return str(reference)


def excerpt(text: str, longest: int = 2000) -> str:
    """`text` short enough for a verdict."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
