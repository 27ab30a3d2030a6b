"""count: how often something occurs."""

from __future__ import annotations

import re
import string

from rlvr.verifiers.ifbench.table import MARKS, bare, check
from rlvr.verifiers.ifbench.tokens import tokens

_TIMES = (1, 2, 3, 5, 7)  # of the five keywords, in order
_CONJUNCTIONS = frozenset("and but for nor or so yet".split())
_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_NAMES = frozenset(
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin "
    "Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan "
    "Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph "
    "Claire Ryan Stella Jonathan".split()
)
_PRONOUNS = frozenset(
    "i me we us you he him she her it they them my mine our ours your yours his hers its their theirs myself "
    "ourselves yourself yourselves himself herself itself themselves this that these those who whom whose which "
    "what whoever whomever whatever whichever anybody anyone anything everybody everyone everything nobody "
    "nothing somebody someone something each either neither both all some any none".split()
)


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
    return len(re.findall(r"\d+", bare(text))) == N


@check("count:keywords_multiple")
def keywords_multiple(text: str, *, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """The keywords occur 1, 2, 3, 5 and 7 times, also within words; case does not count."""
    lowered = text.lower()
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    return all(lowered.count(keyword.lower()) == times for keyword, times in zip(keywords, _TIMES))


@check("count:conjunctions")
def conjunctions(text: str, *, small_n: int) -> bool:
    """At least `small_n` different coordinating conjunctions.

    As published, spellings count apart: "and", "And" and "and," are three.
    """
    return len({word for word in text.split() if word.strip(MARKS).lower() in _CONJUNCTIONS}) >= small_n


@check("count:person_names")
def person_names(text: str, *, N: int) -> bool:
    """At least N different names of the fifty that the instruction lists, as whole words."""
    return len(_NAMES & set(re.findall(r"\w+", text))) >= N


@check("count:punctuation")
def punctuation(text: str) -> bool:
    """Each of . , ! ? ; : and an interrobang (?! or !? or ‽), whose own marks do not count."""
    if not any(mark in text for mark in ("!?", "?!", "‽")):
        return False
    rest = text.replace("?!", "", 1)
    if rest == text:
        rest = text.replace("!?", "", 1)
    return set(".,!?;:") <= set(rest)


@check("count:pronouns")
def pronouns(text: str, *, N: int) -> bool:
    """At least N pronouns, repetitions included; she/her are two."""
    return sum(token in _PRONOUNS for token in tokens(text.replace("/", " ").lower())) >= N


@check("count:words_japanese")
def words_japanese(text: str, *, N: int) -> bool:
    """Each N-th word holds a Japanese character, unless it is a number or only punctuation.

    As published, a response of fewer words follows it.
    """
    if N < 1:
        return False
    nth = (word.strip(MARKS) for word in text.split()[N - 1 :: N])
    return all(_JAPANESE.search(word) for word in nth if word and not word.isdigit())
