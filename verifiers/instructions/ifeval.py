"""The 25 checks of IFEval (arXiv:2311.07911) as functions of a response and of their own parameters.

Names, parameters and meanings are IFEval's. A check takes time linear in the text. The differences:
- Keywords are plain text, not regular expressions.
- Sentences are split by a rule instead of nltk's model. Words in capitals are runs of word characters and hyphens
  instead of nltk's tokens.
- english_capital and english_lowercase test the case only. response_language needs the package langdetect.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from typing import Any, Literal

from .english import ABBREVIATIONS

Relation = Literal["less than", "at least", "at most", "more than", "exactly"]
Check = Callable[..., bool]

CHECKS: dict[str, Check] = {}

_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "less than": int.__lt__,
    "at least": int.__ge__,
    "at most": int.__le__,
    "more than": int.__gt__,
    "exactly": int.__eq__,
}
_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)|[。！？]+")
_HIGHLIGHT = re.compile(r"\*\*([^*\n]+)\*\*|\*([^*\n]+)\*")
_FENCE = re.compile(r"\A```(?:json)?|```\Z", re.IGNORECASE)


def enter_into(table: dict[str, Check]) -> Callable[[str], Callable[[Check], Check]]:
    """Return a decorator that enters a check into the table, under the name that it is given."""

    def check(name: str) -> Callable[[Check], Check]:
        def add(function: Check) -> Check:
            table[name] = function
            return function

        return add

    return check


check = enter_into(CHECKS)


@check("keywords:existence")
def keywords_existence(text: str, *, keywords: list[str]) -> bool:
    """Each keyword occurs, perhaps within a word. Case does not count."""
    lowered = text.lower()
    return all(keyword.lower() in lowered for keyword in keywords)


@check("keywords:frequency")
def keyword_frequency(text: str, *, keyword: str, frequency: int, relation: Relation) -> bool:
    """The keyword occurs as often as required, perhaps within words. Case does not count."""
    return _RELATIONS[relation](text.lower().count(keyword.strip().lower()), frequency)


@check("keywords:forbidden_words")
def forbidden_words(text: str, *, forbidden_words: list[str]) -> bool:
    """None of the words occurs as a whole word. Case does not count."""
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)


@check("keywords:letter_frequency")
def letter_frequency(text: str, *, letter: str, let_frequency: int, let_relation: Relation) -> bool:
    """The character occurs as often as required. Case does not count."""
    return _RELATIONS[let_relation](text.lower().count(letter.strip().lower()), let_frequency)


@check("language:response_language")
def response_language(text: str, *, language: str) -> bool:
    """The text is in this language (ISO 639-1 code)."""
    detector = language_detector()
    try:
        return str(detector.detect(text)) == language
    except detector.LangDetectException:  # nothing in the text has a language
        return False


def language_detector() -> Any:
    """Return the package langdetect, made deterministic. Raise ValueError if it is not installed."""
    try:
        detector = importlib.import_module("langdetect")
    except ModuleNotFoundError:
        raise ValueError("language:response_language needs the package langdetect (pip install langdetect)") from None
    detector.DetectorFactory.seed = 0
    return detector


@check("length_constraints:number_sentences")
def number_sentences(text: str, *, num_sentences: int, relation: Relation) -> bool:
    """The number of sentences is as required."""
    return _RELATIONS[relation](count_sentences(text), num_sentences)


def count_sentences(text: str) -> int:
    """Count sentences. They end at . ! ? (but not in abbreviations, numbers and initials) or at a line break."""
    count = 0
    for line in text.splitlines():
        place = 0
        for end in _SENTENCE_END.finditer(line):
            if end.group() == "." and not _ends_sentence(line, place, end.start()):
                continue
            count += any(c.isalnum() for c in line[place : end.start()])
            place = end.end()
        count += any(c.isalnum() for c in line[place:])
    return count


def _ends_sentence(line: str, start: int, stop: int) -> bool:
    """Whether the full stop at `stop` ends the sentence that begins at `start`; in "Dr.", "J." or "1." it does not."""
    words = line[max(start, stop - 40) : stop].split()  # bounded, so that a line of abbreviations takes linear time
    last = words[-1].strip("(\"'“‘[") if words else ""
    listed = last.isdigit() and line[max(start, stop - 40) : stop].strip() == last
    initial = len(last) == 1 and last.isupper() and last != "I"
    return not (listed or initial or last.lower() in ABBREVIATIONS)


@check("length_constraints:number_words")
def number_words(text: str, *, num_words: int, relation: Relation) -> bool:
    """The number of words (runs of letters, digits and underscores) is as required."""
    return _RELATIONS[relation](len(re.findall(r"\w+", text)), num_words)


@check("length_constraints:number_paragraphs")
def number_paragraphs(text: str, *, num_paragraphs: int) -> bool:
    """There are exactly `num_paragraphs` paragraphs with *** between them, none of them blank."""
    paragraphs = _split_outer(text, "***")
    return paragraphs is not None and len(paragraphs) == num_paragraphs


@check("length_constraints:nth_paragraph_first_word")
def nth_paragraph_first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Blank lines separate exactly `num_paragraphs` paragraphs, and the n-th (from 1) begins with this word."""
    pieces = text.split("\n\n")
    if sum(bool(piece.strip()) for piece in pieces) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    words = pieces[nth_paragraph - 1].split()
    if not words:
        return False
    return re.split(r"[.,?!'\"]", words[0].lstrip("'\""))[0].lower() == first_word.lower()


@check("detectable_content:number_placeholders")
def number_placeholders(text: str, *, num_placeholders: int) -> bool:
    """At least `num_placeholders` placeholders in square brackets."""
    return len(re.findall(r"\[[^\[\]\n]*\]", text)) >= num_placeholders


@check("detectable_content:postscript")
def postscript(text: str, *, postscript_marker: str) -> bool:
    """A postscript with this marker ("P.S." and "P.P.S" also with spaces between)."""
    marker = postscript_marker.strip().lower()
    spaced = {"p.s.": r"p\.\s?s\.", "p.p.s": r"p\.\s?p\.\s?s"}
    return re.search(spaced.get(marker, re.escape(marker)), text.lower()) is not None


@check("detectable_format:number_bullet_lists")
def number_bullet_lists(text: str, *, num_bullets: int) -> bool:
    """Exactly `num_bullets` lines that begin with * or -."""
    lines = [line.lstrip() for line in text.splitlines()]
    bullets = sum(line.startswith("-") or (line.startswith("*") and line[1:2] not in ("*", "")) for line in lines)
    return bullets == num_bullets


@check("detectable_format:number_highlighted_sections")
def number_highlighted_sections(text: str, *, num_highlights: int) -> bool:
    """At least `num_highlights` parts *highlighted* or **highlighted**."""
    return sum(bool((one or two).strip()) for two, one in _HIGHLIGHT.findall(text)) >= num_highlights


@check("detectable_format:multiple_sections")
def multiple_sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    """At least `num_sections` sections that begin with this word and a number."""
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d", text)) >= num_sections


@check("detectable_format:json_format")
def json_format(text: str) -> bool:
    """The whole text is JSON, with or without a fence around it."""
    try:
        json.loads(_FENCE.sub("", text.strip()).strip())
    except (ValueError, RecursionError):
        return False
    return True


@check("detectable_format:title")
def title(text: str) -> bool:
    """A line holds a title <<like this>>."""
    for line in text.splitlines():
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end and line[start:end].strip("<> \t"):
            return True
    return False


@check("combination:two_responses")
def two_responses(text: str) -> bool:
    """Two different responses with ****** between them."""
    responses = _split_outer(text, "******")
    return responses is not None and len(responses) == 2 and responses[0] != responses[1]


@check("combination:repeat_prompt")
def repeat_prompt(text: str, *, prompt_to_repeat: str) -> bool:
    """Begins with the request, word for word."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@check("startend:end_checker")
def end_checker(text: str, *, end_phrase: str) -> bool:
    """Ends with the phrase. Case and a quotation mark after it do not count."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@check("startend:quotation")
def quotation(text: str) -> bool:
    """Wrapped in double quotation marks."""
    text = text.strip()
    return len(text) > 1 and text[0] == '"' and text[-1] == '"'


@check("change_case:capital_word_frequency")
def capital_word_frequency(text: str, *, capital_frequency: int, capital_relation: Relation) -> bool:
    """The number of words in capitals is as required; hyphenated words are one."""
    count = sum(word.isupper() for word in re.findall(r"\w+(?:-\w+)*", text))
    return _RELATIONS[capital_relation](count, capital_frequency)


def _split_outer(text: str, divider: str) -> list[str] | None:
    """Return the parts between dividers, without blank ones at the ends; None if one in the middle is blank."""
    parts = [part.strip() for part in text.split(divider)]
    if not all(parts[1:-1]):
        return None
    return [part for part in parts if part]


# The checks without parameters that one expression decides.
CHECKS |= {
    # One of "My answer is yes.", "My answer is no.", "My answer is maybe." occurs.
    "detectable_format:constrained_response": lambda text: any(answer in text for answer in _CONSTRAINED),
    # No small letters.
    "change_case:english_capital": lambda text: text.isupper(),
    # No capital letters.
    "change_case:english_lowercase": lambda text: text.islower(),
    # No comma.
    "punctuation:no_comma": lambda text: "," not in text,
}
