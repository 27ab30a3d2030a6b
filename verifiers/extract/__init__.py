"""Finding the answer in a completion: the last box, else a marked answer, else (leniently) the last expression.

`extract` returns the answer's text and how it was found, or why there is none. `read_answer` is for verifiers of text.
Every step takes time in proportion to the text, and reads at most MAX_COMPLETION characters. `announcements` and
`last_expression` find answers without a box. `rejections` decides which of them the completion does not give: answers
that are negated, called wrong or taken back. `sections` takes a completion apart: thinking and answer, fenced blocks.
"""

from .answer import (
    MAX_COMPLETION,
    Box,
    Conflict,
    Extracted,
    Mode,
    boxes,
    extract,
    is_placeholder,
    too_long,
)
from .sections import BYTE_ORDER_MARK, THINKING, after_thinking

__all__ = [
    "BYTE_ORDER_MARK",
    "MAX_COMPLETION",
    "THINKING",
    "Box",
    "Conflict",
    "Extracted",
    "Mode",
    "after_thinking",
    "boxes",
    "extract",
    "is_placeholder",
    "too_long",
]
