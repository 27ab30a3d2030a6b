"""English by rules and word lists: sentences, tokens, syllables, verbs; and emoji.

IFBench uses nltk's trained models and tokenizer, and the dictionary of syllapy. The rules here need no more
than words.txt. Sentences and tokens take time linear in the text.
"""

from __future__ import annotations

import re
from pathlib import Path

from rlvr.core.files.tables import read_words

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
    """Split a text into sentences, with their marks, without the white space between them.

    . ! ? and … end a sentence if white space follows, with three exceptions: a full stop after an abbreviation or an
    initial does not end one, an ellipsis ends one only before a capital, and a line break never does.
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
    """Split a text into words and marks as the Penn Treebank does: "don't" is "do" and "n't"; a full stop is one."""
    found = []
    for sentence in sentences(text):
        for pattern, replacement in _SPLITS:
            sentence = pattern.sub(replacement, sentence)
        found += sentence.split()
    return found


_LONGEST_WORD = 100  # letters; longer words are cut
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
    """Count the syllables of a word in small letters without punctuation: at least 1; 0 for a word with a digit."""
    if any(character.isdigit() for character in word):
        return 0
    word = word[:_LONGEST_WORD]
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    count = len(_GROUPS.findall(word)) + len(_HIATUS.findall(word))
    count -= len(_SILENT.findall(word)) if not _SOUNDED.search(word) else 0
    return max(count, 1)


_WORDS = read_words(Path(__file__).with_name("words.txt"))
_DOUBLED = re.compile(r"[^aeiou][aeiou][bdglmnprt]\Z")


def _forms(verb: str) -> set[str]:
    """Return a verb and its forms with -s, -ing and -ed."""
    stem = verb.removesuffix("e") if not verb.endswith(("ee", "be")) else verb
    if _DOUBLED.search(verb) and len(verb) < 5:
        stem = verb + verb[-1]
    ending = re.search(r"[^aeiou]y\Z", verb)
    third = (
        f"{verb[:-1]}ies" if ending else f"{verb}es" if verb.endswith(("s", "sh", "ch", "x", "z", "o")) else f"{verb}s"
    )
    past = f"{verb[:-1]}ied" if ending else f"{stem}ed"
    return {verb, third, f"{stem}ing", past}


_FORMS = _WORDS["irregular"].union(*map(_forms, _WORDS["verbs"]))


def is_verb(word: str) -> bool:
    """Whether the word is a form of one of some 400 verbs, or ends with -ing. Case does not count."""
    word = word.lower()
    return word in _FORMS or (len(word) > 6 and word.endswith("ing") and word not in _WORDS["not verbs"])


# Characters that are emoji by themselves: Unicode's property Emoji without digits, # and *, and letters of flags.
_EMOJI = frozenset(
    chr(code)
    for first, _, last in (one.partition("-") for one in _WORDS["emoji"])
    for code in range(int(first, 16), int(last or first, 16) + 1)
)


def is_emoji(character: str) -> bool:
    return character in _EMOJI
