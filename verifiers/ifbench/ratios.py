"""ratio: shares of a response."""

from __future__ import annotations

import re

from rlvr.verifiers.ifbench.table import check
from rlvr.verifiers.ifbench.tokens import sentences

_TOLERANCE = 2  # percent
# Function words of English, with the parts that an apostrophe leaves: "don" and "t".
_STOP_WORDS = frozenset(
    "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers "
    "herself it its itself they them their theirs themselves what which who whom this that these those am is are "
    "was were be been being have has had having do does did doing a an the and but if or because as until while "
    "of at by for with about against between into through during before after above below to from up down in out "
    "on off over under again further then once here there when where why how all any both each few more most "
    "other some such no nor not only own same so than too very s t can will just don should now d ll m o re ve y "
    "ain aren couldn didn doesn hadn hasn haven isn ma mightn mustn needn shan shouldn wasn weren won wouldn".split()
)


@check("ratio:stop_words")
def stop_words(text: str, *, percentage: int) -> bool:
    """At most `percentage` percent of the words are stop words; a text without words does not follow it."""
    words = re.findall(r"\w+", text.lower())
    return bool(words) and 100 * sum(word in _STOP_WORDS for word in words) <= percentage * len(words)


@check("ratio:sentence_type")
def sentence_type(text: str) -> bool:
    """Twice as many sentences end with a full stop as with a question mark.

    As published, a text with neither follows it.
    """
    stops, questions, _ = _ends(text)
    return stops == 2 * questions


@check("ratio:sentence_balance")
def sentence_balance(text: str) -> bool:
    """As many sentences end with a full stop as with a question mark and as with an exclamation mark.

    As published, a text with none of them follows it.
    """
    return len(set(_ends(text))) == 1


def _ends(text: str) -> tuple[int, ...]:
    last = [sentence[-1] for sentence in sentences(text)]
    return tuple(last.count(mark) for mark in ".?!")


@check("ratio:overlap")
def overlap(text: str, *, reference_text: str, percentage: int) -> bool:
    """The share of the response's runs of three characters that the reference text has too, within 2 percent.

    As published, they are characters and not words.
    """
    own, given = _threes(text), _threes(reference_text)
    return bool(own) and abs(100 * len(own & given) / len(own) - percentage) <= _TOLERANCE


def _threes(text: str) -> set[str]:
    return {text[place : place + 3] for place in range(len(text) - 2)}


@check("ratio:sentence_words")
def sentence_words(text: str) -> bool:
    """Three sentences of the same number of characters. As published, their words may be the same."""
    lengths = [len(sentence) for sentence in sentences(text)]
    return len(lengths) == 3 and len(set(lengths)) == 1
