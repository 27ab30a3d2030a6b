"""The number of syllables of an English word by rules, where IFBench takes a dictionary."""

from __future__ import annotations

import re

_LONGEST = 100  # letters; longer words are cut
_GROUPS = re.compile(r"[aeiouy]+")
_SILENT = re.compile(
    r"(?:(?<=[^aeiouy])(?:e|(?<![sxzcg])(?<!ch)(?<!sh)es|(?<![td])ed)|(?<=[qg]u)es?)\Z"
    r"|(?<=[a-z][^aeiouyl])e(?=(?:ment|ly|ful|ness|less|fore|thing|times?|work|ware)(?:s|ly)?\Z)"
)
_SOUNDED = re.compile(r"[^aeiouylr]le(?:s|d)?\Z|[^aeiouy]re(?:s|d)?\Z")
# Vowels next to each other that belong to two syllables.
_HIATUS = re.compile(
    r"(?<![cstgx])(?:io|ia|iu|ien(?!d))|ie(?=ty|nt[is]|nc)|ie[rt]\Z|(?<!g)eo(?!u)|[aeiouy]ing|[^qg]ua[^r]|[^qg]uen|uou"
    r"|eu(?=m)|(?<=[^aeiouyq])uel\Z|oe[mt]|[^aeiou]yi|[ae]yo|creat(?!ur)|ealis|eality|[^aeiouqg]ui[dt]y?\Z"
)
_EXCEPTIONS = {
    **dict.fromkeys(("every", "business", "being", "people", "real", "layer", "maybe", "chaos", "lion", "poem"), 2),
    **dict.fromkeys(("area", "areas", "idea", "ideas", "ideal", "nuclear", "linear", "behavior"), 3),
    **dict.fromkeys(("the", "me", "be", "he", "she", "we"), 1),
}


def count_syllables(word: str) -> int:
    """Count the syllables of a word in small letters without punctuation; 0 for one with a digit, 1 at least else."""
    if any(character.isdigit() for character in word):
        return 0
    word = word[:_LONGEST]
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    count = len(_GROUPS.findall(word)) + len(_HIATUS.findall(word))
    count -= len(_SILENT.findall(word)) if not _SOUNDED.search(word) else 0
    return max(count, 1)
