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
_CALLED = re.compile(rf"{_START}C\s*\(\s*(\d{{1,3}})\s*,\s*(\d{{1,3}})\s*\)")

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

_TIMES = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*x\s*10\s*\^")  # 1.2 x 10^5
_MODULO = re.compile(
    r"\(\s*(?:\\(?:mathrm|text|operatorname)\s*\{\s*mod\s*\}|mod)(?:\\[ ,;]|~|\s)*([A-Za-z0-9]{1,6})\s*\)"
)

# \right|_{x=1} before an equality sign: where a derivative is taken.
_EVALUATED = re.compile(
    r"(?:\\left\s*\.\s*)?([^|=]{1,80}?)(?:\\right|\\[bB]igg?r?)?\s*\|\s*_\s*\{[^{}=]{1,20}=[^{}]{1,20}\}\s*(?==)"
)


def rewritten_notations(text: str) -> str:
    r"""Return the text with `\binom{10}{3}` for C_{10}^3, names for unit vectors, and the atoms of formulas joined."""
    if "C" in text or "P" in text or "A" in text:
        text = _counted(text)
    if "10" in text and "x" in text:
        text = _TIMES.sub(r"\1\\times 10^", text)
    if "mod" in text:
        text = _MODULO.sub(r"\\pmod{\1}", text)
    if "\\" not in text:
        return text
    if "ce" in text:
        text = _CE.sub(lambda match: " " + _COUNT.sub(_index, match[1]) + " ", text)
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
    return _CALLED.sub(lambda m: _choose("C", m[1], m[2], m[0]), text)


def _choose(letter: str, top: str, bottom: str, written: str) -> str:
    """The number of ways to choose (C) or to arrange (P, A) some of `top` things; as written where it is no such."""
    if top.isdigit() != bottom.isdigit() and letter != "C":
        return written
    if top.isdigit() and bottom.isdigit():
        if not 1 < int(top) <= 999 or int(bottom) > int(top):
            return written
    elif letter != "C" or top.isdigit() or top == "+":
        return written
    if letter == "C":
        return f"\\binom{{{top}}}{{{bottom}}}"
    return f"\\frac{{{top}!}}{{({top}-{bottom})!}}"


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
