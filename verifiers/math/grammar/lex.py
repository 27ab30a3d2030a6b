r"""Tokens of LaTeX and plain-text answers: one linear pass of one regular expression.

Before the pass, spellings are unified: Unicode signs become LaTeX commands; backslashes that an escape doubled or
swallowed are restored; C_{10}^3, \vec{i}, \Gamma(n) and other notations are rewritten. In the pass a number in any
spelling of its thousands is one token; `\left`, colours, sizes and dollar signs are dropped; the contents of `\text{}`
become upright words. Each rule runs only where a sign of it is there.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Collection
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from rlvr.core.files.tables import read_sections, read_words

from ..values.tree import Node, Num, Op, ParseError, TooLarge, number
from .vocabulary import CONSTANT_NAMES, FUNCTIONS, GREEK

# --- numbers ----------------------------------------------------------------------------------------------------------

MAX_DIGITS = 2_000
MAX_EXPONENT_DIGITS = 30


def decimal(text: str) -> Num:
    """An integer, decimal or scientific literal, without its thousands marks."""
    if text.isdigit():
        if len(text) > MAX_DIGITS:
            raise TooLarge(f"a number of {len(text)} digits; at most {MAX_DIGITS} are read")
        return number(int(text))
    mantissa, _, exponent = text.lower().partition("e")
    mantissa = "".join(c for c in mantissa if c.isdigit() or c == ".")
    if len(mantissa) > MAX_DIGITS or len(exponent) > MAX_EXPONENT_DIGITS:
        raise TooLarge(f"a number of {len(mantissa)} digits; at most {MAX_DIGITS} are read")
    power = int(exponent) if exponent else 0
    if abs(power) > MAX_DIGITS:
        raise TooLarge(f"a number with the exponent {power}; at most {MAX_DIGITS} is read")
    whole, _, fraction = mantissa.partition(".")
    value = Fraction(int(whole + fraction or "0"), 10 ** len(fraction)) * Fraction(10) ** power
    if not fraction and power == 0:
        return Num(value)
    return Num(value, max(0, len(fraction) - power), len((whole + fraction).lstrip("0")))


_FRACTION = r"\\[dt]?frac(?:\{(\d{1,18})\}\{(\d{1,18})\}|(\d)(\d))"
_WRITTEN = re.compile(
    rf"([+-]?)(?:(\d{{1,18}}(?:\.\d{{1,18}})?|\.\d{{1,18}})|(?:(\d{{1,18}}) ?)?{_FRACTION})\Z", re.ASCII
)
_LAST = (*"0123456789}",)  # what such a number ends with


def written_number(text: str) -> Node | None:
    """Return the tree of an integer, decimal, fraction or mixed number, which needs no grammar; else None."""
    match = _WRITTEN.match(text) if text.endswith(_LAST) else None
    if match is None:
        return None
    sign, plain, whole, top, bottom, *digits = match.groups()
    if plain:
        tree: Node = decimal(plain)
    else:
        above, below = (int(part) for part in ((top, bottom) if top else digits))
        if not whole:
            tree = Op("div", (number(above), number(below)))
        elif 0 < above < below:
            tree = Num(int(whole) + Fraction(above, below))
        else:
            return None
    return Op("neg", (tree,)) if sign == "-" else tree


_BLOCK = re.compile(r"(\d*)\.(\d*?)(\d{1,12}?)\3{2,}\Z")
_HEAD = re.compile(r"(\d*)\.(\d*)")
_BARRED = re.compile(r"\\\w+\s*(?:\{(\d+)\}|(\d))(\d*)")
_LONG_BLOCK = re.compile(r"(\d*)\.(\d*?)(\d{2,12}?)\3+\Z")


def repeating(text: str) -> Num:
    """Read 0.1\\overline{6}, 0.1\\dot{6}, 0.\\dot{1}4\\dot{2}, 0.(3), 0.333... as exact numbers.

    Raises ParseError where the dots follow no repeated block."""
    if len(text) > MAX_DIGITS:
        raise TooLarge(f"a number of {len(text)} characters; at most {MAX_DIGITS} are read")
    text = "".join(text.split())
    if text.endswith(("...", "dots")):
        digits = text.removesuffix("...").rstrip() if text.endswith("...") else text[: text.rindex("\\")].rstrip()
        digits = digits[:40] if len(digits) > 40 else digits
        match = _BLOCK.match(digits) or _LONG_BLOCK.match(digits)
        if match is None:
            return decimal(digits)
        whole, fixed, block = match.groups()
    else:
        head = _HEAD.match(text)
        assert head is not None
        whole, fixed = head.groups()
        block = "".join(c for c in text[head.end() :] if c.isdigit())
        if "overline" in text or "bar" in text:
            inner = _BARRED.match(text, head.end())
            if inner is None or inner[3]:
                raise ParseError("digits after a repeating block")
    value = Fraction(int(whole + fixed or "0"), 10 ** len(fixed))
    value += Fraction(int(block), (10 ** len(block) - 1) * 10 ** len(fixed))
    return Num(value)


# --- careless spellings -----------------------------------------------------------------------------------------------

_RUN = re.compile(r"\\+")
_DOUBLED = re.compile(r"\\\\([A-Za-z]{2,}|[%$])")
_OTHER_COMMANDS = frozenset("% $ subset subseteq supset supseteq forall exists mid pmod bmod mod det dim gcd".split())
_NAMED = FUNCTIONS.keys() | GREEK | CONSTANT_NAMES.keys() | _OTHER_COMMANDS
# "\f" of "\frac" and the like, read as an escape: a form feed before "rac".
_ESCAPES = {"\x07": "a", "\x08": "b", "\x0b": "v", "\x0c": "f"}
_ESCAPED = re.compile(r"[\x07\x08\x0b\x0c](?=[a-z])|[\t](?=imes(?![a-z])|ext\{|heta(?![a-z])|frac)")
_PRIMES = re.compile(r"\^\s*(?:\{\s*((?:(?:\\prime(?![A-Za-z])|')\s*)+)\}|\\prime(?![A-Za-z]))")
_MODULE = re.compile(r"(?<![A-Za-z\\.])(?:np|numpy|math|sympy|sp|Math)\s*\.\s*(?=[a-zA-Z])")
# Not the suits of cards, which are answers.
_PICTURES = re.compile("[\u2600-\u2653\u2668-\u2775\u2795-\u2797\u27b0\u27bf\u2b00-\u2bff\ufe0f\U0001f300-\U0001faff]")


def one_backslash(text: str, commands: Collection[str]) -> str:
    """Return the text with single backslashes where all of them are double (`\\\\frac`), before one of `commands`."""
    if not any(name in commands or name in _NAMED for name in _DOUBLED.findall(text)):
        return text
    if any(len(run) % 2 for run in _RUN.findall(text)):
        return text
    return _RUN.sub(
        lambda run: "\\" * (len(run[0]) // 2 if run[0] != "\\\\" or _is_start(text, run.end()) else 2), text
    )


def _is_start(text: str, place: int) -> bool:
    """Whether a backslash before this place begins a command, not a row of a matrix."""
    return not (text[place : place + 1].isdigit() or text[place : place + 1] in (" ", "\n", "-", "&", ""))


def without_pictures(text: str) -> str:
    """Return the text without emoji and dingbats."""
    return _PICTURES.sub("", text.replace("➖", "-").replace("➕", "+")) or text


def regular(text: str) -> str:
    """Return mathematics with primes as `'` and without module names (`np.sin`)."""
    if "prime" in text or "'" in text:
        text = _PRIMES.sub(lambda match: "'" * (match[1].count("prime") + match[1].count("'") if match[1] else 1), text)
    if "." in text:
        text = _MODULE.sub("", text)
    return text


# --- notations --------------------------------------------------------------------------------------------------------

_INDEX = r"(?:\{\s*([0-9a-z][0-9a-z+\-]{0,8})\s*\}|([0-9a-z]))"
_LETTER = r"(?:\\(?:mathrm|text|operatorname|mathbf|rm)\s*\{\s*([CPA])\s*\}|([CP]))"
_START = r"(?<![\w)}\]'|!\\])"
_LOW_HIGH = re.compile(rf"{_START}{_LETTER}\s*_\s*{_INDEX}\s*\^\s*{_INDEX}")
_HIGH_LOW = re.compile(rf"{_START}{_LETTER}\s*\^\s*{_INDEX}\s*_\s*{_INDEX}")
_BEFORE = re.compile(rf"{_START}(?:\{{\s*\}})?\s*[_^]\s*{_INDEX}\s*{_LETTER}\s*_\s*{_INDEX}")
_PLAIN = re.compile(r"(?<![\w.)}\]'^_\\])(\d{1,3})\s?([CP])\s?(\d{1,3})(?![\w.^(])")

_BOLD = r"\\(?:mathbf|boldsymbol|bm|hat|widehat|vec|pmb|overrightarrow|mathrm)(?![A-Za-z])\s*"
_DIRECTION = r"(?:\\[ij]math(?![A-Za-z])|[ijk](?![A-Za-z]))\s*"
_UNIT = re.compile(
    rf"{_BOLD}(?:\{{\s*(?:{_BOLD})?\{{\s*{_DIRECTION}\}}\s*\}}|\{{\s*(?:{_BOLD})?{_DIRECTION}\}}|{_DIRECTION})"
)

_NAME = r"(?:\{\s*(?:[A-Za-z]{1,2}|\\[a-z]+)\s*\}|\s[A-Za-z]|\s*\\[a-z]+)(?:_\w|_\{\w+\})?"
_ARROW = rf"\\(?:(?:vec|mathbf|boldsymbol|bm|overrightarrow)(?![A-Za-z]){_NAME}|nabla(?![A-Za-z]))"
_VECTOR = re.compile(rf"[\s(]*(?:[-+]?\d*\s*){_ARROW}")
_VECTOR_END = re.compile(rf"{_ARROW}[\s)]*\\times\Z")

_ELEMENT = r"(?:[A-Z][a-z]?)"
_NUMBER = r"(?:_\s*(?:\d|\{\s*\d+\s*\}))"
_ATOM = rf"\\(?:text|mathrm|textrm)\{{\s*(?:{_ELEMENT}{_NUMBER}?)+\s*\}}{_NUMBER}?"
_ATOMS = re.compile(rf"(?:{_ATOM}\s*){{1,12}}")
_ATOM_PART = re.compile(r"\\(?:text|mathrm|textrm)\{\s*((?:[A-Za-z]|_\s*\d|_\{\s*\d+\s*\})+)\s*\}|\s+")
_CE = re.compile(r"\\ce\s*\{([A-Za-z0-9()]{1,40})\}")
_COUNT = re.compile(r"(?<=[A-Za-z)])(\d+)")

_FROM_TO = re.compile(r"\\vec\s*\{\s*([A-Z])\s*([A-Z])\s*\}")
_ANGSTROM = re.compile(r"\\text\s*\{\s*\\AA\s*\}|\\AA(?![A-Za-z])|\\mathring\s*\{\s*(?:\\mathrm\s*)?\{?A\}?\s*\}")
_MEASURED = re.compile(r"\\(?:SI|qty)\{([^{}]{1,40})\}\{([^{}]{1,60})\}")
_SCALE = re.compile(r"\\(?:degree(Celsius|Fahrenheit)|(celsius|fahrenheit))(?![A-Za-z])")
_TIMES = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*x\s*10\s*\^")  # 1.2 x 10^5
_MODULO = re.compile(
    r"\(\s*(?:\\(?:mathrm|text|operatorname)\s*\{\s*mod\s*\}|mod)(?:\\[ ,;]|~|\s)*([A-Za-z0-9]{1,6})\s*\)"
)

# \right|_{x=1} before an equality sign: where a derivative is taken.
_EVALUATED = re.compile(
    r"(?:\\left\s*\.\s*)?([^|=]{1,80}?)(?:\\right|\\[bB]igg?r?)?\s*\|\s*_\s*\{[^{}=]{1,20}=[^{}]{1,20}\}\s*(?==)"
)


_TERM = r"(?:[2-9]?[nmkNr](?:\s*[-+]\s*\d{1,2})?|\d{1,4})"
_CHOSEN = re.compile(rf"{_START}C\s*\(\s*({_TERM})\s*,\s*({_TERM})\s*\)")
_EXPONENT = re.compile(r"(?<=\d)\s*\\(?:mathrm|text)\s*\{\s*[eE]\s*\}\s*\{?([-+]?\d{1,3})\}?(?![\d.])")
_CONSTANT = re.compile(r"(?<=[-+])\s*\\(?:text|mathrm)\s*\{\s*const(?:ant|\.)?\s*\}")
_ZETA = re.compile(r"\\zeta\s*(?:\\left)?\(\s*([2468])\s*(?:\\right)?\)")
_ZETAS = {"2": (2, 6), "4": (4, 90), "6": (6, 945), "8": (8, 9450)}  # power of pi, and divisor
_HALVES = r"(?P<half>\d{1,2})\s*/\s*2|\\[dt]?frac\s*(?:\{\s*(?P<top>\d{1,2})\s*\}\s*\{\s*2\s*\}|(?P<digit>\d)2)"
_GAMMA = re.compile(
    rf"\\Gamma\s*(?:\\left)?\(\s*(?:{_HALVES}|(?P<name>\d{{0,2}}[nmkN])?\s*(?P<more>(?:[-+]\s*)?\d{{1,2}})?)\s*(?:\\right)?\)"
)
_ALL_MULTIPLES = re.compile(r"([-+][^-+,;=]{0,24}?)\\mathbb\s*\{?\s*Z\s*\}?\s*\Z")
_ORDER_OF = re.compile(r"[\s$]*(?:\\mathcal\s*\{?\s*O\s*\}?|O|\\(?:big)?[Oo]|\\Theta|\\Omega)\s*(?:\\left)?\(")
_ANY_LOG = re.compile(r"\\(?:log\s*_\s*(?:\w|\{\s*\w+\s*\})|ln|lg)(?![A-Za-z])")


def rewritten_notations(text: str) -> str:
    r"""Return the text with `\binom{10}{3}` for C_{10}^3, names for unit vectors, and the atoms of formulas joined."""
    if "C" in text or "P" in text or "A" in text:
        text = _rewrite_counts(text)
    if "10" in text and "x" in text:
        text = _TIMES.sub(r"\1\\times 10^", text)
    if "+/-" in text:
        text = text.replace("+/-", "\\pm ")
    if "mod" in text:
        text = _MODULO.sub(r"\\pmod{\1}", text)
    if "\\" not in text:
        return text
    if "{e}" in text or "{E}" in text:
        text = _EXPONENT.sub(r"\\times10^{\1}", text)
    if "const" in text:
        text = _CONSTANT.sub(" C", text)
    if "\\zeta" in text:
        text = _ZETA.sub(lambda match: "(\\frac{{\\pi^{}}}{{{}}})".format(*_ZETAS[match[1]]), text)
    if "\\Gamma" in text:
        text = _GAMMA.sub(_gamma, text)
    if "Z" in text and "\\in" not in text:
        text = _ALL_MULTIPLES.sub(r"\1 k", text)
    if "\\l" in text and _ORDER_OF.match(text):
        text = _ANY_LOG.sub(r"\\log ", text)
    if "elsius" in text or "ahrenheit" in text:
        text = _SCALE.sub(lambda match: f"^\\circ {(match[1] or match[2])[0].upper()} ", text)
    if "\\AA" in text or "\\mathring" in text:
        text = _ANGSTROM.sub(" Å ", text)
    if "\\SI{" in text or "\\qty{" in text:
        text = _MEASURED.sub(lambda match: f"{match[1]} \\text{{{match[2].replace(chr(92), ' ')}}}", text)
    if "ce" in text:
        text = _CE.sub(lambda match: " " + _COUNT.sub(_index, match[1]) + " ", text)
    if "\\vec" in text:
        text = _FROM_TO.sub(r"\\overrightarrow{\1\2}", text)
    if "_" in text:
        text = _ATOMS.sub(_molecule, text)
    if "|" in text and "=" in text:
        text = _EVALUATED.sub(lambda match: match[1], text)
    return _unit_vectors(text)


def _rewrite_counts(text: str) -> str:
    if "_" in text:
        text = _LOW_HIGH.sub(lambda m: _choose(m[1] or m[2], m[3] or m[4], m[5] or m[6], m[0]), text)
        text = _HIGH_LOW.sub(lambda m: _choose(m[1] or m[2], m[5] or m[6], m[3] or m[4], m[0]), text)
        text = _BEFORE.sub(lambda m: _choose(m[3] or m[4], m[1] or m[2], m[5] or m[6], m[0]), text)
    text = _PLAIN.sub(lambda m: _choose(m[2], m[1], m[3], m[0]), text)
    if "(" in text:
        text = _CHOSEN.sub(lambda m: _choose("C", m[1].replace(" ", ""), m[2].replace(" ", ""), m[0]), text)
    return text


def _choose(letter: str, top: str, bottom: str, written: str) -> str:
    """The number of ways to choose (C) or to arrange (P, A) some of `top` things; as written where it is no such."""
    if top.isdigit() != bottom.isdigit() and letter != "C":
        return written
    if top.isdigit() and bottom.isdigit():
        if not 1 < int(top) <= 9999 or int(bottom) > int(top):
            return written
    elif letter != "C" or top.isdigit() or top == "+":
        return written
    if letter == "C":
        return f"\\binom{{{top}}}{{{bottom}}}"
    return f"\\frac{{{top}!}}{{({top}-{bottom})!}}"


def _gamma(match: re.Match[str]) -> str:
    """Gamma of an integer, of n plus an integer, or of half an odd number, by factorials."""
    half = match["half"] or match["top"] or match["digit"]
    if half and int(half) % 2:
        n = int(half) // 2
        return rf"(\frac{{({2 * n})!}}{{{4**n}({n})!}}\sqrt{{\pi}})"
    if half or not (match["name"] or match["more"]):
        return match[0]
    shift = int((match["more"] or "0").replace(" ", "")) - 1
    if not match["name"]:
        return f"({shift}!)" if shift >= 0 else match[0]
    return f"(({match['name']}{f'{shift:+d}' if shift else ''})!)"


def _molecule(match: re.Match[str]) -> str:
    inside = _ATOM_PART.sub(lambda part: part[1] or "", match[0])
    return f" {inside} " if "_" in inside else match[0]


def _index(match: re.Match[str]) -> str:
    return f"_{match[1]}" if len(match[1]) == 1 else f"_{{{match[1]}}}"


def _unit_vectors(text: str) -> str:
    """Name the unit vectors of `\\mathbf{i} + 2\\mathbf{j}`, of which at least two must be there."""
    found = {_direction(match) for match in _UNIT.finditer(text)}
    return _UNIT.sub(lambda match: f"\\unit{_direction(match)} ", text) if len(found) > 1 else text


def follows_vector(text: str, end: int) -> bool:
    """Whether the sign that ends here is between two vectors by name."""
    return bool(_VECTOR_END.search(text, max(0, end - 60), end)) and bool(_VECTOR.match(text, end))


def _direction(match: re.Match[str]) -> str:
    """The i, j or k of a unit vector."""
    return match[0].rstrip("} ").removesuffix("math")[-1]


# --- formulas beside one another --------------------------------------------------------------------------------------

FORMULA_SIGNS = frozenset(("\\quad", "\\qquad", "\\(", "\\)", "\\[", "\\]"))
_EQUATION = re.compile(r"\$?[A-Za-z\\(][^\n=<>]{0,60}(?<![\\&])=")


class Formulas:
    """Where formulas in dollar signs (or `\\(`, `\\[`) begin and end, and where `\\quad` separates them."""

    def __init__(self) -> None:
        self._open = False
        self._closed_at = 0

    def sign(self, text: str, tokens: list[Token], spaced: bool, apart: set[int]) -> None:
        """Take notice of a sign; `apart` gets the place of the token that comes next, if it begins another formula."""
        place = len(tokens)
        if text in ("\\quad", "\\qquad"):
            apart.add(place)
            return
        opens = not self._open if text == "$" else text in ("\\(", "\\[")
        self._open = opens
        if not opens:
            self._closed_at = place
        elif place and self._closed_at == place and spaced:
            apart.add(place)


def new_equation(text: str, position: int, tokens: list[Token]) -> bool:
    """Whether the line that begins here is an equation, below a line that is one."""
    if not tokens or (tokens[-1].kind == "op" and tokens[-1].text not in (")", "}", "]", "|", "!", "deg", "%")):
        return False
    return any(token.text in ("=", "~") for token in tokens[-60:]) and bool(_EQUATION.match(text, position))


# --- tokens -----------------------------------------------------------------------------------------------------------

MAX_CHARS = 6_000
MAX_TOKENS = 4_000


class Token(NamedTuple):
    """`kind`: num, name (letters), op (a sign or a command's meaning), end. `spaced`: white space comes before it.
    `upright`: a name inside `\\text{}` or the like, never a product of letters. `apart`: it begins a formula
    of its own, after `\\quad`, in other dollar signs or on another line than the formula before it."""

    kind: str
    text: str
    spaced: bool = False
    upright: bool = False
    number: Num | None = None
    apart: bool = False


END = Token("end", "", True)

_TABLE = Path(__file__).with_name("commands.txt")
_SIGNS = {
    **{
        sign: f"{form} " if "\\" in form and form[-1].isalpha() else form
        for form, *signs in map(str.split, read_sections(_TABLE)["signs"])
        for sign in signs
    },
    **dict.fromkeys("∴✓✔✅∎■\u200b\u200c\u200d\u2060\ufeff\u2061", ""),
    **dict.fromkeys("\u00a0\u2008\u200a\u3000", " "),
    **dict.fromkeys("\u2009\u202f\u2007", "\\,"),
    "\u2062": "*",
    "\u2063": ",",
    "℃": "^\\circ C",
    "℉": "^\\circ F",
}
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱˣ", "0123456789+-nix"))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉ₙₓ", "0123456789nx"))
_SUPERSCRIPT_RUN = re.compile("[" + "".join(_SUPERSCRIPTS) + "]+")
_SUBSCRIPT_RUN = re.compile("[" + "".join(_SUBSCRIPTS) + "]+")
_TRANSLATION = str.maketrans(_SIGNS)


def to_latex(text: str) -> str:
    """Return Unicode signs as LaTeX. Letters that only look like others (Cyrillic A) stay as they are.

    Doubled backslashes become single ones."""
    if not text.isprintable():
        text = _ESCAPED.sub(lambda match: "\\" + _ESCAPES.get(match[0], "t"), text)
    if "\\\\" in text:
        text = one_backslash(text, _COMMANDS)
    if text.isascii():
        return text
    text = without_pictures(text)
    text = _SUPERSCRIPT_RUN.sub(lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m[0]) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda m: "_{" + "".join(_SUBSCRIPTS[c] for c in m[0]) + "}", text)
    text = text.translate(_TRANSLATION)
    if text.isascii():
        return text
    return "".join(c if c.isascii() else _fold(c) for c in text)


_FOLDED = frozenset(("<font>", "<wide>", "<narrow>", "<fraction>", "<noBreak>", "<super>", "<sub>"))


def _fold(char: str) -> str:
    """One character: fullwidth, mathematical and vulgar-fraction forms by their compatibility decomposition."""
    kind = unicodedata.decomposition(char).partition(" ")[0]
    folded = unicodedata.normalize("NFKC", char) if kind in _FOLDED else char
    if "⁄" in folded:
        top, _, bottom = folded.partition("⁄")
        return f"\\frac{{{top}}}{{{bottom or 1}}}"
    if unicodedata.category(char) in ("Cf", "Mn", "Cc"):
        return "" if unicodedata.category(char) != "Cc" else " "
    return folded.translate(_TRANSLATION)


# --- commands -------------------------------------------------------------------------------------------------------

_OPS = {"#": "#"} | {
    name: meaning for meaning, *names in map(str.split, read_sections(_TABLE)["operators"]) for name in names
}
_GROUPS = read_words(_TABLE)
_SKIPPED, _UPRIGHT, _PLAIN_GROUPS = _GROUPS["skipped"], _GROUPS["upright"], _GROUPS["plain groups"]
_ARGUMENT_DROPPED, _KEPT = _GROUPS["dropped with their argument"], _GROUPS["kept"]

_COMMANDS = frozenset(
    name
    for name in (*_OPS, *_SKIPPED, *_UPRIGHT, *_PLAIN_GROUPS, *_ARGUMENT_DROPPED, *_KEPT)
    if len(name) > 1 and name.isalpha()
)

_LONG = r"[1-9]\d{0,2}(?:,\d{3})+|\d{1,2}(?:,\d\d)+,\d{3}|\d{1,3}(?:(?:\\[,; ]|['\u0020~])\d{3})+"
_AFTER = r"(?![\d]|,\d|\\[,; ]\d|[ '~]\d)"
_TOKEN = re.compile(
    rf"""
      (?P<cmd>\\(?:[A-Za-z]+\*?|.))
    | (?P<name>[^\W\d_\u2e80-\uffff]+|(?:(?![A-Za-z])[^\W\d_])+)
    | (?P<space>[\s~\x00-\x1f\x7f]+)
    | (?P<int>[0-9]++(?![\d.,\\'\ ~eE])) |
      (?P<repeat>\d*\.\d*(?:\s*\\(?:overline|bar|overbar|dot)\s*(?:\{{\s*\d+\s*\}}|\d)\d*(?:\\dot\s*(?:\{{\d\}}|\d))?|\(\d+\))|\d*\.\d+\s*(?:\.\.\.|\\[lc]?dots\b))
    | (?P<num>(?:(?:{_LONG}){_AFTER}(?:\.\d+)?|\d+\.\d+|\d+\.(?![\d.])|\.\d+|\d+)(?:[eE][+-]?\d+(?![\d.A-Za-z]))?)
    | (?P<op>\*\*|<=|>=|=<|=>|!=|==|<>|->|\.\.\.|:=|''|\\$|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_LIST_NUMBER = re.compile(r"(?:\d+\.\d+|\d+\.(?![\d.])|\.\d+|\d+)(?:[eE][+-]?\d+(?![\d.A-Za-z]))?")
_COMMA_NUMBER = re.compile(r"\d+,\d+")
_PLAIN_OPS = {"**": "^", "==": "=", "=<": "<=", "=>": "implies", "<>": "!=", "->": "to", "...": "dots", ":=": "="}
_GLUE = re.compile(r",\s*\\![\s~]*|\{,\}\s?|\{,\\!\}\s?")
_GROUP = re.compile(r"\s*\{([^{}]*)\}")
_ROW_SPACING = re.compile(r"\s*\[\s*-?[\d.]+\s*(?:pt|e[mx]|[cm]m|in)\s*\]")
_DEGREE_LETTER = re.compile(r"(?<=[\d}])\^\s*(?:o(?![A-Za-z])|\{\s*o\s*\})")
_ONE_UNIT = (
    r"\\(?:text|mathrm)\s*(?:\{\s*~?[A-Za-z][A-Za-z~ ]{0,20}\s*\}|\s[A-Za-z])\s*(?:\^\s*(?:\d|\{\s*-?\d\s*\}))?\s*"
)
_UNIT_NAMES = rf"\s*\{{\s*({_ONE_UNIT}(?:(?:\\cdot|\\[,;: ]|~)?\s*{_ONE_UNIT}){{0,3}})\}}"
_UNIT_QUOTIENT = re.compile(r"\\[dt]?frac" + 2 * _UNIT_NAMES)
_BOLD_SET = re.compile(r"(\\in\s*)\\mathbf\s*\{?\s*([RZQN])(?![A-Za-z])\s*\}?")
_CONTINUED = re.compile(r"(?:\\\\|\\newline)\s*&?\s*(?==)")  # the next line of a chain of equalities
_NEGATED = re.compile(r"\\not\s*(=|\\in(?![A-Za-z]))")
_BETWEEN_SETS = re.compile(r"\s*(?:\\left\s*)?[(\[]")
_SPACES = frozenset(" ~'\\")
_ALONE = frozenset("{}()[]^_+/,;&|")  # signs that begin no longer one
# After these one digit, or a number without spaces, is the operand.
_ONE_NUMBER = frozenset(
    ("_", "^", "\\frac", "\\dfrac", "\\tfrac", "\\cfrac", "\\sfrac", "\\nicefrac", "\\sqrt", "\\binom")
)
_OPTION = re.compile(r"\s*\[[^\[\]]*\]")


def tokenize(text: str, commas: str = "thousands") -> list[Token]:
    """Return the tokens of `text`, the last one of kind "end".

    `commas` says how `1,234` is read: "thousands" (1234), "list" (1 and 234) or "decimal" (1.234).
    Raise TooLarge beyond MAX_CHARS, MAX_TOKENS or MAX_DIGITS, and ParseError for a degree sign within an
    exponent or digits after a repeating block.
    """
    if len(text) > MAX_CHARS:
        raise TooLarge(f"an answer of {len(text)} characters; at most {MAX_CHARS} are read")
    text = rewritten_notations(regular(to_latex(text)))
    if ("," in text and "\\" in text) or "{" in text:
        text = _GLUE.sub(",", text).replace("{:}", ":").replace("{.}", ".")
    if "{}^" in text:
        text = text.replace("{}^", "^")
    if "\\!" in text:
        text = text.replace("\\!", "")
    if "^" in text:
        text = _DEGREE_LETTER.sub(r"^\\circ ", text)
    if "\\not" in text:
        text = _NEGATED.sub(lambda match: "\\ne " if match[1] == "=" else "\\notin ", text)
    if "\\mathbf" in text:
        text = _BOLD_SET.sub(r"\1\\mathbb{\2}", text)
    if "{align" in text or "{split}" in text:
        text = _CONTINUED.sub(" ", text)
    if "frac" in text:
        text = _UNIT_QUOTIENT.sub(_unit_quotient, text)
    return _scan(text, commas)


def _unit_quotient(match: re.Match[str]) -> str:
    top, bottom = match[1].strip(), match[2].strip()
    return rf"\ {top}/({bottom})" if bottom.count("{") > 1 + bottom.count("^") else rf"\ {top}/{bottom}"


@functools.lru_cache(maxsize=1024)
def _sign(text: str, spaced: bool) -> Token:
    return Token("op", text, spaced)


def _numeral(text: str, position: int, value: str, commas: str, tokens: list[Token]) -> str:
    """Return the number at `position`, where `value` is one with its thousands marks, as `commas` says."""
    if commas == "thousands" and (not tokens or tokens[-1].text not in _ONE_NUMBER or _SPACES.isdisjoint(value)):
        return value
    match = (commas == "decimal" and _COMMA_NUMBER.match(text, position)) or _LIST_NUMBER.match(text, position)
    assert match
    return match.group().replace(",", ".")


def _scan(text: str, commas: str) -> list[Token]:
    tokens: list[Token] = []
    position, end, spaced = 0, len(text), False
    groups: list[bool] = []  # for each open brace: whether it belongs to \text{} or the like
    upright = 0
    apart: set[int] = set()  # places of the tokens that begin a formula of their own
    dollars = Formulas()
    while position < end:
        if (sign := text[position]) in _ALONE:
            position += 1
            if sign == "}" and groups and groups.pop():
                upright -= 1
                spaced = True
                continue
            if sign == "{":
                groups.append(False)
            tokens.append(_sign(sign, spaced))
            spaced = False
            continue
        match = _TOKEN.match(text, position)
        assert match is not None
        kind, value = match.lastgroup, match.group()
        start, position = position, match.end()
        if kind == "space":
            spaced = True
            if "\n" in value and not groups and new_equation(text, position, tokens):
                apart.add(len(tokens))
            continue
        if kind in ("int", "num", "repeat"):
            if kind == "num" and (commas == "decimal" or not value.isdigit()):
                value = _numeral(text, start, value, commas, tokens)
                position = start + len(value)
            amount = repeating(value) if kind == "repeat" else decimal(value)
            tokens.append(Token("num", value, spaced, upright > 0, amount))
        elif kind == "name":
            union = value == "U" and tokens and tokens[-1].text in (")", "]") and _BETWEEN_SETS.match(text, position)
            tokens.append(_sign("cup", spaced) if union else Token("name", value, spaced, upright > 0))
        elif kind == "cmd":
            if value in FORMULA_SIGNS:
                dollars.sign(value, tokens, spaced, apart)
            position, wrapper = _command(text, position, value[1:], spaced, tokens)
            if wrapper:
                groups.append(True)
                upright += 1
            spaced = wrapper or value[1:] in _SKIPPED or value[1:].isspace()
            continue
        elif value == "$":
            dollars.sign(value, tokens, spaced, apart)
        elif value == "!=" and not spaced and tokens and tokens[-1].kind == "num":  # 5!=120
            tokens += (_sign("!", False), _sign("=", False))
        else:
            tokens.append(_sign(_PLAIN_OPS.get(value, value), spaced))
        spaced = False
    if len(tokens) > MAX_TOKENS:
        raise TooLarge(f"an answer of more than {MAX_TOKENS} tokens")
    tokens.append(END)
    for place in apart:
        tokens[place] = tokens[place]._replace(apart=True)
    return tokens


def _command(text: str, position: int, name: str, spaced: bool, tokens: list[Token]) -> tuple[int, bool]:
    """Read `\\name`, which ends at `position`; return the next position, and whether it opens an upright group."""
    if name in _SKIPPED or name in ("(", ")", "[", "]", " ", "\n", "\t"):
        if name in ("left", "right") and text[position : position + 1] == ".":
            position += 1
        return position, False
    if name == "\\" and (spacing := _ROW_SPACING.match(text, position)):
        position = spacing.end()
    if name in _PLAIN_GROUPS:
        option = _OPTION.match(text, position) if name in ("framebox", "bbox") else None
        return (option.end() if option else position), False
    if name in _UPRIGHT:
        after = len(text) - len(text[position:].lstrip()) if text[position : position + 1] in (" ", "\n") else position
        if text[after : after + 1] == "{":
            return after + 1, True
        return position, False
    if name in _ARGUMENT_DROPPED:
        group = _GROUP.match(text, position)
        return (group.end() if group else position), False
    meaning = _OPS.get(name)
    if name == "times" and follows_vector(text, position):
        meaning = "cross"
    if meaning is not None:
        if meaning == "deg" and tokens and tokens[-1].text == "^":
            tokens.pop()
        elif meaning == "deg" and len(tokens) > 1 and tokens[-1].text == "{" and tokens[-2].text == "^":
            del tokens[-2:]
            brace = text.find("}", position)
            if brace < 0 or text[position:brace].strip():
                raise ParseError("a degree sign inside a longer exponent")
            position = brace + 1
        tokens.append(_sign(meaning, spaced))
    elif name in _KEPT:
        tokens.append(_sign("\\" + name, spaced))
    else:
        tokens.append(Token("name", "\\" + name, spaced))
    return position, False
