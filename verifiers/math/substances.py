r"""Chemical formulas, reactions and electron configurations, compared by their signs: H2O, \mathrm{H_2O}, \ce{H2O}."""

from __future__ import annotations

import re

from rlvr.verifiers.math.lex import plain

MAX_CHARS = 300
MAX_NAME = 20
_WORDS = frozenset(("no", "si"))  # not nobelium and silicon
_ELEMENTS = frozenset(
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb "
    "Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu "
    "Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm".split()
)
_MARKED = re.compile(
    r"\\ce\{|\\(?:mathrm|text)\s*\{[^{}]*[A-Z]|[A-Z][a-z]?_|\d[spdf]\s*\^|[₀-₉]|->|\\(?:to|rightarrow)"
)
_ARROWS = re.compile(r"\\x?(?:long)?rightarrow(?:\[[^\]]*\])?(?:\{\s*\})?|\\to(?![A-Za-z])|→|-{1,2}>|=>")
_BOTH_WAYS = re.compile(r"\\(?:rightleftharpoons|leftrightarrow|rightleftarrows)(?![A-Za-z])|⇌|<=>|<->")
_WRAPPERS = re.compile(r"\\(?:ce|mathrm|text|textrm|mathbf|left|right|displaystyle)(?![A-Za-z])|\\[,;:! ]|[\s{}$^_~]")
_SIDE = r"\d*(?:[A-Z][a-z]?\d*|\((?:[A-Z][a-z]?\d*)+\)\d*)+(?:\d?[+-])?(?:\((?:s|l|g|aq)\))?"
_FORMULA = re.compile(rf"{_SIDE}(?:\+{_SIDE})*(?:[>⇌]{_SIDE}(?:\+{_SIDE})*)?")
_CONFIGURATION = re.compile(r"(?:\[[A-Z][a-z]\])?(?:\d[spdf]\d{1,2})+")
_ELEMENT = re.compile(r"[A-Z][a-z]?")


def is_substance(gold: str) -> bool:
    """Whether a gold may be a formula, a reaction or a configuration."""
    if len(gold) > MAX_CHARS or not _MARKED.search(gold):
        return False
    signs = _signs(gold)
    if _CONFIGURATION.fullmatch(signs):
        return True
    return _FORMULA.fullmatch(signs) is not None and _ELEMENTS.issuperset(_ELEMENT.findall(signs))


def other_elements(gold: str, answer: str) -> bool:
    """Whether two normalised texts differ in case only, and are formulas of different elements: Co and CO."""
    if gold == answer or len(gold) != len(answer) or len(gold) > MAX_NAME or gold.casefold() != answer.casefold():
        return False
    left, right = _signs(gold), _signs(answer)
    if gold.casefold() in _WORDS or not _FORMULA.fullmatch(left) or not _FORMULA.fullmatch(right):
        return False
    elements, others = _ELEMENT.findall(left), _ELEMENT.findall(right)
    return elements != others and _ELEMENTS.issuperset((*elements, *others))


def same_substances(gold: str, answer: str) -> bool:
    """Whether an answer has the signs of a gold for which `is_substance` holds."""
    return len(answer) <= MAX_CHARS and _signs(gold) == _signs(answer)


def _signs(text: str) -> str:
    """Return the letters, numbers and signs of a formula without its typesetting."""
    return _WRAPPERS.sub("", _ARROWS.sub(">", _BOTH_WAYS.sub("⇌", plain(text)))).rstrip(".")
