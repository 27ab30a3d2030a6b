"""Lenient extraction: the whole of a short text, otherwise its last formula, otherwise its last number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from .announcements import DISPLAYED, find_last_match, without_special_tokens
from .rejections import clause_before, is_denied, is_taken_back, is_value_refused, names_another

MAX_WHOLE = 300
MAX_WORDS = 3  # after a formula: a unit, or what is counted
MAX_NUMBERS = 3  # in the context of a value

Readable = Callable[[str], bool]

_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?%?")
_UNKNOWN = re.compile(
    r"\bI\s+(?:do\s+not|don['’]t)\s+know\b|\bI\s*(?:am|['’]m)\s+not\s+sure\b"
    r"|\b(?:I|we)\s+(?:can['’]?t|cannot|could\s+not|am\s+unable\s+to)\s+(?:solve|determine|answer|find)\b",
    re.IGNORECASE,
)
_SEVERAL = re.compile(r",\s|,[A-Za-z(]|\b(?:or|and)\b|[<>≤≥]|\\(?:le|ge|lt|gt|in|ne)")
_LABEL = re.compile(r"\s*[A-Za-z](?:_\w|\([^()]{1,9}\)|')?\s*")
_PLAIN_VALUE = re.compile(r"\s*[-−]?\\?\$?\s?\d[\d,.]*\s?\\?%?(?:\s+[A-Za-z]|/[A-Za-z]{3}|\s*\Z)")
_RATE = re.compile(r"[-−(]?\$?\d[\d,.]*/[a-z]{3,}\)?")  # $20/week
_CHUNK_LABEL = re.compile(r"[A-Za-z]{2,}:(?=[-−$(]?\d)")  # Total:3+4=7
# A computed value, after which its context may follow: "120/24 = 5 hours to read 120 pages".
_COMPUTED = re.compile(r"(?:=|\bequals|\bequal\s+to)\s*[-−]?\$?\d[\d,.]*%?(?:\s+[A-Za-z]\w*)?\Z")
_EQUALITY = re.compile(r"=|\bequals\b|\bequal\s+to\b")
_CONTEXT = re.compile(
    r"(?:\s+[A-Za-z][\w'-]*){0,3}\s+(?:to|in|for|of|after|than|from|during|by|before|on|at|per|with|every)"
    r"(?:\s+[A-Za-z][\w'-]*){0,8}\s+\Z"
)
_CONCLUSION = re.compile(r"[,;]\s+(?:so|then|therefore|thus|hence|which|leaving)\s+[a-z]", re.IGNORECASE)
_OTHER_CLAUSE = frozenset(
    "is are was were be so leaving leaves which makes giving gives has have had left gets get then and or but not no "
    "because since if that less fewer equals".split()
)
# A dollar sign before a digit is a currency.
_INLINE = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_EQUALS = re.compile(r"(?<![<>!:=])=(?!=)")
_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|\Z)|。")
_JOINED_BEFORE = re.compile(r"(?:\\neq?|[-+*/^<>≤≥≠√(\[{|\\A-Za-z\d_,−]|[<>!]=|\d:)\Z")
_JOINED_AFTER = re.compile(r"[-+*/^<>=≤≥)\]}|!A-Za-z\d_:(\\]")
# A number beside these words is an operand of an operation that is not worked out: 8 minus 4.
_OPERAND_BEFORE = re.compile(
    r"\b(?:plus|minus|times|multiplied\s+by|divided\s+by|added\s+to|subtracted\s+from)\s+[$(]{0,2}\Z", re.IGNORECASE
)
_OPERAND_AFTER = re.compile(r"\s+(?:plus|minus|multiplied\s+by|divided\s+by)\s+\w", re.IGNORECASE)
_ITEM = re.compile(r"\d+[.)]\s+\S")
_AFTER_UNIT = frozenset("of by in for to at on because which that from and or with after before since".split())
_CHUNK = re.compile(r"\S+")
_WORDS = re.compile(r"\\[A-Za-z]+|[^\W\d_]+")
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp sqrt cbrt pi inf infinity oo min max gcd "
    "lcm abs floor ceil mod".split()
)
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)\W?")
_JOINING = frozenset(("or", "and", "to"))
_NO_VALUE = re.compile(
    r"\b(?:(?:anything|everything|all)\s+but|no\s+(?:answer|solution)|equations?|eq\.|steps?|figure|table|page|section)\s*\(?\Z",
    re.IGNORECASE,
)
_SIGN_LAST = re.compile(r"[-+*/^=<>≤≥(,\[{|×÷·−]\Z")
_ENDS = re.compile(r"[.;:!?。]+[)*_]*\Z")


def last_expression(text: str, readable: Readable | None) -> tuple[str | None, str]:
    """Return the answer and "last", or None and why there is none.

    readable: says whether a text as a whole is an answer. Without it, the last side of the last formula is the answer.
    """
    text = without_special_tokens(text).strip()
    if not text:
        return None, "the completion is empty"
    if _UNKNOWN.search(text, max(len(text) - 200, 0)):
        return None, "the completion says that it does not know"
    for start, end in _candidates(text, whole=readable is not None):
        answer = text[start:end].strip("* \n")
        displayed = DISPLAYED.fullmatch(answer)
        if displayed:
            answer = next(group for group in displayed.groups() if group is not None).strip()
        if start:
            answer = _last_side(answer)
        if readable is None:
            answer = _EQUALS.split(answer)[-1].strip()
        elif not readable(answer):
            continue
        if start and _is_operand(text, start, end):
            return None, "the last expression is an operand"
        if _is_question(text, start):
            return None, "the last expression is asked for"
        if names_another(clause_before(text, start) if start else answer):
            return None, "the last expression is of another quantity"
        if (
            _NO_VALUE.search(text, max(start - 40, 0), start)
            or is_value_refused(text, start)
            or is_denied(_sentence(text, start))
            or is_taken_back(text, end, answer)
        ):
            return None, "the last expression is rejected"
        return answer, "last"
    line = text.rsplit("\n", 1)[-1].strip()
    return (None, "no expression that can be read") if re.search(r"\d", line) else (line, "last")


def _last_side(formula: str) -> str:
    """Return "12 dollars" of `3 * 4 = 12 dollars`. A formula whose last side is no number stays as it is."""
    first, *sides = _EQUALS.split(formula)
    if not sides or _SEVERAL.search(formula) or (len(sides) == 1 and _LABEL.fullmatch(first)):
        return formula
    return sides[-1].strip() if _PLAIN_VALUE.match(sides[-1]) else formula


def _is_operand(text: str, start: int, end: int) -> bool:
    """Whether a number is an operand of an operation in words that is not worked out."""
    if "=" in text[start:end]:
        return False
    return bool(_OPERAND_BEFORE.search(text, max(start - 40, 0), start) or _OPERAND_AFTER.match(text, end))


def _sentence(text: str, start: int) -> str:
    end = _SENTENCE_END.search(text, start, start + MAX_WHOLE)
    return text[start : end.start() if end else start + MAX_WHOLE]


def _is_question(text: str, start: int) -> bool:
    end = _SENTENCE_END.search(text, start, start + MAX_WHOLE)
    return end is not None and end.group() == "?"


def _candidates(text: str, whole: bool) -> Iterator[tuple[int, int]]:
    """Yield the places where the answer may stand, the likeliest first. whole: also all of a short text, and units."""
    bare = len(text.rstrip(".。"))
    if whole and bare <= MAX_WHOLE and not _CONCLUSION.search(text) and ("\n" not in text or "\\begin" in text):
        yield 0, bare
    tail = max(len(text) - 4_000, 0)
    span = find_last_match(_INLINE, text, tail)
    formula = last_formula(text, max(text.rfind("\n") + 1, len(text) - 1000))
    if span is not None and (formula is None or formula[0] < span.end()):
        yield span.span()
    elif formula is not None:
        if whole and (computed := _computed_before(text, *formula)) is not None:
            yield from _with_words(text, *computed)
        if whole:
            yield from _with_words(text, *formula)
        yield formula
    number = find_last_match(_NUMBER, text, tail)
    if number is not None and _stands_alone(text, number.start(), number.end()):
        yield number.span()


def _computed_before(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the last computation before a number, if only words of its context stand between them."""
    if "=" in text[start:end]:
        return None
    line = max(text.rfind("\n", 0, start) + 1, start - 400)
    if not _EQUALITY.search(text, line, start):
        return None
    for _ in range(MAX_NUMBERS):
        found = last_formula(text[:start], line)
        between = text[found[1] : start] if found is not None else ""
        if found is None or not _CONTEXT.fullmatch(between) or not _OTHER_CLAUSE.isdisjoint(between.lower().split()):
            return None
        if _COMPUTED.search(text[line : found[1]]):
            return found
        start = found[0]
    return None


def _with_words(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield a formula with up to three words after it (12 square metres), then with fewer."""
    ends = [end]
    for chunk in _CHUNK.finditer(text, end, min(len(text), end + 80)):
        if (
            "\n" in text[ends[-1] : chunk.start()]
            or len(ends) > MAX_WORDS
            or _ENDS.search(text[ends[-1] - 3 : ends[-1]])
        ):
            break
        if chunk.group().lower() in _AFTER_UNIT:
            break
        ends.append(chunk.end())
    for place in reversed(ends):
        yield start, start + len(text[start:place].rstrip(".,;:!?"))


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether no sign joins a number to its surroundings, and it is not the number of a list item."""
    before = text[max(start - 5, 0) : start].rstrip(" ")
    after = text[end : end + 3].lstrip(" ")
    if before[-1:] in ("", "\n") and _ITEM.match(text, start):
        return False
    return not (_JOINED_BEFORE.search(before) or _JOINED_AFTER.match(after))


def last_formula(text: str, start: int) -> tuple[int, int] | None:
    """Return the place of the last run of mathematics in text[start:]."""
    run: tuple[int, int] | None = None
    found: tuple[int, int] | None = None
    joining = False
    for chunk in _CHUNK.finditer(text, start):
        word = chunk.group()
        if chunk.start() == start and _ITEM.match(text, start):
            continue
        bare = _ENDS.sub("", word).strip("*_`") or word
        if bare in _JOINING and run is not None:
            joining = True
            continue
        label = named.end() if (named := _CHUNK_LABEL.match(bare)) else 0
        if label:
            run, bare = None, bare[label:]
        signed = run is not None and _SIGN_LAST.search(text[run[1] - 1 : run[1]]) is not None
        if not is_mathematics(bare, signed or joining):
            run, joining = None, False
            continue
        begin = chunk.start() + (len(word) - len(word.lstrip("*_`"))) + label
        end = begin + len(bare)
        run = (run[0] if run is not None else begin, end)
        joining = False
        if re.search(r"[\d∞π√]|\\[A-Za-z]|pi\b|[A-Za-z][-+*/^=<>]", text[run[0] : run[1]]):
            found = run
        if _ENDS.search(word):
            run = None
    return found


def is_mathematics(chunk: str, after_sign: bool) -> bool:
    """Whether a piece of text between spaces is a part of a formula. after_sign: it follows a sign such as + or =."""
    if _RATE.fullmatch(chunk):
        return True
    words = [word for word in _WORDS.findall(chunk) if not word.startswith("\\") and word not in _FUNCTIONS]
    if not words:
        return bool(chunk)
    if chunk in ("a", "I", "A"):
        return after_sign
    if any(word[0] >= "\u2e80" for word in words):
        return False
    if _ORDINAL.fullmatch(chunk):
        return False
    longest = max(map(len, words))
    return longest == 1 or (longest == 2 and re.search(r"[\d^*/+=<>()]", chunk) is not None)
