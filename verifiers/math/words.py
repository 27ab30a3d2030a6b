"""Words in answers: numbers in words, dates, clock times, and normalised plain text."""

from __future__ import annotations

import re
from fractions import Fraction

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
NUMBER_WORDS = {word: n for n, word in enumerate(_SMALL)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
MULTIPLIERS = {
    "hundreds": 100, "thousands": 10**3, "millions": 10**6, "billions": 10**9, "trillions": 10**12,
    **dict.fromkeys("billón billones billionen".split(), 10**12), "mio": 10**6, "mrd": 10**9,
    "twos": 2, "threes": 3, "fours": 4, "fives": 5, "sixes": 6, "sevens": 7, "eights": 8, "nines": 9, "tens": 10,
    **dict.fromkeys("dozens dutzend douzaine douzaines docena docenas dozzina dozzine".split(), 12),
    "हजार": 10**3, "लाख": 10**5, "करोड़": 10**7, "ألف": 10**3, "مليون": 10**6,
    "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    **dict.fromkeys("lakh lakhs lac lacs".split(), 10**5), **dict.fromkeys("crore crores".split(), 10**7),
    **dict.fromkeys("mil mille mila tausend duizend tusen tys тысяча тысячи тысяч тыс".split(), 10**3),
    **dict.fromkeys("millionen millones millón millions milhões milhão milioni milione miljoen miljoner "
                    "milionów миллион миллиона миллионов млн".split(), 10**6),
    **dict.fromkeys("milliarden milliards milliard miliardi миллиард миллиарда миллиардов млрд".split(), 10**9),
}  # fmt: skip
# After a number, set upright or at its end.
ABBREVIATED = {"k": 10**3, "mn": 10**6, "mln": 10**6, "bn": 10**9, "score": 20, "gross": 144, "grand": 10**3}
# Signs of Chinese, Japanese and Korean numbers, and the units that begin with one.
MAGNITUDES = {"十": 10, "百": 100, "千": 10**3, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8, "兆": 10**12,
              "백": 100, "천": 10**3, "만": 10**4, "억": 10**8}  # fmt: skip
NO_MAGNITUDE = ("千米", "千克", "千瓦", "千卡", "千帕", "千焦", "百分")
_ORDINALS = {
    "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10,
    "eleventh": 11, "twelfth": 12, "thirteenth": 13, "fifteenth": 15, "sixteenth": 16, "twentieth": 20,
    "twentyfifth": 25, "thirtieth": 30, "fiftieth": 50, "hundredth": 100, "thousandth": 1000, "millionth": 10**6,
    "billionth": 10**9,
}  # fmt: skip
# Parts of one; after digits in the plural only: 42 tenths, but 5 quarters are coins.
PARTS = {f"{name}s": part for name, part in _ORDINALS.items()} | {"halves": 2}
_PARTS = {"half": 2, "quarter": 4, "quarters": 4, **_ORDINALS, **PARTS}

_ARTICLES = re.compile(r"^(?:the|a|an)\s+(?=\w)", re.IGNORECASE)
_ABSENT = re.compile(
    r"(?:(?:the |this )?(?:limit|value|it|integral|derivative) )?(?:does not exist|doesn[’']t exist)|DNE|D\.N\.E",
    re.IGNORECASE,
)
_ABSENT_ENDS = ("t", "T", "E", "e")  # of "exist" and DNE
_COMMAND = re.compile(
    r"\\(?:text|mathrm|textbf|mathbf|textit|mathit|mbox|hbox|emph|textrm|operatorname|boxed|fbox|rm|bf|displaystyle|left"
    r"|right|quad|qquad|textnormal|mathsf|textsf|underline)(?![A-Za-z])|\\[()\[\],;:! ]"
)
_EXCLAIMED = re.compile(r"(?:[^\W\d_]{3,}|\b[Nn]o|[^\x00-\x7f])!+\Z")
_FRACTION = re.compile(r"(?<=\\)[dtc]frac(?![A-Za-z])")
_INDEX = re.compile(r"([\^_])([A-Za-z0-9])")


def normal_text(text: str) -> str:
    """Return plain text without wrappers, articles and outer punctuation, white space normalised; case is kept.

    Where mathematics remains (a command, an exponent, an index), braces stay: \\frac{1}{23} is not \\frac{12}{3};
    x^2 gets them, and \\dfrac is \\frac.
    """
    if "\\" in text:
        text = _COMMAND.sub(" ", text.replace("\\!", ""))
    text = text.replace("$", "").replace("~", " ")
    if "\\" in text or "^" in text or "_" in text:
        text = "".join(text.split())
        if "frac" in text:
            text = _FRACTION.sub("frac", text)
        if "^" in text or "_" in text:
            text = _INDEX.sub(_braced, text)
        return _unwrapped(text.strip('.,;:"`*'))
    text = " ".join(text.replace("{", "").replace("}", "").split()).strip(' .,;:"`*')
    if text.endswith("!") and _EXCLAIMED.search(text):  # elsewhere a factorial
        text = text.rstrip("! ")
    elif text.endswith("'") and text.startswith("'"):  # elsewhere a prime
        text = text[1:-1]
    if text.endswith(_ABSENT_ENDS) and _ABSENT.fullmatch(text):
        return "does not exist"
    return _ARTICLES.sub("", text) if text[:1] in "tTaA" else text


def _braced(index: re.Match[str]) -> str:
    sign, value = index.groups()
    return f"{sign}{{{value}}}"


def _unwrapped(text: str) -> str:
    """Mathematics without one pair of braces around the whole of it."""
    if not (text.startswith("{") and text.endswith("}")):
        return text
    level = 0
    for place, sign in enumerate(text):
        level += {"{": 1, "}": -1}.get(sign, 0)
        if not level and place < len(text) - 1:
            return text
    return text[1:-1]


def number_words(words: list[str]) -> tuple[Fraction, int] | None:
    """Return the number that the first words spell ("twenty five", "one hundred and five", "three quarters"), and how
    many words that is."""
    total, current, used, seen = 0, 0, 0, False
    for index, word in enumerate(words):
        if word in NUMBER_WORDS:
            if seen and (current % 10 or (current % 100 and NUMBER_WORDS[word] >= 10)):
                break
            current += NUMBER_WORDS[word]
        elif word == "hundred" and current:
            current *= 100
        elif MULTIPLIERS.get(word, 0) >= 100 and current:  # six sevens are no number, but a product
            total, current = total + current * MULTIPLIERS[word], 0
        elif (
            word == "and"
            and seen
            and index + 1 < len(words)
            and words[index + 1] in NUMBER_WORDS
            and used
            and total + current >= 100
        ):
            continue
        elif word in _PARTS and seen:
            return Fraction(total + current, _PARTS[word]), index + 1
        else:
            break
        seen, used = True, index + 1
    return (Fraction(total + current), used) if seen else None


_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = "|".join(month if month == "may" else f"{month[:3]}(?:{month[3:]})?" for month in _MONTHS)
_HALF = r"(a\.?\s?m\.?|p\.?\s?m\.?|(?<=12:00)\s?(?:noon|midnight)|(?<=12)\s?(?:noon|midnight))"
_TIME = re.compile(rf"(\d{{1,2}}):(\d{{2}})(?::(\d{{2}}))?\s*{_HALF}?(?:\s*o'?clock)?")
_HOUR = re.compile(rf"(\d{{1,2}})\s*{_HALF}")
_NAMED_HOURS = {"noon": (12, 0, 0, "pm"), "midnight": (12, 0, 0, "am")}
_HALVES = {"n": "pm", "m": "am", "a": "am", "p": "pm"}
_MONTH_DAY = re.compile(rf"({_MONTH})\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(\d{{4}}))?")
_DAY_MONTH = re.compile(rf"(\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?({_MONTH})\.?(?:,?\s+(\d{{4}}))?")
_ISO = re.compile(r"(\d{4})([-/])(\d{1,2})\2(\d{1,2})")


def clock_time(text: str) -> tuple[int, int, int, str] | None:
    """Return (hour, minute, second, "am" | "pm" | "") of normalised text; None where it is more than a clock time."""
    match = None
    if text[:1].isdecimal():
        match = _TIME.fullmatch(text) if ":" in text else None
        match = match or (_HOUR.fullmatch(text) if not text.isdecimal() else None)
    if match is None:
        return _NAMED_HOURS.get(text)
    if match.re is _HOUR:
        hour, minute, second, half = int(match[1]), 0, 0, match[2]
    else:
        hour, minute, second, half = int(match[1]), int(match[2]), int(match[3] or 0), match[4]
    if hour > 24 or minute > 59 or second > 59:
        return None
    return hour, minute, second, _HALVES[half.lstrip()[0]] if half else ""


def same_time(left: tuple[int, int, int, str], right: tuple[int, int, int, str]) -> bool:
    """Whether clock times are equal; without am or pm either half counts, 16:30 is 4:30 pm."""
    if left[1:3] != right[1:3]:
        return False
    if left[3] == right[3] or "" in (left[3], right[3]):
        return left[0] == right[0] or (left[3] != right[3] and not _hours(*left).isdisjoint(_hours(*right)))
    return False


def _hours(hour: int, minute: int, second: int, half: str) -> set[int]:
    """The hours of a day, 0 to 23, that a time may mean."""
    if half:
        return {hour % 12 + (12 if half == "pm" else 0)}
    return {hour % 12, hour % 12 + 12} if 1 <= hour <= 12 else {hour % 24}


def calendar_date(text: str) -> tuple[int | None, int, int] | None:
    """Return (year or None, month, day) of normalised text; None where it is more than a date."""
    if " " not in text and "-" not in text and "/" not in text:
        return None
    if match := _ISO.fullmatch(text):
        return int(match[1]), int(match[3]), int(match[4])
    if match := _MONTH_DAY.fullmatch(text):
        month, day, year = match[1], match[2], match[3]
    elif match := _DAY_MONTH.fullmatch(text):
        day, month, year = match[1], match[2], match[3]
    else:
        return None
    number = next(n for n, name in enumerate(_MONTHS, 1) if name.startswith(month[:3]))
    return int(year) if year else None, number, int(day)
