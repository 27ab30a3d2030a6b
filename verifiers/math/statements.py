r"""Answers in sentences and with remarks: "The largest n is 34", "42 (the sum of both)", `1/2 (0.5)`.

`rewritten` returns the answer that such a text states, as a text that the grammar reads; nothing where it states
several values, or says what the answer is not. `cleaned` removes what carries no meaning around any answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from rlvr.verifiers.extract.rejections import denied, names_another, refused
from rlvr.verifiers.math.vocabulary import ALTERING, BLOCKED
from rlvr.verifiers.math.words import MULTIPLIERS, NUMBER_WORDS

MAX_STATEMENT = 300

_PICTURES = re.compile("[\U0001f000-\U0001faff\u2600-\u27bf\u2b50\u2b55\ufe0f\u20e3]+")
_CONNECTIVE = re.compile(r"\s*(?:So|Thus|Hence|Therefore|Then|Finally|Consequently|Clearly|Now)\s*,\s+", re.IGNORECASE)
_MODULE = re.compile(r"(?<![\w.\\])(?:np|numpy|math|cmath|sp|sympy)\.(?=[A-Za-z])")
_ONE_CELL = re.compile(
    r"\\begin\s*\{(array|aligned|align\*?|gathered|split|center|equation\*?)\}(?:\s*\{[lcr|]{1,3}\})?"
    r"((?:(?!\\\\|\\begin|\\end).)*)\\end\s*\{\1\}",
    re.DOTALL,
)


def cleaned(text: str) -> str:
    r"""Return an answer without emoji, the module of a function (np.arcsin), and the environment around one cell."""
    if not text.isascii():
        text = _PICTURES.sub(" ", text.replace("➖", "-").replace("➕", "+")).strip()
    if "," in text and (connective := _CONNECTIVE.match(text)):
        text = text[connective.end() :]
    if "." in text:
        text = _MODULE.sub("", text)
    if "\\begin" in text and (cell := _ONE_CELL.fullmatch(text.strip())):
        inner = cell[2].replace("&", " ")
        text = text if cell[1] == "array" and "&" in cell[2] else inner.strip()
    return text


_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mbox|mathrm)\s*\{([^{}]*)\}")
_FORMULA = re.compile(r"\$[^$]+\$|\\\(.+?\\\)|(?<![\w.])[-−]?\$?\s?\d(?:[\d.,/]*\d)?(?:\\?%)?(?![\w.]*\d)")
_DISPLAYED = re.compile(r"\$[^$]+\$|\\\(.+?\\\)")
_COPULA = re.compile(
    r"(?<!that )(?<!which )(?<!who )\b(?:is|are|was|were|equals|becomes)\b"
    r"(?:\s+(?:equal\s+to|exactly|thus|therefore))?:?"
)
_REMARK = re.compile(r"(?P<value>.*[^\s(])\s*\((?P<words>[^()\d\\$=+*/^]{3,200})\)\s*")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
# Before a number they make another value of it; "of" does unless a total or the like precedes it.
_CHANGING = (
    BLOCKED
    | frozenset(MULTIPLIERS)
    | frozenset(
        "of by over under above below beyond until before after exceeds exceed from except minus plus per every "
        "nearly almost up down within outside inside than not non times root square cube power logarithm log "
        "reciprocal inverse negative opposite multiple multiples factor divisor remainder base modulo mod digits "
        "nor few hardly definitely certainly surely obviously clearly undoubtedly divides solve page figure theorem "
        "lemma step line table problem question exercise equation".split()
    )
) - {"and", "all", "any", "correct", "true", "open", "system", "that"}
_OF_WHAT = frozenset("total sum value distance speed area volume length maximum minimum average mean".split())
_ALTERED = frozenset("digit digits unequal congruent minus negative up power exponent modulo inverse".split())
_REACHING = frozenset(
    "equal equals equivalent amount amounts comes come adds add sums simplifies evaluates reduces out leads tends "
    "converges corresponds according totals down us brings is".split()
)
_SUPERLATIVES = frozenset("smallest largest greatest least first last next biggest".split())
_WHERE = re.compile(r"\bwhere\b")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z]\s*\Z")
_KIND = re.compile(r"(?:an?|any|some|arbitrary)\s+[a-z]{4}")
_DIGIT = re.compile(r"\d")
_GAP = re.compile(r"[\s-]+")
_COMMAND = re.compile(r"[\\{}]")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b\s*\w")
_OPERATOR_BEFORE = re.compile(r"[-+*/^=<>≠≤≥≈]\s*\Z")
_OPERATOR_AFTER = re.compile(r"[-+*/^=<>!(\[{_,;:]|in\s+binary\b")
_PREPOSITIONS = frozenset("to in for that which on at with during among between when".split())
_COUNTED = re.compile(r"\d+\s+[A-Za-z]+\s")  # "7 ways to do it"
_FRACTIONS = re.compile(
    r"(?:half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|\w+tenths?|tenths?|hundredths?"
    r"|thousandths?|millionths?|factorial|squared|cubed)\Z",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:if|unless|or|either|neither|nor|maybe|perhaps|possibly|probably|might|may|could|should|would|not|never|nobody"
    r"|none|no\s+one|nothing|near|nearly|almost|nowhere|close\s+to|far|(?:short|shy)\s+of|false|untrue|wrong|incorrect|doubt|unlikely|except|without|least|most|guess|suppose|assume)\b",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"\b(?:least\s+common|without\s+(?:loss|replacement)|non(?!e\b)-?\w+|at\s+(?:least|most)\s+one)\b", re.IGNORECASE
)


def rewritten(text: str, readable: Callable[[str], bool]) -> str | None:
    """Return the one value that a sentence states, where `readable` accepts it; None where it states none."""
    if len(text) > MAX_STATEMENT:
        return None
    if "\\" in text:
        text = _WRAPPER.sub(r" \1 ", text)
    text = " ".join(text.replace("~", " ").split()).strip(" .*")
    if denied(text):
        return None
    for candidate in _stated(text):
        if readable(candidate):
            return candidate
    return None


def _stated(text: str) -> Iterator[str]:
    if (remark := _REMARK.fullmatch(text)) and not (_changes(remark["words"]) or _is_number(remark["words"])):
        yield remark["value"]
    words = _outside(text)
    if len(_WORD.findall(words)) < 2:
        return
    copulas = list(_COPULA.finditer(words))
    if len(copulas) == 1:
        subject, value = text[: copulas[0].start()], text[copulas[0].end() :].strip().removeprefix("at ").strip()
        if _WHERE.search(subject) or _is_open(subject) or (_LETTER.search(subject) and _KIND.match(value)):
            return  # x + c where c is a constant; k \pi, k is an integer
        if not _is_doubtful(subject) and not (" and " in subject and _DIGIT.search(_outside(subject))):
            if _COUNTED.match(value):
                yield from _only_value(value)
            yield value
            if (remark := _REMARK.fullmatch(value)) and not _changes(remark["words"]):
                yield remark["value"]
            text = value
        else:
            return
    elif copulas:
        return
    yield from _only_value(text)


# The verb after these belongs to their clause: "n such that 2n equals 42", "the number whose double is 42".
_CLAUSE = re.compile(r".*\b(?P<word>such\s+that|whose|for\s+which)\b(?P<rest>.*)", re.DOTALL)
_HAS_VERB = re.compile(
    r"[<>=≤≥∣|$]|\\|\b(?:divides?|divisible|has|have|can|holds?|exists?|satisf\w+|works?|contains?|ends?|begins?|starts?"
    r"|sums?|adds?|differs?|gives?|leaves?|makes?|needs?|costs?|wins?|meets?|appears?|occurs?|does|do|remains?)\b"
)
_UNSOLVED = re.compile(r"\bsolutions?\s+(?:of|to|for)\b[^=<>$\\]*\s[-+*/^]\s[^=<>$\\]*\Z")


def _is_open(subject: str) -> bool:
    """Whether the value after a subject completes a clause of it: the number whose double is 42."""
    clause = _CLAUSE.fullmatch(subject)
    return bool(clause and not _HAS_VERB.search(clause["rest"])) or bool(_UNSOLVED.search(subject))


def _outside(text: str) -> str:
    """The text with its formulas blanked out, character for character."""
    return _DISPLAYED.sub(lambda formula: " " * len(formula.group()), text)


def _is_doubtful(words: str) -> bool:
    words = _HARMLESS.sub(" ", _outside(words))
    return bool(_UNSURE.search(words)) or refused(words) or names_another(words)


def _changes(words: str) -> bool:
    """Whether words beside a value may change it, or what it holds for."""
    return _RESTRICTS.search(words) is not None or any(
        word.lower() in ALTERING
        or word.lower() in _CHANGING - {"of", "from", "by", "per", "every", "digits", "square"}
        or _FRACTIONS.match(word)
        for word in _WORD.findall(words)
    )


_RESTRICTS = re.compile(
    r"\b[b-zA-Z](?:\s+(?:is|are))?(?:\s+an?)?\s+(?:odd|even|prime|composite|large|small)\b"
    r"|\b(?:odd|even|prime|composite|large|small)\s+[b-zA-Z]\b"
)


def _is_number(words: str) -> bool:
    """Whether words are a number: forty-three."""
    return all(word in NUMBER_WORDS or word == "and" for word in _GAP.split(words.strip().lower()))


def _only_value(text: str) -> Iterator[str]:
    """The only number or formula of a sentence, with the words after it that the grammar reads."""
    values = list(_FORMULA.finditer(text))
    if len(values) != 1:
        return
    before, value, after = text[: values[0].start()], values[0].group(), text[values[0].end() :].strip()
    leading = [word.lower() for word in _WORD.findall(before)]
    trailing = after.split()
    if _COMMAND.search(before) or _is_doubtful(before) or any(word in NUMBER_WORDS for word in leading):
        return
    last = leading[-1] if leading else ""
    if not _ALTERED.isdisjoint(leading) or (last == "to" and leading[-2:-1] and leading[-2] not in _REACHING):
        return
    if leading[-2:] == ["to", "the"]:
        return
    if last in _CHANGING and not (last == "of" and _OF_WHAT & set(leading[-2:])):
        return
    if _ORDINAL.match(text, values[0].end()) or (last == "the" and trailing and trailing[0] in _SUPERLATIVES):
        return  # the 42nd prime, the 42 smallest primes
    if _OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(after):
        return
    if "only" in trailing[:-1] or _RESTRICTS.search(after):
        return
    if any(_changes(word) or word.lower() in NUMBER_WORDS or not _WORD.match(word) for word in trailing):
        return
    read = next((place for place, word in enumerate(trailing) if word in _PREPOSITIONS), len(trailing))
    for count in range(min(read, 4), -1, -1):
        yield " ".join([value, *trailing[:count]])


def is_statement(text: str) -> bool:
    """Whether a text may be a sentence that says what something is."""
    if ("s" not in text and "re" not in text) or len(text) > MAX_STATEMENT:
        return False
    return _COPULA.search(text) is not None and len(_WORD.findall(_outside(text))) > 2
