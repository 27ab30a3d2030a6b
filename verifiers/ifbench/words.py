"""words: what the words of a response are, and where they stand."""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter

from rlvr.verifiers.ifbench.syllables import count_syllables
from rlvr.verifiers.ifbench.table import MARKS, check, words_of
from rlvr.verifiers.ifbench.tokens import sentences, tokens
from rlvr.verifiers.ifbench.verbs import is_verb

_MOST = 97  # letters of a word; no longer one counts as prime
_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")


@check("words:palindrome")
def palindromes(text: str) -> bool:
    """At least ten words of five letters or more that read the same backwards."""
    return sum(len(word) >= 5 and word == word[::-1] for word in words_of(text.lower())) >= 10


@check("words:prime_lengths")
def prime_lengths(text: str) -> bool:
    """The length of every word is a prime number below 100."""
    return all(_is_prime(len(word)) for word in words_of(text))


def _is_prime(number: int) -> bool:
    return 2 <= number <= _MOST and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


@check("words:no_consecutive")
def no_consecutive(text: str) -> bool:
    """No two words after each other begin with the same letter; case does not count."""
    words = words_of(text.lower())
    return all(word[0] != following[0] for word, following in itertools.pairwise(words))


@check("words:alphabet")
def alphabet(text: str) -> bool:
    """Each word begins with the letter after that of the word before, a after z; the first with any of a to z."""
    letters = [word[0].lower() for word in words_of(text)]
    if not letters or letters[0] not in string.ascii_lowercase:
        return False
    first = ord(letters[0]) - ord("a")
    return all(letter == chr(ord("a") + (first + place) % 26) for place, letter in enumerate(letters))


@check("words:vowel")
def three_vowels(text: str) -> bool:
    """One line, in which at most three of a, e, i, o, u occur."""
    text = text.strip().lower()
    return "\n" not in text and len(set("aeiou") & set(text)) <= 3


@check("words:consonants")
def consonant_clusters(text: str) -> bool:
    """Each word has two consonants next to each other (y is one)."""
    return all(_CLUSTER.search(word) for word in text.lower().split())


@check("words:start_verb")
def start_verb(text: str) -> bool:
    """The first word is a verb of a list, in any form."""
    return is_verb(next(iter(tokens(text[:_FIRST])), ""))


_FIRST = 1000  # characters in which the first word is looked for


@check("words:repeats")
def repeats(text: str, *, small_n: int) -> bool:
    """No word occurs more than `small_n` times; case does not count."""
    return max(Counter(words_of(text.lower())).values(), default=0) <= small_n


@check("words:odd_even_syllables")
def odd_even_syllables(text: str) -> bool:
    """Words with odd and with even numbers of syllables take turns; one with a digit has none, which is even."""
    parities = [count_syllables(word) % 2 for word in words_of(text.lower())]
    return all(one != other for one, other in itertools.pairwise(parities))


@check("words:last_first")
def last_first(text: str) -> bool:
    """Each sentence begins with the last word of the one before; case does not count. One sentence follows it."""
    for one, following in itertools.pairwise(sentences(text)):
        last, first = one.rstrip(MARKS).split(), following.lstrip(MARKS).split()
        if not last or not first or last[-1].lower() != first[0].lower():
            return False
    return True


@check("words:paragraph_last_first")
def paragraph_last_first(text: str) -> bool:
    """Each line ends with the word that it begins with. As published, a line of one word does."""
    lines = (line.strip().strip(MARKS).lower().split() for line in text.split("\n"))
    return all(words[0] == words[-1] for words in lines if words)


@check("words:keywords_specific_position")
def keyword_at(text: str, *, keyword: str, n: int, m: int) -> bool:
    """The m-th word of the n-th sentence is the keyword; case does not count."""
    found = sentences(text)
    if not 1 <= n <= len(found):
        return False
    words = [token for token in tokens(found[n - 1]) if any(character.isalnum() for character in token)]
    return 1 <= m <= len(words) and words[m - 1].lower() == keyword.strip().lower()


@check("words:words_position")
def second_and_last_but_one(text: str, *, keyword: str) -> bool:
    """The second word and the last but one are the keyword; a mark at the end is no word, others are."""
    words = [token.lower() for token in tokens(text)]
    if words and words[-1] in string.punctuation:
        del words[-1]
        if len(words) < 2:
            return False
    return len(words) >= 2 and words[1] == words[-2] == keyword.strip().lower()
