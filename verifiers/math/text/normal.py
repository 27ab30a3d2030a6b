"""One spelling for texts that say the same: words, dates, clock times, synonyms, letters of choices.

Words that exclude one another (north and south, profit and loss) make equal values different.
"""

from __future__ import annotations

import re
from pathlib import Path

from rlvr.core.files.tables import read_sections

from ..grammar.lex import to_latex

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
            text = _INDEX.sub(_add_braces, text)
        return _unwrap(text.strip('.,;:"`*'))
    text = " ".join(text.replace("{", "").replace("}", "").split()).strip(' .,;:"`*')
    if text.endswith("!") and _EXCLAIMED.search(text):  # elsewhere a factorial
        text = text.rstrip("! ")
    elif text.endswith("'") and text.startswith("'"):  # elsewhere a prime
        text = text[1:-1]
    if text.endswith(_ABSENT_ENDS) and _ABSENT.fullmatch(text):
        return "does not exist"
    return _ARTICLES.sub("", text) if text[:1] in "tTaA" else text


def _add_braces(index: re.Match[str]) -> str:
    sign, value = index.groups()
    return f"{sign}{{{value}}}"


def _unwrap(text: str) -> str:
    """Mathematics without one pair of braces around the whole of it."""
    if not (text.startswith("{") and text.endswith("}")):
        return text
    level = 0
    for place, sign in enumerate(text):
        level += {"{": 1, "}": -1}.get(sign, 0)
        if not level and place < len(text) - 1:
            return text
    return text[1:-1]


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


# --- names in any order -----------------------------------------------------------------------------------------------

MAX_SHORT_TEXT = 600


_JOINTS = re.compile(r"\s*(?:,\s*(?:and\s+)?|;\s*|\s+and\s+|\s*&\s*)\s*")
_NAME = re.compile(r"[^\W\d_]{2,}(?:[ '-][^\W\d_]+){0,3}")
_NO_NAMES = frozenset("not no or if then yes true false".split())


def same_names(gold: str, answer: str) -> bool:
    """Whether both normalised texts are the same names in any order.

    With commas, three or more of them, or two that are not in alphabetical order, are an order."""
    names, others = _names(gold), _names(answer)
    if len(names) < 2:
        return False
    if "," in gold and (names != sorted(names) or (len(names) > 2 and " and " not in gold)):
        return names == others
    return sorted(names) == sorted(others)


def _names(text: str) -> list[str]:
    names = _JOINTS.split(text.casefold().strip(" .")) if len(text) <= MAX_SHORT_TEXT else []
    words = {word for name in names for word in name.split()}
    return names if all(map(_NAME.fullmatch, names)) and words.isdisjoint(_NO_NAMES) else []


# --- words that exclude one another -----------------------------------------------------------------------------------

_WORDS = read_sections(Path(__file__).with_name("words.txt"))
_SENSES = {
    word: (family, sense)
    for family, senses in enumerate(_WORDS["opposed"])
    for sense, words in enumerate(senses.split(", "))
    for word in words.split()
}
_WORD = re.compile(
    r"(?<![A-Za-z\\-])(?:" + "|".join(sorted(map(re.escape, _SENSES), key=len, reverse=True)) + r")(?![A-Za-z-])"
)
_ALPHABETIC = re.compile(r"[A-Za-z]{2}")


def are_opposed(gold: str, answer: str) -> bool:
    """Whether words of two texts exclude one another: north and south, profit and loss."""
    if not _ALPHABETIC.search(gold) or not (wanted := _senses(gold)):
        return False
    return any(family in wanted and sense != wanted[family] for family, sense in _senses(answer).items())


def _senses(text: str) -> dict[int, int]:
    """The sense of each family of which a text has exactly one."""
    found: dict[int, set[int]] = {}
    for word in _WORD.findall(text.lower()):
        family, sense = _SENSES[word]
        found.setdefault(family, set()).add(sense)
    return {family: senses.pop() for family, senses in found.items() if len(senses) == 1}


_SYNONYMS = {name: place for place, names in enumerate(_WORDS["synonyms"]) for name in names.split(", ")}
_REASONED = re.compile(r"(yes|no)(?:[,;:.]|\s+because\b)\s*(\S.*)", re.DOTALL)
_UNSURE = re.compile(r"\b(?:yes|no|but|maybe|perhaps|or|unless|if|not\s+sure|unsure)\b")


def same_words(gold: str, answer: str) -> bool:
    """Whether normalised texts have one meaning: undefined and does not exist, Yes and "Yes, it is"."""
    gold, answer = gold.casefold(), answer.casefold()
    if gold in _SYNONYMS and _SYNONYMS.get(answer) == _SYNONYMS[gold]:
        return True
    if gold not in ("yes", "no"):
        return False
    match = _REASONED.match(answer)
    return match is not None and match[1] == gold and not _UNSURE.search(match[2])


# --- equal texts ------------------------------------------------------------------------------------------------------

MAX_TEXT = 4_000  # longer answers are not compared as text

_SPACING = re.compile(
    r"(?:\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])|(?<!\\)\\[,;:! ]|[~$\s])+(?P<digit>(?=\d))?"
)
# What a text has where the pattern may match, the pattern, and what stands in its place.
_SPELLINGS = (
    ("arrow", re.compile(r"\\(?:long)?rightarrow(?![A-Za-z])"), r"\\to"),
    ("frac", re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    ("ots", re.compile(r"\\[lc]?dots[bc]?(?![A-Za-z])"), r"\\dots"),
    ("...", re.compile(r"\.\.\."), r"\\dots"),
    ("math", re.compile(r"(\\math(?:bb|cal|rm|bf))\s*\{\s*(\w)\s*\}"), r"\1 \2"),
    ("prime", re.compile(r"\^(?:\\prime(?![A-Za-z])|\{\s*\\prime\s*\})"), "'"),
    ("{", re.compile(r"(?<=[\^_])\{\s*(\w|\\[A-Za-z]+)\s*\}"), r"\1"),
)


def unify_spelling(text: str) -> str:
    """Return a formula without what never changes its meaning: spaces, `\\left`, braces of one character."""
    if len(text) > MAX_TEXT:
        return text
    text = to_latex(text)
    for sign, pattern, form in _SPELLINGS:
        if sign in text:
            text = pattern.sub(form, text)
    return _SPACING.sub(_space, text).rstrip(".")


def _space(match: re.Match[str]) -> str:
    """Drop spacing, but not a space between digits."""
    before = match.string[match.start() - 1 : match.start()]
    return " " if match["digit"] is not None and before.isdigit() else ""


_HYPHEN = re.compile(r"(?<=[a-z])-(?=[a-z])")
_AT = re.compile(r"(?:on|in|at|during)\s+(?=[a-z]+\Z)")
_PROPERTIES = frozenset("even odd prime composite positive negative".split())
_FILLING = frozenset("is are be for all any every an a number numbers integer integers must".split())


def _bare(text: str) -> str:
    """Words without hyphens, and without the preposition of one word: co-prime, on Friday."""
    return _HYPHEN.sub("", _AT.sub("", text.casefold()))


def _is_property(gold: str, normal: str) -> bool:
    """Whether texts say one property of one variable: n odd, "n is odd", "all odd n"."""
    wanted, said = (set(text.casefold().replace(",", " ").split()) - _FILLING for text in (gold, normal))
    return wanted == said and len(wanted) == 2 and len(wanted & _PROPERTIES) == 1 and min(map(len, wanted)) == 1


_NAMES_OF_IT = frozenset(
    "the it this is a an function curve series integral sequence sum limit therefore so thus hence".split()
)


def means_same(gold: str, normal: str) -> bool:
    """Return whether normalised texts mean the same: synonyms, names in any order, a word said of what is asked for."""
    if _bare(gold) == _bare(normal) or _is_property(gold, normal):
        return True
    if same_names(gold, normal) or same_words(gold, normal):
        return True
    words = normal.casefold().split()
    return gold.isalpha() and gold.casefold() in words and set(words) - {gold.casefold()} <= _NAMES_OF_IT


# --- choices ----------------------------------------------------------------------------------------------------------

# (A) | A. A: A) | a. a) | A  -- and what follows the letter.
_CHOICE = re.compile(
    r"(?:[Oo]ption|[Cc]hoice|[Aa]nswer|选项|选择|选|選項)?\s*(?:\{?\(\s*([A-Ja-j])\s*\)\}?|\{?([A-Ja-j])[.:)](?:\}|(?=\s|\Z))|([A-J])\Z)\s*[.:]?\s*(.*)\Z",
    re.DOTALL,
)
_CONFIRMED = re.compile(r"\s+is\s+(?:the\s+)?(?:correct|right)(?:\s+(?:answer|choice|option|one))?\s*[.!]?\Z")
_FIRST_OF_CHOICE = frozenset("({ABCDEFGHIJOabcdefghijo选選 ")  # what _CHOICE begins with
_OTHER_CHOICE = re.compile(
    r"\A(?:[+*/^_=!,;&|]|\bthrough\b)|\([A-Ja-j]\)|\b[B-J]\b[.)]|\b(?:or|and|not)\b"
    r"|(?<![A-Za-z])[A-J]\s*(?:[,;/&|]|\bto\b)\s*[A-J](?![A-Za-z])"
    r"|(?<![A-Za-z])[A-J]\s+(?:works|fits|(?:is|was|seems|looks)\s+(?:better|best|right|correct|the\s+(?:answer|right|best)))\b"
    r"|\b[Nn]o\W+[A-J]\b|\A(?:(?:is|was|seems|looks)\s+(?:\w+ly\s+)?(?:incorrect|wrong|false|eliminated|excluded|rejected|ruled"
    r"|invalid|impossible|out)|fails|failed|does\s?n[o'’]t|cannot|can['’]t|isn['’]t|won['’]t)\b"
    r"|\A(?:all|any|both|each|either|every|none|neither)\b(?=[^.]*\b(?:of\b|[A-J]\b|above\b|options\b|them\b))"
)


def choice(normal: str) -> tuple[str, str]:
    """Return the letter of a choice and the text after it; ("", "") where the text is not a choice."""
    if len(normal) >= 400 or normal[:1] not in _FIRST_OF_CHOICE:
        return "", ""
    match = _CHOICE.match(_CONFIRMED.sub("", normal) if " is " in normal else normal)
    if match is None or _OTHER_CHOICE.search(match[4]):
        return "", ""
    return (match[1] or match[2] or match[3]).upper(), match[4]


def lone_choice(normal: str) -> str:
    """Return the letter of a text that is a choice and nothing else, else ""."""
    letter, rest = choice(normal)
    return "" if rest else letter


_LETTERS = (*"(ABCDEFGH",)
_CHOICES = re.compile(r"\(?[A-H]\)?(?:\s*(?:,|;|&|and)*\s*\(?[A-H]\)?){1,7}\Z")


def choices(normal: str) -> str:
    """Return the letters of several choices as written: ABD for "A, B and D"; "" where the text is none."""
    if not normal.startswith(_LETTERS) or len(normal) > 60 or not _CHOICES.match(normal):
        return ""
    letters = "".join(c for c in normal if c in "ABCDEFGH")
    return letters if len(set(letters)) == len(letters) else ""
