"""Training prompts that are held out elsewhere: the same in another spelling, or with n-grams in common.

The same spelling: white space, case, Unicode forms and LaTeX's spaces and delimiters are ignored (`spell_prompt`).

N-grams: published rules differ. GPT-3 (arXiv:2005.14165, appendix C) looks for any 13-gram of words in common, others
for 8-grams. So prompts with changed numbers or names are found too; `Match.share` says how much they share, and `share`
asks for more. What all prompts of a pack begin or end with is ignored. An n-gram that more than ten training prompts
have is a phrase of the trade ("where m and n are relatively prime positive integers"). It counts only for a prompt that
has half of a held-out one (NeMo Curator's rule and limit).

Time and memory grow in proportion to the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlvr.core.types import Problem, Prompt

from .base import normalize_prompt, prompt_text, spell_prompt

Gram = tuple[str, ...]
_WORD = re.compile(r"\w+")
# N-grams in at least so many held-out prompts, and in such a share of them, are the pack's instructions.
COMMON_PROMPTS = 5
COMMON_SHARE = 0.01
# N-grams in more training prompts are no sign, unless a prompt has the greater part of a held-out one.
MOST_PROMPTS = 10
GREATER_PART = 0.5
LEAST_END = 4  # so many words that all prompts begin or end with are instructions


@dataclass(frozen=True)
class Match:
    """A training problem and the held-out one that it repeats. share: of the held-out prompt's n-grams."""

    problem: str
    pack: str
    held_out: str
    exact: bool
    share: float

    def __str__(self) -> str:
        how = "the same prompt" if self.exact else f"{self.share:.0%} of the n-grams"
        return f"{self.problem}: {how} of {self.held_out} ({self.pack})"


def words_of(prompt: Prompt) -> list[str]:
    """Return the words of a prompt as they are compared: NFKC, case-folded, without punctuation."""
    return _WORD.findall(unicodedata.normalize("NFKC", prompt_text(prompt)).casefold())


def common_ends(texts: Sequence[list[str]]) -> tuple[int, int]:
    """Return how many words all texts begin and end with; (0, 0) for fewer than two texts."""
    if len(set(map(tuple, texts))) < 2:
        return 0, 0
    # What the first and the last text in sorted order have in common, all have.
    first = _common(min(texts), max(texts))
    turned = [text[::-1] for text in texts]
    return first, min(_common(min(turned), max(turned)), min(map(len, texts)) - first)


def _common(one: list[str], other: list[str]) -> int:
    return next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def without_instructions(texts: Sequence[list[str]]) -> list[list[str]]:
    """Return the texts without the instructions that all of them begin or end with."""
    first, last = (count if count >= LEAST_END else 0 for count in common_ends(texts))
    return [text[first : len(text) - last] for text in texts]


def comparison_forms(problems: Sequence[Problem]) -> list[set[str]]:
    """Return the forms of each prompt that are compared: spelled without instructions, spelled, normalised."""
    texts = [spell_prompt(problem.prompt) for problem in problems]
    return [
        {" ".join(text), " ".join(whole), normalize_prompt(problem.prompt)} - {""}
        for problem, text, whole in zip(problems, without_instructions(texts), texts)
    ]


def ngrams(words: Sequence[str], size: int) -> Iterator[Gram]:
    return (tuple(words[start : start + size]) for start in range(len(words) - size + 1))


class HeldOut:
    """The held-out problems of some packs, in which training prompts are looked up.

    size: of the n-grams. share: of a held-out prompt's n-grams that a training prompt must have; with 0 one is enough.
    """

    def __init__(self, packs: Mapping[str, Sequence[Problem]], *, size: int = 13, share: float = 0.0) -> None:
        if size < 1 or not 0 <= share <= 1:
            raise ValueError(f"n-grams of {size} words, share {share}: expected at least 1 word, a share in [0, 1]")
        self.size, self.share = size, share
        self._names: list[tuple[str, str]] = []
        self._counts: list[int] = []
        self._exact: dict[str, int] = {}
        self._grams: dict[Gram, list[int]] = {}
        for pack, problems in packs.items():
            self._add(pack, problems)

    def _add(self, pack: str, problems: Sequence[Problem]) -> None:
        texts = without_instructions([words_of(problem.prompt) for problem in problems])
        grams = [set(ngrams(words, self.size)) for words in texts]
        often = Counter(gram for found in grams for gram in found)
        most = max(COMMON_PROMPTS, COMMON_SHARE * len(problems))
        for problem, forms, found in zip(problems, comparison_forms(problems), grams):
            place = len(self._names)
            kept = {gram for gram in found if often[gram] < most}
            self._names.append((pack, problem.id))
            self._counts.append(len(kept))
            for form in forms:
                self._exact.setdefault(form, place)
            for gram in kept:
                self._grams.setdefault(gram, []).append(place)

    def matches(self, problems: Sequence[Problem]) -> list[Match]:
        """Return the nearest held-out problem for each problem that repeats one, in order."""
        texts = without_instructions([words_of(problem.prompt) for problem in problems])
        shared = [[gram for gram in set(ngrams(words, self.size)) if gram in self._grams] for words in texts]
        often = Counter(gram for grams in shared for gram in grams)
        common = {gram for gram, count in often.items() if count > MOST_PROMPTS}
        found = [self._match(*row, common) for row in zip(problems, shared, comparison_forms(problems))]
        return [match for match in found if match is not None]

    def _match(self, problem: Problem, grams: list[Gram], forms: set[str], common: set[Gram]) -> Match | None:
        same = [self._exact[form] for form in forms if form in self._exact]
        if same:
            return Match(problem.id, *self._names[min(same)], exact=True, share=1.0)
        hits = Counter(place for gram in grams for place in self._grams[gram])
        signs = {place for gram in grams if gram not in common for place in self._grams[gram]}
        shares = {place: count / self._counts[place] for place, count in hits.items()}
        near = [place for place in shares if place in signs or shares[place] >= GREATER_PART]
        nearest = max(near, key=lambda place: (shares[place], -place), default=None)
        if nearest is None or shares[nearest] < self.share:
            return None
        return Match(problem.id, *self._names[nearest], exact=False, share=shares[nearest])
