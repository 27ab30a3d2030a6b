"""Sentences and tokens of English text by rules, where IFBench takes nltk's trained model and its tokenizer.

Both take time linear in the text.
"""

from __future__ import annotations

import re

ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof sr jr st vs etc e.g i.e no vol fig al inc ltd co corp dept u.s u.k a.m p.m p.s p.p.s".split()
)

_LONGEST = 40  # characters before a full stop that are looked at
_END = re.compile(r"(?<![.!?…])(?P<marks>[.!?…]++)[\"'”’)\]}]*+(?P<gap>\s++)(?P<following>\S)")
_MORE_ABBREVIATIONS = frozenset(
    "jan feb mar apr jun jul aug sep sept oct nov dec gen col sgt capt lt gov sen rep rev hon".split()
)
_SPLITS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"([\"«»“”„‘’`])", r" \1 "),
        (r"(?<=[^.\s])\.(?=[\]})>\"'»”’ ]*\Z)", " . "),
        (r"([:,])(?=\D|\Z)", r" \1 "),
        (r"(\.{2,}|--|[;@#$%&?!\[\](){}<>])", r" \1 "),
        (r"(?i)(?<=[^'\s])('s|'m|'d|'ll|'re|'ve|n't|')(?=\s|\Z)", r" \1"),
        (r"(?i)\b(can)(not)\b|\b(gon|wan)(na)\b|\b(got)(ta)\b|\b(gim|lem)(me)\b", r" \1\3\5\7 \2\4\6\8 "),
    ]
)


def sentences(text: str) -> list[str]:
    """Split a text into sentences with their marks, without the white space between them.

    . ! ? and … end a sentence where white space follows; a full stop does not behind an abbreviation or an initial,
    an ellipsis does only before a capital, a line break never does.
    """
    found, start = [], 0
    for end in _END.finditer(text):
        if _ends(text[max(start, end.start() - _LONGEST) : end.start()], end["marks"], end["following"]):
            found.append(text[start : end.start("gap")])
            start = end.end("gap")
    found.append(text[start:])
    return [sentence.strip() for sentence in found if sentence.strip()]


def _ends(before: str, marks: str, following: str) -> bool:
    if "!" in marks or "?" in marks:
        return True
    if len(marks) > 1 or marks == "…":
        return following.isupper()
    words = before.split()
    last = words[-1].lstrip("(\"'“‘[{*_").lower() if words and not before[-1].isspace() else ""
    if last.isdigit():
        return not following.islower()
    initial = len(last) == 1 and last.isalpha() and last != "i" and following.isupper()
    return not (initial or last in ABBREVIATIONS or last in _MORE_ABBREVIATIONS)


def tokens(text: str) -> list[str]:
    """Split a text into words and marks as the Penn Treebank does: "don't" is "do" and "n't", a full stop its own."""
    found = []
    for sentence in sentences(text):
        for pattern, replacement in _SPLITS:
            sentence = pattern.sub(replacement, sentence)
        found += sentence.split()
    return found
