r"""Answers that are compared by their own signs: chemical formulas, and propositions.

| gold | answer | right | because |
|---|---|---|---|
| `\mathrm{H_2O}` | `H2O` | yes | the same elements and numbers |
| `CO` | `Co` | no | carbon monoxide is not cobalt |
| `\neg(p \land q)` | `\neg p \lor \neg q` | yes | the same truth table |
"""

from __future__ import annotations

import re

from ..grammar.lex import to_latex

# --- substances -------------------------------------------------------------------------------------------------------

MAX_SUBSTANCE = 300  # characters
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
    """Whether a gold may be a chemical formula, a reaction or an electron configuration."""
    if len(gold) > MAX_SUBSTANCE or not _MARKED.search(gold):
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
    return len(answer) <= MAX_SUBSTANCE and _signs(gold) == _signs(answer)


def _signs(text: str) -> str:
    """The letters, numbers and signs of a formula without its typesetting."""
    return _WRAPPERS.sub("", _ARROWS.sub(">", _BOTH_WAYS.sub("⇌", to_latex(text)))).rstrip(".")


# --- propositions, and sets by name -----------------------------------------------------------------------------------

MAX_FORMULA = 200  # characters
MAX_LETTERS = 8
_KINDS = {
    "not": r"\\(?:neg|lnot|sim|overline|bar)(?![A-Za-z])|¬|~",
    "and": r"\\(?:land|wedge|cap)(?![A-Za-z])|∧|∩",
    "or": r"\\(?:lor|vee|cup)(?![A-Za-z])|∨|∪",
    "xor": r"\\oplus(?![A-Za-z])|⊕",
    "iff": r"\\(?:leftrightarrow|Leftrightarrow|iff|longleftrightarrow)(?![A-Za-z])|↔|⇔",
    "implies": r"\\(?:to|rightarrow|Rightarrow|implies|longrightarrow|supset)(?![A-Za-z])|→|⇒",
    "complement": r"\^\s*(?:\{\s*)?(?:[cC]|\\complement|\\prime)(?:\s*\})?|'|′",
    "open": r"(?:\\left|\\[Bb]igl?)?\s*[(\[]|\{",
    "close": r"(?:\\right|\\[Bb]igr?)?\s*[)\]]|\}",
    "letter": r"(?:\\(?:mathrm|text)\{\s*[A-Za-z]\s*\}|[A-Za-z])(?![A-Za-z])",
    "space": r"(?:\\[,;:! ]|\s|\$)+",
}
_TOKEN = re.compile("|".join(f"(?P<{kind}>{signs})" for kind, signs in _KINDS.items()))
_OPERATED = re.compile(
    r"\\(?:neg|lnot|land|wedge|lor|vee|oplus|cup|cap|to|(?:left)?rightarrow|(?:Left)?Rightarrow|implies|iff)"
    r"|[¬∧∨⊕∪∩→⇒↔⇔]"
)
_BINDING = {"iff": 1, "implies": 2, "or": 3, "xor": 3, "and": 4}


class _NoFormula(ValueError):
    """Not a proposition."""


def is_formula(text: str) -> bool:
    """Whether a text has a sign of logic, so that it may be a proposition."""
    return ("\\" in text or not text.isascii()) and len(text) <= MAX_FORMULA and _OPERATED.search(text) is not None


def same_formulas(gold: str, answer: str) -> bool:
    """Whether both texts are propositions, or sets by name, with the same truth table."""
    try:
        left, right = _tokens(gold), _tokens(answer)
        names = sorted({letter for kind, letter in left + right if kind == "letter"})
        return len(names) <= MAX_LETTERS and _Table(left, names).read() == _Table(right, names).read()
    except (_NoFormula, RecursionError):
        return False


def _tokens(text: str) -> list[tuple[str, str]]:
    """The kinds of the tokens of a text, and the last letter of each."""
    tokens: list[tuple[str, str]] = []
    position, text = 0, text.strip(" .$")
    if len(text) > MAX_FORMULA:
        raise _NoFormula
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise _NoFormula
        position = match.end()
        if match.lastgroup != "space":
            tokens.append((match.lastgroup, match.group().rstrip("} ")[-1:]))
    return tokens


class _Table:
    """The truth table of a proposition: an integer with one bit for each assignment of the letters `names`."""

    def __init__(self, tokens: list[tuple[str, str]], names: list[str]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._at = 0
        rows = range(2 ** len(names))
        self._true = (1 << len(rows)) - 1
        self._letters = {name: sum(1 << row for row in rows if row >> place & 1) for place, name in enumerate(names)}

    def read(self) -> int:
        """Return the table of all tokens."""
        table = self._formula(0)
        if self._tokens[self._at][0] != "end":
            raise _NoFormula
        return table

    def _formula(self, least: int) -> int:
        """Read signs that bind more tightly than `least`; a -> b -> c is a -> (b -> c)."""
        left = self._factor()
        while _BINDING.get(kind := self._tokens[self._at][0], 0) > least:
            self._at += 1
            right = self._formula(_BINDING[kind] - (kind == "implies"))
            if kind == "and":
                left &= right
            elif kind == "or":
                left |= right
            elif kind == "implies":
                left = left ^ self._true | right
            else:
                left ^= right if kind == "xor" else right ^ self._true
        return left

    def _factor(self) -> int:
        kind, letter = self._tokens[self._at]
        self._at += 1
        if kind == "not":
            return self._factor() ^ self._true
        if kind == "open":
            table = self._formula(0)
            if self._tokens[self._at][0] != "close":
                raise _NoFormula
            self._at += 1
        elif kind == "letter":
            table = self._letters[letter]
        else:
            raise _NoFormula
        while self._tokens[self._at][0] == "complement":
            self._at += 1
            table ^= self._true
        return table
