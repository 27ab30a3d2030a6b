r"""Answers that a completion does not give: negated, called wrong, supposed, taken back; or joined to another one.

`is_refused` and `is_value_refused` look at the words before an answer, `is_denied` at those of its own sentence,
`is_taken_back` and `find_alternative` at the text after it. Each reads a bounded stretch of text. The patterns are in
rejections.txt, in several languages, and in words.txt the words by which texts without any are found quickly.
"""

from __future__ import annotations

import re
from pathlib import Path

from rlvr.core.files.tables import read_patterns, read_words

_PATTERNS = read_patterns(Path(__file__).with_name("rejections.txt"))
_WORDS = read_words(Path(__file__).with_name("words.txt"))
# The first letters of the words that the patterns below look for, in ASCII texts. A text without any is not searched.
STEMS = frozenset(word[:4] for word in _WORDS["suspect"])
HARMLESS = _WORDS["harmless"]
LATIN_WORD = re.compile(r"[a-z]+")
_STEM = re.compile(r"([a-z]{2,4})[a-z]*")


REJECTING = (STEMS - _WORDS["no rejection"]) | frozenset("than been comm typi usua freq clas".split())
REFUSING = STEMS | frozenset(
    "show prov veri demo stud peop many few most othe comm typi usua freq clas quiz tal peut viel fors talv".split()
)


def fold_case(text: str) -> str:
    """Return a text in small letters, with as many signs.

    The patterns of this module are written in small letters. Without regard to case, the `re` module would try every
    alternative at every word, which takes several times as long.
    """
    if not text.isascii():
        text = text.replace("\u0130", "i").replace("\u0131", "i").replace("\u017f", "s")  # I with a dot, long s
    return text.lower()


def is_suspect(text: str, stems: frozenset[str] = STEMS) -> bool:
    """Whether a folded text may match a pattern of this module, or a pattern for words with these stems."""
    return not text.isascii() or ("'" in text and "n't" in text) or has_word(text, stems)


def has_word(text: str, stems: frozenset[str]) -> bool:
    """Whether a word in a folded text begins with one of the stems and is not harmless."""
    if stems.isdisjoint(_STEM.findall(text)):
        return False
    return not HARMLESS.issuperset(word for word in LATIN_WORD.findall(text) if word[:4] in stems)


MAX_CLAUSE = 120

_CALLED_WRONG = re.compile(_PATTERNS["CALLED_WRONG"])
_NEGATED = re.compile(_PATTERNS["NEGATED"])
_SUPPOSED = re.compile(_PATTERNS["SUPPOSED"])
# Another quantity than the answer: "Half of the answer is 42", "The square of the number is 42".
_ANOTHER = re.compile(_PATTERNS["ANOTHER"])


def names_another(words: str) -> bool:
    """Whether the words before a value name a quantity that is computed from the answer: half of it, its square."""
    words = fold_case(words)
    return _ANOTHER.search(words) is not None


_AFFIRMED = re.compile(_PATTERNS["AFFIRMED"])
# The signs that separate an answer's clause from those before it.
_STOPS = re.compile(r".*[.!?\n,;:。！？，；：、]", re.DOTALL)
_CONJUNCTIONS = re.compile(_PATTERNS["CONJUNCTIONS"])


def clause_before(text: str, position: int, opening: str = " \t*_>#") -> str:
    """Return the clause that ends at `position`, without the signs at its end that open the answer (`opening`)."""
    return _after_conjunctions(_after_stops(text, position, opening))


def _after_stops(text: str, position: int, opening: str) -> str:
    before = text[max(position - MAX_CLAUSE, 0) : position].rstrip(opening)
    stop = _STOPS.match(before)
    return before if stop is None else before[stop.end() :]


def _after_conjunctions(before: str) -> str:
    last = 0
    for found in _CONJUNCTIONS.finditer(fold_case(before)):
        last = found.end()
    return before[last:]


DISPLAY = " \n\t$*_`[({:~>\\"  # signs that may stand between words and the box or formula that they announce


_SENTENCE_START = re.compile(r"[.!?\n。！？]")
_COUNTERFACTUAL = re.compile(r"\A\W*if\b.*\bwould\b", re.DOTALL)
_ON_FALSE_GROUNDS = re.compile(_PATTERNS["ON_FALSE_GROUNDS"], re.DOTALL)


def is_sentence_refused(text: str, start: int, end: int) -> bool:
    """Whether the sentence of an announcement is counterfactual: "If x were 3, the answer would be"."""
    before = fold_case(text[max(start - 2 * MAX_CLAUSE, 0) : end])
    if not is_suspect(before):
        return False
    place = 0
    for found in _SENTENCE_START.finditer(before, 0, len(before) - (end - start)):
        place = found.end()
    before = before[place:]
    return bool(_COUNTERFACTUAL.search(before) or _ON_FALSE_GROUNDS.search(before))


def _calls_wrong(clause: str) -> bool:
    """Whether a folded clause speaks of a wrong answer."""
    return is_suspect(clause, _WORDS["wrong"]) and _CALLED_WRONG.search(clause) is not None


def is_refused(clause: str) -> bool:
    """Whether the words that announce an answer reject it: they call it wrong, suppose it, or negate it."""
    clause = fold_case(clause)
    if not is_suspect(clause, REFUSING):
        return False
    clause = _AFFIRMED.sub(" ", clause)
    return bool(_NEGATED.search(clause) or _SUPPOSED.search(clause) or _calls_wrong(clause))


_ENDS_NEGATED = re.compile(_PATTERNS["ENDS_NEGATED"])


_DISBELIEVED = re.compile(_PATTERNS["DISBELIEVED"])


def is_value_refused(text: str, position: int) -> bool:
    """Whether the clause before a box or formula rejects it. Other negations ("not divisible by 3") do not count."""
    before = fold_case(_after_stops(text, position, DISPLAY))
    if not is_suspect(before, REJECTING):
        return False
    clause = _AFFIRMED.sub(" ", _after_conjunctions(before)).strip()
    ending = " ".join(clause.split()[-4:])  # _ENDS_NEGATED matches at most so many words
    return bool(_ENDS_NEGATED.search(ending) or _DISBELIEVED.search(clause) or _calls_wrong(clause))


_NO = r"(?:not|never|no|nicht|keine?|pas|non|não|не|нет|niet|nie|değil|bukan|không|不是?|不等于|並不|并不|并非)"
_STARTS_NEGATED = re.compile(rf"[\W_]*(?:{_NO})(?![\w-])|[\W_]*(?:不是|不等于|不为|并非|并不|可能)")
_SAYS_NOT = re.compile(_PATTERNS["SAYS_NOT"])
_VALUE = re.compile(r"\d|\$|\\[A-Za-z(]|\A\W*[A-J](?![A-Za-z])")


def is_denied(answer: str) -> bool:
    """Whether the sentence of an answer says that its value is not the answer."""
    words = fold_case(answer)
    if not is_suspect(words) or not _VALUE.search(answer):
        return False  # "False", "not possible" and the like are answers in words
    return bool(_STARTS_NEGATED.match(words) or _SAYS_NOT.search(words))


MAX_BEHIND = 2_000

_AT_ONCE = re.compile(_PATTERNS["AT_ONCE"])
_LATER = re.compile(_PATTERNS["LATER"])
_OF_VALUE = re.compile(_PATTERNS["OF_VALUE"])
MATH_VALUE = _PATTERNS["MATH_VALUE"]
NUMBER_VALUE = _PATTERNS["NUMBER_VALUE"]
# Another answer in its place: "No, 6.", "Sorry, the correct answer is 6."
_INSTEAD = re.compile(_PATTERNS["INSTEAD"])
# "Oops, I forgot one case: 6.", "Sorry, that should read 6."
_MENDED = re.compile(_PATTERNS["MENDED"])
# "But checking, 12 fails, so the correct value is 15."
_REPLACED = re.compile(_PATTERNS["REPLACED"], re.DOTALL)
_DELIMITERS = re.compile(r"\\boxed|\\[()\[\]]|[\s${}.,;:!*]")


# A pattern of the same name matches only if a word begins with one of these: all its words are English.
_LATER_STEMS = frozenset(
    "wron inco fals mist erro inva bad flaw not isn wasn scra just seco corr igno disr take".split()
)
_INSTEAD_STEMS = frozenset("no nope wait actu sorr oops whoo my edit upda corr rath hmm rech reco redo".split())
_OF_VALUE_STEMS = frozenset("wron inco fals mist erro inva bad flaw not isn wasn cann".split())


def is_taken_back(text: str, end: int, answer: str) -> bool:
    """Whether the text after an answer, which ends at `end`, takes it back. A question ("Is that wrong?") does not."""
    behind = text[end : end + MAX_BEHIND]
    words = fold_case(behind)
    if ("correct" in behind or "final" in behind or "actual" in behind) and (found := _REPLACED.search(words)):
        return _bare(answer) != _bare(behind[slice(*found.span("value"))])
    if not is_suspect(words):
        return False
    at_once = _AT_ONCE.match(words)
    if at_once and not _is_question(words, at_once.end()):
        return True
    stems = {word[:4] for word in LATIN_WORD.findall(words) if word not in HARMLESS}
    if not stems.isdisjoint(_LATER_STEMS) and any(
        not _is_question(words, found.end()) for found in _LATER.finditer(words)
    ):
        return True
    bare = _bare(answer)
    if not stems.isdisjoint(_INSTEAD_STEMS) and any(
        bare != _bare(behind[slice(*found.span("value"))])
        for pattern in (_INSTEAD, _MENDED)
        for found in pattern.finditer(words)
    ):
        return True
    return (
        bare != ""
        and not stems.isdisjoint(_OF_VALUE_STEMS)
        and any(
            bare == _bare(_value_of(behind, found))
            for found in _OF_VALUE.finditer(words)
            if not _is_question(words, found.end())
        )
    )


def _bare(answer: str) -> str:
    """Return an answer without delimiters and spaces."""
    return _DELIMITERS.sub("", answer)


def _value_of(behind: str, found: re.Match[str]) -> str:
    """Return the value that a match of _OF_VALUE calls wrong."""
    if found[1]:
        return behind[slice(*found.span(1))]
    return behind[max(found.start() - 80, 0) : found.start()].rpartition(" ")[2]


_SENTENCE = re.compile(r"[.!?\n]")


def _is_question(text: str, position: int) -> bool:
    end = _SENTENCE.search(text, position)
    return end is not None and end.group() == "?"


_ALTERNATIVE = re.compile(_PATTERNS["ALTERNATIVE"], re.IGNORECASE)


_SEVERAL = re.compile(_PATTERNS["SEVERAL"])


def find_alternative(text: str, end: int) -> str:
    """Return the value of "or 6" right after an answer that ends at `end`, or "".

    The value of "and 6" counts only if several values are announced.
    """
    found = _ALTERNATIVE.match(text[end : end + 300])
    if found is None:
        return ""
    word = found["word"].lower()
    if word == "alternatively" and not _stands_alone(text, end + found.end()):
        return ""
    if word == "and" and not (
        _stands_alone(text, end + found.end("value")) and _SEVERAL.search(text[max(end - 200, 0) : end])
    ):
        return ""
    return (found["value"] + (found["rest"] or "")).strip("$ ")


def _stands_alone(text: str, position: int) -> bool:
    return re.match(r"[\s$)]*(?:[.!?\n]|\Z)", text[position : position + 10]) is not None


_JOINS = re.compile(_PATTERNS["JOINS"])


def is_joined_by_or(text: str, position: int) -> bool:
    """Whether "or" joins the announcement that starts at `position` to the text before it."""
    return _JOINS.search(text[max(position - 60, 0) : position]) is not None
