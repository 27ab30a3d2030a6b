"""Answers to the parts of a question, (a) 5 (b) 6, and lists of names."""

from __future__ import annotations

import re

from rlvr.verifiers.math.labels import in_part
from rlvr.verifiers.math.lex import plain
from rlvr.verifiers.math.parse import parse
from rlvr.verifiers.math.tree import Node, Op, ParseError, TooLarge, Words
from rlvr.verifiers.math.words import normal_text

MAX_CHARS = 600
MAX_PARTS = 8
_OPENING = r"(?:\\text(?:bf)?\s*\{\s*)?(?:[Pp]art\s*)?"
_CLOSING = r"\s*[.:=]?\s*\}?\s*[.:=]?(?:\\[ ,;:]|~|\s)*"
_FIRST = re.compile(rf"\s*\$?\s*{_OPENING}(?:\(\s*(?:a|i|1|A)\s*\)|a\)|a\.\s)")
_SERIES = ("abcdefgh", ("i", "ii", "iii", "iv", "v", "vi"), "123456", "ABCDEF")
_BETWEEN = re.compile(r"(?:\\q?quad(?![A-Za-z])|\\\\|\\[ ,;:]|[\s,;$~]|\band\b|\\text\s*\{\s*(?:and)?\s*\})+\Z")


def parts(text: str) -> list[tuple[str, str]]:
    """Return the labels and the texts of an answer in parts; none where it is another answer."""
    if (")" not in text and "a." not in text) or len(text) > MAX_CHARS or not _FIRST.match(text):
        return []
    for series in _SERIES:
        found = _split(text, list(series))
        if len(found) > 1:
            return found
    return []


def _split(text: str, series: list[str]) -> list[tuple[str, str]]:
    """Cut a text at the labels of a series, which must begin it."""
    starts: list[tuple[int, int]] = []
    position = 0
    for label in series[:MAX_PARTS]:
        closed = rf"\(\s*{label}\s*\)|(?<![A-Za-z0-9(\\]){label}\)" if label != "1" else r"\(\s*1\s*\)"
        pattern = re.compile(rf"\$?\s*{_OPENING}(?:{closed}|(?<![A-Za-z0-9(\\]){label}\.(?=\s)){_CLOSING}")
        match = pattern.search(text, position)
        if match is None or (not starts and text[: match.start()].strip(" $")):
            break
        starts.append((match.start(), match.end()))
        position = match.end()
    if len(starts) < 2:
        return []
    ends = [start for start, _ in starts[1:]] + [len(text)]
    pieces = [_BETWEEN.sub("", text[inside:end]).strip() for (_, inside), end in zip(starts, ends, strict=True)]
    return list(zip(series, pieces, strict=False)) if all(pieces) else []


def in_parts(pieces: list[tuple[str, str]]) -> Node | None:
    """Return the tree of an answer in parts; words where one is text, None where it is too large."""
    values: list[Node] = []
    for _, piece in pieces:
        try:
            values.append(parse(piece))
        except ParseError:
            values.append(Words(normal_text(plain(piece)).casefold()))
        except TooLarge:
            return None
    return Op("list", tuple(in_part(label, value) for (label, _), value in zip(pieces, values, strict=True)))


_JOINTS = re.compile(r"\s*(?:,\s*(?:and\s+)?|;\s*|\s+and\s+|\s*&\s*)\s*")
_NAME = re.compile(r"[^\W\d_]{2,}(?:[ '-][^\W\d_]+){0,3}")
_NO_NAMES = frozenset("not no or if then yes true false".split())


def same_names(gold: str, answer: str) -> bool:
    """Whether both normalised texts are the same names in any order.

    With commas, three or more of them, or two that are not in alphabetical order, are an order."""
    names, others = _names(gold), _names(answer)
    if len(names) < 2:
        return False
    if "," in gold and (names != sorted(names) or (len(names) > 2 and " and " not in gold)):
        return names == others
    return sorted(names) == sorted(others)


def _names(text: str) -> list[str]:
    names = _JOINTS.split(text.casefold().strip(" .")) if len(text) <= MAX_CHARS else []
    words = {word for name in names for word in name.split()}
    return names if all(map(_NAME.fullmatch, names)) and words.isdisjoint(_NO_NAMES) else []
