"""Answers that are letters of choices."""

from __future__ import annotations

import re

# (A) | A. A: A) | a. a) | A  -- and what follows the letter.
_CHOICE = re.compile(
    r"(?:option|choice|answer|选项|选择|选|選項)?\s*(?:\{?\(\s*([A-Ja-j])\s*\)\}?|\{?([A-Ja-j])[.:)](?:\}|(?=\s|\Z))|([A-J])\Z)\s*[.:]?\s*(.*)\Z",
    re.DOTALL,
)
_CONFIRMED = re.compile(r"\s+is\s+(?:the\s+)?(?:correct|right)(?:\s+(?:answer|choice|option|one))?\s*[.!]?\Z")
_FIRST = frozenset("({ABCDEFGHIJabcdefghijo选選 ")  # what _CHOICE begins with
_OTHER_CHOICE = re.compile(
    r"\A(?:[+*/^_=!,;&|]|\bthrough\b)|\([A-Ja-j]\)|\b[B-J]\b[.)]|\b(?:or|and|not)\b"
    r"|(?<![A-Za-z])[A-J]\s*(?:[,;/&|]|\bto\b)\s*[A-J](?![A-Za-z])"
    r"|(?<![A-Za-z])[A-J]\s+(?:works|fits|(?:is|was|seems|looks)\s+(?:better|best|right|correct|the\s+(?:answer|right|best)))\b"
    r"|\b[Nn]o\W+[A-J]\b|\A(?:(?:is|was|seems|looks)\s+(?:\w+ly\s+)?(?:incorrect|wrong|false|eliminated|excluded|rejected|ruled"
    r"|invalid|impossible|out)|fails|failed|does\s?n[o'’]t|cannot|can['’]t|isn['’]t|won['’]t)\b"
    r"|\A(?:all|any|both|each|either|every|none|neither)\b(?=[^.]*\b(?:of\b|[A-J]\b|above\b|options\b|them\b))"
)


def choice(normal: str) -> tuple[str, str]:
    """Return the letter of a choice and the text after it; ("", "") where the text is not a choice."""
    if len(normal) >= 400 or normal[:1] not in _FIRST:
        return "", ""
    match = _CHOICE.match(_CONFIRMED.sub("", normal) if " is " in normal else normal)
    if match is None or _OTHER_CHOICE.search(match[4]):
        return "", ""
    return (match[1] or match[2] or match[3]).upper(), match[4]


def lone_choice(normal: str) -> str:
    """Return the letter of a text that is a choice and nothing else, else ""."""
    letter, rest = choice(normal)
    return "" if rest else letter


_LETTERS = (*"(ABCDEFGH",)
_CHOICES = re.compile(r"\(?[A-H]\)?(?:\s*(?:,|;|&|and)*\s*\(?[A-H]\)?){1,7}\Z")


def choices(normal: str) -> str:
    """Return the letters of several choices as written: ABD for "A, B and D"; "" where the text is none."""
    if not normal.startswith(_LETTERS) or len(normal) > 60 or not _CHOICES.match(normal):
        return ""
    letters = "".join(c for c in normal if c in "ABCDEFGH")
    return letters if len(set(letters)) == len(letters) else ""
