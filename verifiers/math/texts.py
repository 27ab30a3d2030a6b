"""Answers that are compared as text: spellings of one formula, and words of one meaning."""

from __future__ import annotations

import re

from rlvr.verifiers.math.lex import plain
from rlvr.verifiers.math.parts import same_names
from rlvr.verifiers.math.remarks import same_words

MAX_TEXT = 4_000  # longer answers are not compared as text

_SPACING = re.compile(
    r"(?:\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])|(?<!\\)\\[,;:! ]|[~$\s])+(?P<digit>(?=\d))?"
)
# What a text has where the pattern may match, the pattern, and what stands in its place.
_SPELLINGS = (
    ("arrow", re.compile(r"\\(?:long)?rightarrow(?![A-Za-z])"), r"\\to"),
    ("frac", re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    ("ots", re.compile(r"\\[lc]?dots[bc]?(?![A-Za-z])"), r"\\dots"),
    ("...", re.compile(r"\.\.\."), r"\\dots"),
    ("math", re.compile(r"(\\math(?:bb|cal|rm|bf))\s*\{\s*(\w)\s*\}"), r"\1 \2"),
    ("prime", re.compile(r"\^(?:\\prime(?![A-Za-z])|\{\s*\\prime\s*\})"), "'"),
    ("{", re.compile(r"(?<=[\^_])\{\s*(\w|\\[A-Za-z]+)\s*\}"), r"\1"),
)


def spelled(text: str) -> str:
    """Return a formula without what never changes its meaning: spaces, `\\left`, braces of one character."""
    if len(text) > MAX_TEXT:
        return text
    text = plain(text)
    for sign, pattern, form in _SPELLINGS:
        if sign in text:
            text = pattern.sub(form, text)
    return _SPACING.sub(_space, text).rstrip(".")


def _space(match: re.Match[str]) -> str:
    """What stays of spacing: a space between digits."""
    before = match.string[match.start() - 1 : match.start()]
    return " " if match["digit"] is not None and before.isdigit() else ""


_HYPHEN = re.compile(r"(?<=[a-z])-(?=[a-z])")
_AT = re.compile(r"(?:on|in|at|during)\s+(?=[a-z]+\Z)")
_PROPERTIES = frozenset("even odd prime composite positive negative".split())
_FILLING = frozenset("is are be for all any every an a number numbers integer integers must".split())


def _bare(text: str) -> str:
    """Words without hyphens, and without the preposition of one word: co-prime, on Friday."""
    return _HYPHEN.sub("", _AT.sub("", text.casefold()))


def _is_property(gold: str, normal: str) -> bool:
    """Whether texts say one property of one variable: n odd, "n is odd", "all odd n"."""
    wanted, said = (set(text.casefold().replace(",", " ").split()) - _FILLING for text in (gold, normal))
    return wanted == said and len(wanted) == 2 and len(wanted & _PROPERTIES) == 1 and min(map(len, wanted)) == 1


_NAMES_OF_IT = frozenset("the it this series integral sequence sum limit therefore so thus hence".split())


def said(gold: str, normal: str) -> bool:
    """Return whether normalised texts mean the same: synonyms, names in any order, a word said of what is asked for."""
    if _bare(gold) == _bare(normal) or _is_property(gold, normal):
        return True
    if same_names(gold, normal) or same_words(gold, normal):
        return True
    words = normal.casefold().split()
    return gold.isalpha() and gold.casefold() in words and set(words) - {gold.casefold()} <= _NAMES_OF_IT
