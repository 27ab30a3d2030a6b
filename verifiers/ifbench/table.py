"""The table of IFBench's checks, and the two forms in which they look at a text: words and bare text."""

from __future__ import annotations

import string
from collections.abc import Callable

Check = Callable[..., bool]

CHECKS: dict[str, Check] = {}
MARKS = string.punctuation + " "

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def check(name: str) -> Callable[[Check], Check]:
    """Decorator: enter a check into the table under IFBench's name."""

    def add(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return add


def bare(text: str) -> str:
    """Return the text without ASCII punctuation."""
    return text.translate(_NO_PUNCTUATION)


def words_of(text: str) -> list[str]:
    """Return the words between white space without punctuation; what is only punctuation is none."""
    return bare(text).split()
