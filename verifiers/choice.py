r"""The verifier `choice`: the letter of a multiple-choice answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from rlvr.core.printable import kind_of
from rlvr.core.registry import register
from rlvr.core.types import Verdict, correct, incorrect, no_answer, unparseable

from .extract import BYTE_ORDER_MARK, after_thinking, extract
from .extract.answer import excerpt, read_answer, without_answer
from .runner.base import ReferenceVerifier

# LaTeX commands around the letter, emphasis and delimiters, which have no meaning.
_WRAPPERS = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathsf|bf|rm)(?![A-Za-z])\s*|\\[()\[\] ,;]|[${}*_`\"'~]")
_LABEL = re.compile(r"(?:(?:the|option|choice|answer|letter)\s+|answer\s*:\s*)*", re.IGNORECASE)
_ALONE = re.compile(r"[(\[]?([A-Za-z])[)\]]?[.:]?")
# A letter with its option's text: "(B) Paris", "B. Paris", "B: Paris".
_LABELLED = re.compile(r"(?:[(\[]([A-Za-z])[)\]]|([A-Z])[.):])[\s:.-]*(?=\S)")
# A letter and the rest of its sentence: "B because ...", "(B), since ...".
_GROUNDS = re.compile(
    r"(?:[(\[]([A-Za-z])[)\]]|([A-Z]))\s*,?\s+(?:because|since|as(?!\s+well)|for|which|so|is\s+(?:correct|right)|-+|–|—)(?:\s|$)",
)
_SEVERAL = re.compile(
    r"[(\[]?\b([A-Za-z])\b[)\]]?[.:]?(?:\s*(?:,|;|/|&|\+|\bor\b|\band\b|\beither\b)\s*[(\[]?\b[A-Za-z]\b[)\]]?)+",
    re.IGNORECASE,
)
_HEDGE = re.compile(
    r"\b(?:or|either|neither|nor|maybe|perhaps|possibly|probably|not|isn't|none|unsure)\b", re.IGNORECASE
)
_STANDING = re.compile(r"(?<![A-Za-z'’])[B-HJ-Z](?![A-Za-z'’])|[(\[][A-Z][)\]]")
# After a choice and its text or reason, another one: "... or C", "... (C) London".
_SECOND = re.compile(
    r"\b(?:or|maybe|perhaps|possibly)\s+(?:option\s+|choice\s+)?[(\[]?([A-Z])\b(?!\s+[a-z])|[(\[]([A-Z])[)\]]",
    re.IGNORECASE,
)
# After a letter other letters instead of an option's text ("A. B, C, D"), or a second label ("A) 12, B) 13").
_LETTERS_ONLY = re.compile(r"(?:\W*\b(?:[A-Z]|and|or|&)\b)+\W*")
_NEXT_LABEL = re.compile(r"[,;.]\s*\(?[B-Z][).:]\s")
_LABEL_OF_LINE = re.compile(r"[\s>#-]*[(\[]?([A-Z])[)\].:]\s+\S")
_LIST = re.compile(r"(?<![A-Za-z'’])[A-Z](?:\s*(?:[,;/&|]|\band\b|\bor\b)*\s*[A-Z](?![A-Za-z]))+")
HEDGED = "hedged"


@register("choice")
@dataclass(frozen=True, kw_only=True)
class ChoiceVerifier(ReferenceVerifier[frozenset[str]]):
    r"""Whether the chosen letter (A to Z) is the reference's.

    The letter is read from a box, an answer tag or "the answer is (B)"; otherwise from a last line that holds only a
    letter, perhaps with its option's text. A hedge ("B or C", "not B", "maybe B") is wrong. If the reference has
    several letters ("AC", ["A", "C"]), exactly these must be chosen. conflict="reject": different boxes are no answer.
    """

    conflict: Literal["last", "reject"] = "last"

    def judge(self, wanted: frozenset[str], completion: str) -> Verdict:
        answer = extract(completion, "marked", self.conflict)
        # "Answer:" on one line and the letter on the next.
        text = answer.text or (_last_line(completion) if answer.how == "no boxed or marked answer" else None)
        if answer.how == "bold" and _last_line(completion) is None:
            text = None
        if text is None:
            return without_answer(completion, answer) if answer.text is None else no_answer("a list of options")
        said = _read_choice(text, several=len(wanted) > 1)
        quote = excerpt(text.strip(), 200)
        if said == HEDGED:
            return incorrect(HEDGED, quote)
        if isinstance(said, str):
            return no_answer("no choice found") if answer.text is None else unparseable(said, quote)
        if said == wanted:
            return correct("".join(sorted(said)))
        return incorrect("another choice", "".join(sorted(said)))

    def read_reference(self, reference: Any) -> frozenset[str]:
        """Return the letters. Raise ValueError unless the reference is one letter or several."""
        parts = list(reference) if isinstance(reference, (list, tuple)) else [reference]
        letters: list[str] = []
        for part in parts:
            if not isinstance(part, str):
                raise ValueError(f"the reference is {kind_of(part)}; expected a letter, or several")
            bare = re.sub(r"[\s,;()\[\].]", "", part.removeprefix(BYTE_ORDER_MARK))
            if not re.fullmatch(r"[A-Z]{1,26}|[a-z]", bare):
                raise ValueError(f"the reference {part!r} is not a letter from A to Z, nor several")
            letters += bare.upper()
        if not letters:
            raise ValueError("an empty list as reference; expected a letter")
        return frozenset(letters)


def _last_line(completion: str) -> str | None:
    """Return the last line; None if it is one of several labelled lines, since a list of options chooses none."""
    text = after_thinking(completion)
    lines = [line for line in text.splitlines() if line.strip()][-2:] if text is not None else []
    labels = {found[1] if (found := _LABEL_OF_LINE.match(_WRAPPERS.sub(" ", line))) else "" for line in lines}
    return None if text is None or len(labels - {""}) > 1 else read_answer(text, "last_line").text


def _continues_list(letter: str, label: str, rest: str) -> bool:
    """Whether the next letter follows with the same sign after it: "A) 12 B) 13"."""
    sign = re.sub(r"[\[( A-Za-z]", "", label)[:1]
    following = chr(ord(letter.upper()) + 1)
    return bool(sign) and re.search(rf"(?<![A-Za-z]){following}{re.escape(sign)}\s", rest) is not None


def _read_choice(text: str, *, several: bool) -> frozenset[str] | str:
    """Return the letters that an answer chooses, or why it chooses none."""
    bare = " ".join(_WRAPPERS.sub(" ", text[:1000]).split()).strip(" ,;")
    bare = bare[_LABEL.match(bare).end() :].strip()  # type: ignore[union-attr]
    if alone := _ALONE.fullmatch(bare):
        return frozenset(alone[1].upper())
    if _SEVERAL.fullmatch(bare.rstrip(".")):
        letters = frozenset(re.findall(r"\b[A-Za-z]\b", bare.upper()))
        return letters if len(letters) == 1 or (several and " OR " not in bare.upper()) else HEDGED
    if several and re.fullmatch(r"[A-Z]{2,26}", bare):
        return frozenset(bare)
    match = _LABELLED.match(bare) or _GROUNDS.match(bare)
    if match is None:
        return HEDGED if _HEDGE.search(bare) and _STANDING.search(bare) else "not a choice"
    letter = (match[1] or match[2]).upper()
    rest = bare[match.end() :]
    if _continues_list(letter, match.group(), rest):
        return HEDGED
    listed = any(letter in found.group() for found in _LIST.finditer(rest))
    if listed or _NEXT_LABEL.search(rest) or (_LETTERS_ONLY.fullmatch(rest) and letter not in rest.split()):
        return HEDGED
    others = {(one or two).upper() for one, two in _SECOND.findall(rest)} - {letter}
    return HEDGED if others or _HEDGE.match(rest) else frozenset(letter)
