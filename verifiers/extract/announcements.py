"""Marked answers: after "the answer is", "####" or a heading "Answer"; or before "is the answer"."""

from __future__ import annotations

import collections
import re
from pathlib import Path
from typing import NamedTuple

from rlvr.core.files.tables import read_patterns

from .rejections import (
    MATH_VALUE,
    NUMBER_VALUE,
    clause_before,
    find_alternative,
    is_denied,
    is_joined_by_or,
    is_refused,
    is_sentence_refused,
    is_taken_back,
    names_another,
)

MAX_TAIL = 10_000  # marked answers are searched in these last characters only
MAX_SENTENCE = 400
MAX_LAST = 300  # so many characters at the end of a text are searched for an announcement after a box
MAX_REFUSED = 40  # so many rejected answers in a row are skipped

_PATTERNS = read_patterns(
    Path(__file__).with_name("announcements.txt"), MATH_VALUE=MATH_VALUE, NUMBER_VALUE=NUMBER_VALUE
)
_MARKER = re.compile(f"{_PATTERNS['BEHIND']}|{_PATTERNS['PHRASES']}", re.IGNORECASE | re.MULTILINE)
# Every marker contains one of these. A text without them is not searched.
_KEYWORDS = (
    *"answer result solution ans a: #### respuesta ponse antwort sung resposta risposta đáp ответ option choice jibu "
    "choose pick select antwoord svar odpowied odpověď cevap jawaban відповідь απάντηση".split(),
    *"答 所以 选 정답 답 الجواب الإجابة उत्तर উত্তর సమాధానం คำตอบ".split(),
)
_SPECIAL = re.compile(_PATTERNS["SPECIAL"])
DISPLAYED = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SENTENCE_END = re.compile(r"\n|\.(?=\s|$|\*)|[。！？।]|(?<=[^\d!])!(?=\s|$)|</answer>")
# After the answer: a reason, or what the answer is not: "42, since 6 * 7 = 42", "42, not 41".
_CLAUSE = re.compile(_PATTERNS["CLAUSE"], re.IGNORECASE)
_LEADING = re.compile(_PATTERNS["LEADING"], re.IGNORECASE)
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*")


class Mark(NamedTuple):
    """What a marker announces: the answer, where it ends in the text, and whether the words around it reject it."""

    answer: str
    end: int
    rejected: bool


def without_special_tokens(text: str) -> str:
    """Return the end of the text, which is searched for marks, without special tokens and HTML tags."""
    text = text[-MAX_TAIL:]
    return _SPECIAL.sub(" ", text) if "<" in text else text


def has_marker(text: str) -> bool:
    """Whether a text may have a marker: a quick test."""
    lower = text.lower()
    return any(keyword in lower for keyword in _KEYWORDS)


def find_marked(text: str) -> tuple[str | None, str] | None:
    """Return the last marked answer that is not rejected, and "marker" or "bold"; or None and why there is none.

    A rejected mark ("the wrong answer is 41", "the answer is not 41") is skipped, but takes back the same answer before
    it. Without any mark the result is None.
    """
    text = without_special_tokens(text)
    found = list(_MARKER.finditer(text)) if has_marker(text) else []
    denials: set[str] = set()
    for index in range(len(found) - 1, -1, -1):
        mark = _read(text, found, index)
        if mark is None:
            if not found[index]["behind"] and not denials:
                break  # nothing follows the last marker
            continue
        if not mark.rejected:
            if mark.answer in denials or is_taken_back(text, mark.end, mark.answer):
                return None, "the answer is taken back"
            other = find_alternative(text, mark.end)
            return (f"{mark.answer} or {other}" if other else mark.answer), "marker"
        denials.add(_VALUE_ONLY.sub("", mark.answer))
        if len(denials) > MAX_REFUSED:
            return None, "the answer is rejected"
    return _find_bold(text) or ((None, "the answer is rejected") if denials else None)


_VALUE_ONLY = re.compile(r"\A\W*(?:(?:not|no|nicht|pas|non|não|не|不是|不等于)\b\s*)?|\W+\Z", re.IGNORECASE)


def _read(text: str, found: list[re.Match[str]], index: int) -> Mark | None:
    """Return the mark at a marker; None if it announces nothing."""
    marker = found[index]
    clause = clause_before(text, marker.start())
    if marker["behind"]:
        return _read_behind(marker, clause, text)
    while index and is_joined_by_or(text, marker.start()) and marker.start() - found[index - 1].end() < 100:
        index -= 1
        marker = found[index]
    answer, end = read_sentence(text[marker.end() : marker.end() + 4 * MAX_SENTENCE])
    if "|" in marker.group():
        answer = answer.split("|")[0].strip(" *_")
    if not answer:
        return None
    if instead := _NOT_BUT.match(answer):
        answer = instead[1]
    announced = f"{clause} {marker.group()}"
    rejected = is_refused(announced) or names_another(announced) or is_denied(answer)
    rejected = rejected or is_sentence_refused(text, marker.start(), marker.end())
    return Mark(answer, marker.end() + end, rejected)


_VALUE_BEHIND = re.compile(_PATTERNS["VALUE_BEHIND"])
_MAY_HOLD_VALUE = re.compile(r"\d|\$.|\\[(\[a-z]|[A-J]\b")
_SUPPOSING = re.compile(_PATTERNS["SUPPOSING"], re.IGNORECASE)


def find_announced_behind(text: str, end: int) -> str:
    """Return the value of the last plain announcement after an answer ("The final answer is 6."), or ""."""
    text = text[max(end, len(text) - MAX_LAST) :]
    if not _MAY_HOLD_VALUE.search(text) or not has_marker(text):
        return ""
    text = without_special_tokens(text)
    for mark in reversed(list(_MARKER.finditer(text))):
        found = None if mark["behind"] else _VALUE_BEHIND.match(text, mark.end())
        sentence = re.split(r"[.!?\n]", text[max(mark.start() - 200, 0) : mark.start()])[-1]
        if found is None or _SUPPOSING.search(sentence) or is_refused(f"{sentence} {mark.group()}"):
            continue
        displayed = DISPLAYED.fullmatch(found["value"])
        return next(filter(None, displayed.groups())).strip() if displayed else found["value"]
    return ""


_NOT_BUT = re.compile(r"not\s+[^\s,.]{1,40},?\s+but\s+(?:rather\s+)?(?=\S)(.*)", re.DOTALL)  # not 41 but 42
_INTRODUCTION = re.compile(r"\s*(?:(?:we\s+(?:see|conclude)\s+)?that\s+)?", re.IGNORECASE)
_CHOSEN = re.compile(r"(?:(?:the\s+)?(?:option|choice|answer)\s+)?\(?([A-J])\)?", re.IGNORECASE)
_HAS_VALUE = re.compile(r"\d|\$|\\[A-Za-z(]")


def _read_behind(marker: re.Match[str], clause: str, text: str) -> Mark | None:
    """Return the mark of `42 is the answer`, `Option D is correct`."""
    answer = clause[_INTRODUCTION.match(clause).end() :].strip(" *_")  # type: ignore[union-attr]
    chosen = _CHOSEN.fullmatch(answer)
    if not chosen and (marker["lettered"] or len(answer) > 60 or not _HAS_VALUE.search(answer)):
        return None
    if text[marker.end() : marker.end() + 2].strip().startswith("?"):
        return None
    return Mark(
        chosen[1] if chosen else answer,
        marker.end(),
        is_refused(clause) or is_sentence_refused(text, marker.start(), marker.end()),
    )


def _find_bold(text: str) -> tuple[str | None, str] | None:
    """Return the last bold text of the last line."""
    tail = text.rstrip()
    start = max(tail.rfind("\n") + 1, len(tail) - 1000)
    found = find_last_match(_BOLD, tail, start)
    if found is None or found[1].rstrip().endswith(":"):
        return None
    answer = found[1].strip()
    if is_refused(clause_before(tail, found.start())) or is_denied(answer) or is_taken_back(tail, found.end(), answer):
        return None, "the answer is rejected"
    other = find_alternative(tail, found.end())
    return (f"{answer} or {other}" if other else answer), "bold"


def find_last_match(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
    """Return the last match from `start` on."""
    matches = collections.deque(pattern.finditer(text, start), maxlen=1)
    return matches.pop() if matches else None


def read_sentence(text: str) -> tuple[str, int]:
    """Return the answer at the start of `text`, and where it ends.

    It goes to the end of its sentence, without delimiters and emphasis.
    """
    lead = _LEADING.match(text)
    start = lead.end() if lead else 0
    text = text[start:]
    if text.startswith(("$$", "\\[")) and (displayed := DISPLAYED.match(text)):
        return next(group for group in displayed.groups() if group is not None).strip(), start + displayed.end()
    whole = text
    for cut in (_SENTENCE_END, _CLAUSE):
        end = cut.search(text)
        text = text[: end.start()] if end else text
    text = text[: _find_unmatched_brace(text)]
    if _LETTER.fullmatch(text.strip("*_ ")) and (rest := _OPTIONS.match(whole, len(text))):
        text = whole[: rest.end()]
    answer = text.replace("**", " ").replace("__", " ").strip().strip('*_`"').strip()
    return answer[:MAX_SENTENCE], start + len(text)


# "A. B, C, D": a letter, then a list of letters.
_LETTER = re.compile(r"[A-J]")
_OPTIONS = re.compile(_PATTERNS["OPTIONS"])
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def _find_unmatched_brace(text: str) -> int:
    """Return the position of the first brace that closes nothing, or the length of the text."""
    depth = 0
    for brace in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth < 0:
            return brace.start()
    return len(text)
