"""Words beside a value that say its direction or its kind: 5 km north is not 5 km south. And words for one thing."""

from __future__ import annotations

import re

_FAMILIES = (
    ("north northward northwards", "south southward southwards", "east eastward eastwards", "west westward westwards",
     "northeast", "northwest", "southeast", "southwest"),
    ("left", "right"),
    ("up upward upwards", "down downward downwards"),
    ("above", "below"),
    ("profit gain", "loss"),
    ("ago earlier before", "later after hence"),
    ("older", "younger"),
    ("clockwise", "counterclockwise anticlockwise counter-clockwise anti-clockwise"),
    ("attractive", "repulsive"),
    ("increase increased", "decrease decreased"),
    ("deposit", "withdrawal"),
    ("taller", "shorter"),
    ("heavier", "lighter"),
    ("faster", "slower"),
    ("inward inwards", "outward outwards"),
    ("absorbed", "released"),
)  # fmt: skip
_SENSES = {
    word: (family, sense)
    for family, senses in enumerate(_FAMILIES)
    for sense, words in enumerate(senses)
    for word in words.split()
}
_WORD = re.compile(
    r"(?<![A-Za-z\\-])(?:" + "|".join(sorted(map(re.escape, _SENSES), key=len, reverse=True)) + r")(?![A-Za-z-])"
)
_ALPHABETIC = re.compile(r"[A-Za-z]{2}")


def opposed(gold: str, answer: str) -> bool:
    """Whether words of two texts exclude one another: north and south, profit and loss."""
    if not _ALPHABETIC.search(gold) or not (wanted := _senses(gold)):
        return False
    return any(family in wanted and sense != wanted[family] for family, sense in _senses(answer).items())


def _senses(text: str) -> dict[int, int]:
    """The sense of each family of which a text has exactly one."""
    found: dict[int, set[int]] = {}
    for word in _WORD.findall(text.lower()):
        family, sense = _SENSES[word]
        found.setdefault(family, set()).add(sense)
    return {family: senses.pop() for family, senses in found.items() if len(senses) == 1}


_SYNONYMS = {
    name: place
    for place, names in enumerate(
        (
            ("undefined", "not defined", "is undefined", "does not exist", "dne"),
            ("diverges", "divergent", "is divergent"),
            ("converges", "convergent", "is convergent"),
            ("infinitely many", "infinitely many solutions", "infinite number of solutions", "infinite solutions"),
        )
    )
    for name in names
}
_REASONED = re.compile(r"(yes|no)(?:[,;:.]|\s+because\b)\s*(\S.*)", re.DOTALL)
_UNSURE = re.compile(r"\b(?:yes|no|but|maybe|perhaps|or|unless|if|not\s+sure|unsure)\b")


def same_words(gold: str, answer: str) -> bool:
    """Whether normalised texts have one meaning: undefined and does not exist, Yes and "Yes, it is"."""
    gold, answer = gold.casefold(), answer.casefold()
    if gold in _SYNONYMS and _SYNONYMS.get(answer) == _SYNONYMS[gold]:
        return True
    if gold not in ("yes", "no"):
        return False
    match = _REASONED.match(answer)
    return match is not None and match[1] == gold and not _UNSURE.search(match[2])
