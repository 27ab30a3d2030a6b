"""Names and words of the grammar: functions, constants, numbers in words, and words that change a value."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

from rlvr.core.files.tables import read_sections, read_words

from ..values.tree import OO, PI, Node, Quantity, number
from ..values.units import UNITS

FUNCTIONS = {
    name: name
    for name in "sin cos tan cot sec csc sinh cosh tanh coth sech csch arcsin arccos arctan arccot arcsec arccsc "
    "arcsinh arccosh arctanh ln exp log gcd lcm min max floor ceil abs sqrt cbrt sgn".split()
} | {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "arsinh": "arcsinh", "arcosh": "arccosh",
    "artanh": "arctanh",
     "cosec": "csc", "ctg": "cot", "tg": "tan", "arctg": "arctan", "lg": "lg", "ceiling": "ceil", "asinh": "arcsinh",
     "acosh": "arccosh", "atanh": "arctanh", "sign": "sgn", "binom": "binom", "binomial": "binom", "factorial": "fact",
     "Abs": "abs", "arg": "arg", "Arg": "arg", "Re": "re", "Im": "im",
     "Sin": "sin", "Cos": "cos", "Tan": "tan", "cis": "cis"}  # fmt: skip
ARITY = {"gcd": None, "lcm": None, "min": None, "max": None, "binom": 2}
INVERSES = {name: f"arc{name}" for name in "sin cos tan cot sec csc sinh cosh tanh".split()}
CONSTANT_NAMES = dict.fromkeys("pi Pi PI".split(), PI) | dict.fromkeys("inf Inf infinity Infinity infty oo".split(), OO)
_TABLE = Path(__file__).with_name("words.txt")
_WORDS = read_words(_TABLE)
GREEK, STOP, LEAD, BLOCKED, ALTERING = (_WORDS[name] for name in ("Greek", "stop", "lead", "blocked", "altering"))
SEPARATORS = dict.fromkeys(("and", "und", "et"), "and") | dict.fromkeys("or oder ou oppure lub".split(), "or")
SEPARATORS |= {"then": "then"}
SEPARATORS |= dict.fromkeys(("或", "或者", "または", "もしくは", "또는", "или"), "or")
SEPARATORS |= dict.fromkeys(("和", "且", "以及", "与", "与", "및", "и"), "and")


def is_product(text: str) -> bool:
    """Whether a run of letters is a product of variables: two letters, or more without the vowels that make words."""
    return text.isascii() and (len(text) <= 2 or (len(text) <= 6 and not set(text.lower()) & set("eiou")))


_SHORT_WORDS = frozenset("is are do go so as am we he an".split())
_ABBREVIATIONS = frozenset("pcs pts ppl wks mos dz pgs nos qtrs hwy rdgs sqft dvds cds tvs".split())


def is_noun(text: str) -> bool:
    """Whether a run of letters that could be a product of variables is rather a word: cats, days, DVDs; not abc, mgh.

    It has the vowel a or y, and its letters are not in alphabetical order, as those of a product mostly are."""
    if text in _SHORT_WORDS:
        return True
    if len(text) < 3 or not text.isascii():
        return False
    lower = text.lower()
    if lower in BLOCKED:
        return False
    if lower in _ABBREVIATIONS or (text[:-1].isupper() and text[-1] == "s"):
        return True
    if not (text[1:].islower() and {"a", "y"} & set(lower)):
        return False
    return list(lower) != sorted(lower)


def _values(section: str) -> dict[str, int]:
    rows = (line.split() for line in read_sections(_TABLE)[section])
    return {word: int(value) for value, *words in rows for word in words}


_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
NUMBER_WORDS = {word: n for n, word in enumerate(_SMALL)} | {word: 10 * n for n, word in enumerate(_TENS, 2)}
MULTIPLIERS = _values("multipliers")
# After a number, set upright or at its end.
ABBREVIATED = {"k": 10**3, "mn": 10**6, "mln": 10**6, "bn": 10**9, "score": 20, "gross": 144, "grand": 10**3}
# Signs of Chinese, Japanese and Korean numbers, and the units that begin with one.
MAGNITUDES = {"十": 10, "百": 100, "千": 10**3, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8, "兆": 10**12,
              "백": 100, "천": 10**3, "만": 10**4, "억": 10**8}  # fmt: skip
NO_MAGNITUDE = ("千米", "千克", "千瓦", "千卡", "千帕", "千焦", "百分")
_ORDINALS = _values("ordinals")
# Parts of one; after digits in the plural only: 42 tenths, but 5 quarters are coins.
PARTS = {f"{name}s": part for name, part in _ORDINALS.items()} | {"halves": 2}
_PARTS = {"half": 2, "quarter": 4, "quarters": 4, **_ORDINALS, **PARTS}


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


_DIGITS = {sign: value for value, signs in enumerate(("零〇", "一", "二两兩", "三", "四", "五", "六", "七", "八", "九"))
           for sign in signs}  # fmt: skip
_MULTIPLES = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_NUMERAL = re.compile(rf"(百分之)?([{''.join((*_DIGITS, *_MULTIPLES, *_LARGE))}]{{1,20}})")


def numeral(text: str) -> Node | None:
    """Return the number that a text is; None where it is more, or another text."""
    match = _NUMERAL.fullmatch(text)
    if match is None:
        return None
    value = number(_value(match[2]))
    return Quantity(value, UNITS["%"]) if match[1] else value


def _value(signs: str) -> int:
    """The value of 二十三 by its multiples, of 二三 by its digits."""
    if all(sign in _DIGITS for sign in signs):
        return int("".join(str(_DIGITS[sign]) for sign in signs))
    total = part = digit = 0
    for sign in signs:
        if sign in _DIGITS:
            digit = _DIGITS[sign]
        elif sign in _MULTIPLES:
            part, digit = part + (digit or 1) * _MULTIPLES[sign], 0
        else:
            total, part, digit = total + (part + digit or 1) * _LARGE[sign], 0, 0
    return total + part + digit
