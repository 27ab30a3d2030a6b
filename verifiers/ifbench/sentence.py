"""sentence: what each sentence, or a certain one, holds."""

from __future__ import annotations

import itertools
import re

from rlvr.verifiers.ifbench.table import MARKS, check, words_of
from rlvr.verifiers.ifbench.tokens import sentences


@check("sentence:keyword")
def keyword_in_sentence(text: str, *, word: str, N: int) -> bool:
    """The N-th sentence holds the word, whole; case does not count."""
    found = sentences(text)
    return 1 <= N <= len(found) and re.search(rf"\b{re.escape(word)}\b", found[N - 1], re.IGNORECASE) is not None


@check("sentence:increment")
def increment(text: str, *, small_n: int) -> bool:
    """Each sentence has `small_n` words more than the one before. As published, one sentence follows it."""
    lengths = [len(words_of(sentence)) for sentence in sentences(text)]
    return bool(lengths) and all(after - before == small_n for before, after in itertools.pairwise(lengths))


@check("sentence:alliteration_increment")
def alliteration_increment(text: str) -> bool:
    """Each sentence has more words in alliteration with a neighbour than the one before; one sentence follows it."""
    counts = [_alliterative(sentence) for sentence in sentences(text)]
    return all(before < after for before, after in itertools.pairwise(counts))


def _alliterative(sentence: str) -> int:
    """The number of words in runs of two or more that begin with one letter."""
    words = (word.lstrip(MARKS) for word in sentence.lower().split())
    runs = (len(list(run)) for _, run in itertools.groupby(word[0] for word in words if word))
    return sum(run for run in runs if run > 1)
