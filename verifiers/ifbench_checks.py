"""Checks of IFBench (arXiv:2507.02833) as functions of a response: those that need no model of a language.

Names, parameters and meanings are IFBench's; a check is bounded by a linear pass over the text.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Callable

from rlvr.verifiers.instruction_checks import Check

CHECKS: dict[str, Check] = {}

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TIMES = (1, 2, 3, 5, 7)  # of the five keywords, in order
_MOST = 97  # letters of a word; no longer one counts as prime


def check(name: str) -> Callable[[Check], Check]:
    """Decorator: enter a check into the table under IFBench's name."""

    def add(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return add


def words_of(text: str) -> list[str]:
    """Return the words between white space without punctuation; what is only punctuation is none."""
    return text.translate(_NO_PUNCTUATION).split()


@check("count:word_count_range")
def word_count_range(text: str, *, min_words: int, max_words: int) -> bool:
    """The number of words (runs of letters, digits and underscores) is within the bounds."""
    return min_words <= len(re.findall(r"\w+", text)) <= max_words


@check("count:unique_word_count")
def unique_word_count(text: str, *, N: int) -> bool:
    """At least N different words; case and punctuation around them do not count."""
    return len({word.strip(string.punctuation) for word in text.lower().split()}) >= N


@check("count:numbers")
def numbers(text: str, *, N: int) -> bool:
    """Exactly N runs of digits; punctuation within a number does not divide it."""
    return len(re.findall(r"\d+", text.translate(_NO_PUNCTUATION))) == N


@check("count:keywords_multiple")
def keywords_multiple(text: str, *, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """The keywords occur 1, 2, 3, 5 and 7 times, also within words; case does not count."""
    lowered = text.lower()
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    return all(lowered.count(keyword.lower()) == times for keyword, times in zip(keywords, _TIMES))


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


@check("format:newline")
def one_word_a_line(text: str) -> bool:
    """Each word is on a line of its own."""
    bare = text.translate(_NO_PUNCTUATION).strip()
    return len([line for line in bare.split("\n") if line]) == len(bare.split())


@check("format:no_whitespace")
def no_whitespace(text: str) -> bool:
    """No white space."""
    return not any(character.isspace() for character in text)
