"""English by rules and word lists: sentences, tokens, syllables, verbs; and emoji.

IFBench uses nltk's trained models and tokenizer, and the dictionary of syllapy. The rules here need no data. Sentences
and tokens take time linear in the text.
"""

from __future__ import annotations

import re
from pathlib import Path

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


# Verbs, and after an empty line irregular forms of verbs.
_VERBS, _IRREGULAR = map(str.split, Path(__file__).with_name("verbs.txt").read_text("utf-8").split("\n\n"))
_NOT_VERBS = frozenset(
    "during nothing something anything everything morning evening ceiling wedding darling sibling herring building "
    "pudding stocking earring".split()
)
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


_FORMS = frozenset(_IRREGULAR).union(*map(_forms, _VERBS))


def is_verb(word: str) -> bool:
    """Whether the word is a form of one of some 400 verbs, or ends with -ing. Case does not count."""
    word = word.lower()
    return word in _FORMS or (len(word) > 6 and word.endswith("ing") and word not in _NOT_VERBS)


# Characters that are emoji by themselves: Unicode's property Emoji without digits, # and *, and letters of flags.
_RANGES = """a9 ae 203c 2049 2122 2139 2194-2199 21a9-21aa 231a-231b 2328 23cf 23e9-23f3 23f8-23fa 24c2 25aa-25ab 25b6
25c0 25fb-25fe 2600-2604 260e 2611 2614-2615 2618 261d 2620 2622-2623 2626 262a 262e-262f 2638-263a 2640 2642 2648-2653
265f-2660 2663 2665-2666 2668 267b 267e-267f 2692-2697 2699 269b-269c 26a0-26a1 26a7 26aa-26ab 26b0-26b1 26bd-26be
26c4-26c5 26c8 26ce-26cf 26d1 26d3-26d4 26e9-26ea 26f0-26f5 26f7-26fa 26fd 2702 2705 2708-270d 270f 2712 2714 2716 271d
2721 2728 2733-2734 2744 2747 274c 274e 2753-2755 2757 2763-2764 2795-2797 27a1 27b0 27bf 2934-2935 2b05-2b07 2b1b-2b1c
2b50 2b55 3030 303d 3297 3299 1f004 1f0cf 1f170-1f171 1f17e-1f17f 1f18e 1f191-1f19a 1f201-1f202 1f21a 1f22f 1f232-1f23a
1f250-1f251 1f300-1f321 1f324-1f393 1f396-1f397 1f399-1f39b 1f39e-1f3f0 1f3f3-1f3f5 1f3f7-1f4fd 1f4ff-1f53d 1f549-1f54e
1f550-1f567 1f56f-1f570 1f573-1f57a 1f587 1f58a-1f58d 1f590 1f595-1f596 1f5a4-1f5a5 1f5a8 1f5b1-1f5b2 1f5bc 1f5c2-1f5c4
1f5d1-1f5d3 1f5dc-1f5de 1f5e1 1f5e3 1f5e8 1f5ef 1f5f3 1f5fa-1f64f 1f680-1f6c5 1f6cb-1f6d2 1f6d5-1f6d9 1f6dc-1f6e5 1f6e9
1f6eb-1f6ec 1f6f0 1f6f3-1f6fc 1f7e0-1f7eb 1f7f0 1f90c-1f93a 1f93c-1f945 1f947-1f9ff 1fa70-1fa7c 1fa80-1fac6 1fac8
1facc-1fadd 1fadf-1faeb 1faef-1fafa"""
_EMOJI = frozenset(
    chr(code)
    for first, _, last in (one.partition("-") for one in _RANGES.split())
    for code in range(int(first, 16), int(last or first, 16) + 1)
)


def is_emoji(character: str) -> bool:
    """Whether a character is an emoji; "" is not."""
    return character in _EMOJI
