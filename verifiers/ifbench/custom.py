"""custom: checks of one prompt each. Tables are in csv_tables.py."""

from __future__ import annotations

import itertools
import re
import unicodedata

from rlvr.verifiers.ifbench.table import MARKS, check, words_of
from rlvr.verifiers.ifbench.tokens import sentences

_MULTIPLES = [str(number) for number in range(14, 51, 7)]
_QUESTION = re.compile(r"Question \d+[.|):;]?")
_OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w")
_COUNTRIES = 52  # lines from Zimbabwe on
_CAPITALS = (
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam "
    "Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana "
    "Zagreb".split()
)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_YEARS = range(1769, 1822)  # of Napoleon's life
_SHORT_MONTHS = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}


@check("custom:multiples")
def multiples(text: str) -> bool:
    """Its numbers are the multiples of 7 from 14 to 49, in order."""
    return re.findall(r"\d+", text) == _MULTIPLES


@check("custom:mcq_count_length")
def questions_with_options(text: str) -> bool:
    """Four parts after "Question 1" and so on with five options A to E each, the questions growing longer."""
    if not text.startswith("Question"):
        return False
    parts = [part.strip() for part in _QUESTION.split(text)]
    read = [_question_and_options(part) for part in parts if part]
    lengths = [length for length, _ in read]
    return (
        len(read) == 4
        and all(options == 5 for _, options in read)
        and all(one < following for one, following in itertools.pairwise(lengths))
    )


def _question_and_options(part: str) -> tuple[int, int]:
    """The characters of the question, lines joined by spaces, and the number of options."""
    lines = [line.strip() for line in part.split("\n")]
    options = [place for place, line in enumerate(lines) if _OPTION.match(line)]
    question = lines[: options[0]] if options else lines
    return len(" ".join(question).strip()), len(options)


@check("custom:reverse_newline")
def countries_in_reverse(text: str) -> bool:
    """From a line with Zimbabwe on, 52 lines or more in falling order. As published, whatever they name."""
    lines = [line for line in (line.strip(MARKS) for line in text.split("\n")) if line]
    start = next((place for place, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    names = [_in_ascii(line) for line in lines[start:]]
    return len(names) >= _COUNTRIES and names == sorted(names, reverse=True)


def _in_ascii(text: str) -> str:
    """Leave out accents, and what is not ASCII without them."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


@check("custom:word_reverse")
def words_reversed(text: str) -> bool:
    """Its words backwards hold "bald eagle". As published, whether the rest is a sentence is not checked."""
    return "bald eagle" in " ".join(reversed(words_of(text.lower())))


@check("custom:character_reverse")
def letters_reversed(text: str) -> bool:
    """ "bald eagle" occurs backwards. As published, the rest may be anything."""
    return "elgae dlab" in text.lower()


@check("custom:sentence_alphabet")
def sentence_alphabet(text: str) -> bool:
    """26 sentences that begin with a to z, in order."""
    return [sentence[0].lower() for sentence in sentences(text)] == [chr(ord("a") + place) for place in range(26)]


@check("custom:european_capitals_sort")
def capitals_by_latitude(text: str) -> bool:
    """The capitals of Europe north of 45 degrees from north to south, with commas between; accents do not count."""
    return [name.strip() for name in _in_ascii(text).split(",") if name.strip()] == _CAPITALS


@check("custom:date_format_list")
def dates(text: str) -> bool:
    """Dates as 1796-07-05 of Napoleon's life with commas between. As published, month and day may be 00."""
    return all(_is_date(date.strip()) for date in text.split(","))


def _is_date(text: str) -> bool:
    found = _DATE.fullmatch(text)
    if found is None:
        return False
    year, month, day = map(int, found.groups())
    return year in _YEARS and month <= 12 and day <= (_SHORT_MONTHS.get(month, 31) if month else 99)
