"""Notations that are rewritten before an answer is cut into tokens: binomials, unit vectors, chemical formulas."""

from __future__ import annotations

import re

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
        text = _counted(text)
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


def _counted(text: str) -> str:
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
