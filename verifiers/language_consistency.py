"""The verifier `language_consistency`: the share of the reasoning in one language, by the script of its letters."""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass
from typing import ClassVar

from rlvr.core.registry import did_you_mean, register
from rlvr.core.types import Problem, Status, Verdict, no_answer

from .runner.base import accepts_many

# The first words of the names that Unicode gives to the letters of a script.
SCRIPTS = {
    "arabic": ("ARABIC",),
    "bengali": ("BENGALI",),
    "cyrillic": ("CYRILLIC",),
    "devanagari": ("DEVANAGARI",),
    "greek": ("GREEK",),
    "han": ("CJK", "IDEOGRAPHIC"),
    "hangul": ("HANGUL",),
    "hebrew": ("HEBREW",),
    "kana": ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"),
    "latin": ("LATIN",),
    "thai": ("THAI",),
}
JOINERS = "\u200c\u200d"  # stand within words of Persian and of Indian languages
ONE_BY_ONE = ("han", "kana", "hangul", "thai")  # one letter of these is a word; one of other scripts may be a variable
_LETTERS = re.compile(r"[^\W\d_]+|〇")  # the last is the Chinese zero, which Unicode counts as a number


@register("language_consistency")
@dataclass(frozen=True, kw_only=True)
class LanguageConsistencyVerifier:
    """The share of words in the reasoning whose letters are in the script of the wanted language.

    DeepSeek-R1 adds such a reward to that of the answer, against reasoning that mixes languages (arXiv:2501.12948,
    section 2.3.2). scripts: the scripts of the language, and others that are allowed. tag: the reasoning stands within
    <tag>...</tag>, or after an opening tag that is never closed. A completion without the tag is all reasoning.

    White space separates words. Numbers, signs, LaTeX commands and single letters (x) belong to every language. Two
    languages in one script (English and French) count as one.
    """

    scripts: tuple[str, ...] = ("latin",)
    tag: str = "think"

    isolate: ClassVar[bool] = False  # bounded work

    def __post_init__(self) -> None:
        for script in self.scripts:
            if script not in SCRIPTS:
                raise LookupError(f"language_consistency: no script {script!r}; {did_you_mean(script, SCRIPTS)}")
        if not self.scripts or not re.fullmatch(r"[\w-]+", self.tag):
            raise ValueError(
                f"language_consistency scripts {','.join(self.scripts)!r}, tag {self.tag!r}: expected scripts such as "
                "latin, and a tag such as think"
            )

    open_answers = accepts_many

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        _, opening, after = completion.partition(f"<{self.tag}>")
        reasoning = after if opening else completion
        words = reasoning.partition(f"</{self.tag}>")[0].split()
        if not words:
            return no_answer("no reasoning")
        foreign = [word for word in words if self._is_foreign(word)]
        share = 1 - len(foreign) / len(words)
        status = Status.CORRECT if not foreign else Status.INCORRECT if share == 0 else Status.PARTIAL
        example = f", the first {foreign[0][:20]!r}" if foreign else ""
        return Verdict(status, share, f"{len(foreign)} of {len(words)} words are in another script{example}")

    def _is_foreign(self, word: str) -> bool:
        for run in _LETTERS.findall(plain_letters(re.sub(r"\\[A-Za-z]+", " ", word))):
            others = [script for script in map(script_of, run) if script not in self.scripts]
            if others and (len(run) > 1 or others[0] in ONE_BY_ONE):
                return True
        return False


def plain_letters(text: str) -> str:
    """Return a text without the marks on or beside letters, and with full-width letters as usual ones.

    To a regular expression marks (accents, the vowel signs of Hindi) are no letters; they would cut a word into pieces.
    """
    if text.isascii():
        return text
    whole = (unicodedata.normalize("NFKC", c) if c.isalpha() else c for c in text)
    return "".join(c for c in "".join(whole) if unicodedata.category(c)[0] != "M" and c not in JOINERS)


@functools.lru_cache(maxsize=20_000)
def script_of(letter: str) -> str:
    """Return the script of a letter, as SCRIPTS names it; for other scripts, the first word of the letter's name."""
    first = unicodedata.name(letter, "UNNAMED").split()[0]
    return next((script for script, names in SCRIPTS.items() if first in names), first)
