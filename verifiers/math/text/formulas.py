r"""Chemical formulas, reactions and electron configurations, compared by their signs: H2O, \mathrm{H_2O}, \ce{H2O}.

Propositions and sets by name, compared by their truth tables: \neg(p \land q) is \neg p \lor \neg q.

formula := implication (iff implication)*        implication := sum (implies implication)?
sum := product ((or | xor) product)*             product := factor (and factor)*
factor := not factor | ( formula ) | overline { formula } | letter, then complement signs
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping

from rlvr.verifiers.math.grammar.lex import to_latex

MAX_SUBSTANCE = 300
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
    """Return the letters, numbers and signs of a formula without its typesetting."""
    return _WRAPPERS.sub("", _ARROWS.sub(">", _BOTH_WAYS.sub("⇌", to_latex(text)))).rstrip(".")


MAX_FORMULA = 200
MAX_LETTERS = 8
_SIGNS = {
    "not": r"\\(?:neg|lnot|sim)(?![A-Za-z])|¬|~",
    "and": r"\\(?:land|wedge|cap)(?![A-Za-z])|∧|∩",
    "or": r"\\(?:lor|vee|cup)(?![A-Za-z])|∨|∪",
    "xor": r"\\oplus(?![A-Za-z])|⊕",
    "iff": r"\\(?:leftrightarrow|Leftrightarrow|iff|longleftrightarrow)(?![A-Za-z])|↔|⇔",
    "implies": r"\\(?:to|rightarrow|Rightarrow|implies|longrightarrow|supset)(?![A-Za-z])|→|⇒",
    "over": r"\\(?:overline|bar)(?![A-Za-z])",
    "complement": r"\^\s*(?:\{\s*)?(?:[cC]|\\complement|\\prime)(?:\s*\})?|'|′",
    "open": r"(?:\\left|\\[Bb]igl?)?\s*[(\[]|\{",
    "close": r"(?:\\right|\\[Bb]igr?)?\s*[)\]]|\}",
    "letter": r"(?:\\(?:mathrm|text)\{\s*[A-Za-z]\s*\}|[A-Za-z])(?![A-Za-z])",
    "space": r"(?:\\[,;:! ]|\s|\$)+",
}
_TOKEN = re.compile("|".join(f"(?P<{name}>{sign})" for name, sign in _SIGNS.items()))
_OPERATED = re.compile(
    r"\\(?:neg|lnot|land|wedge|lor|vee|oplus|cup|cap|to|(?:left)?rightarrow|(?:Left)?Rightarrow|implies|iff)"
    r"|[¬∧∨⊕∪∩→⇒↔⇔]"
)

_Table = Callable[[Mapping[str, bool]], bool]


class _NoFormula(ValueError):
    pass


def is_formula(text: str) -> bool:
    """Whether a text has a sign of logic, so that it may be a formula."""
    return ("\\" in text or not text.isascii()) and len(text) <= MAX_FORMULA and _OPERATED.search(text) is not None


def same_formulas(gold: str, answer: str) -> bool:
    """Whether both texts are formulas with the same truth table."""
    try:
        (left, letters), (right, others) = _read(gold), _read(answer)
    except (_NoFormula, RecursionError):
        return False
    names = sorted(letters | others)
    if len(names) > MAX_LETTERS:
        return False
    rows = (dict(zip(names, row, strict=True)) for row in itertools.product((False, True), repeat=len(names)))
    return all(left(row) == right(row) for row in rows)


def _read(text: str) -> tuple[_Table, set[str]]:
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
    reader = _Reader(tokens)
    table = reader.formula()
    if tokens[reader.at :]:
        raise _NoFormula
    return table, {letter for kind, letter in tokens if kind == "letter"}


class _Reader:
    """Reads a formula from tokens of a kind and a letter; `at` is the place of the next one."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self.at = 0

    def _kind(self) -> str:
        return self._tokens[self.at][0] if self.at < len(self._tokens) else ""

    def _take(self, *kinds: str) -> str:
        """Skip a token of these kinds; return its kind, "" where another stands here."""
        kind = self._kind()
        if kind not in kinds:
            return ""
        self.at += 1
        return kind

    def formula(self) -> _Table:
        """Read a formula."""
        left = self._implication()
        while self._take("iff"):
            left = _same(left, self._implication())
        return left

    def _implication(self) -> _Table:
        left = self._sum()
        if not self._take("implies"):
            return left
        return _either(_negated(left), self._implication())

    def _sum(self) -> _Table:
        left = self._product()
        while kind := self._take("or", "xor"):
            right = self._product()
            left = _either(left, right) if kind == "or" else _negated(_same(left, right))
        return left

    def _product(self) -> _Table:
        left = self._factor()
        while self._take("and"):
            left = _both(left, self._factor())
        return left

    def _factor(self) -> _Table:
        if self._take("not"):
            return _negated(self._factor())
        if self._take("over"):
            return _negated(self._factor())
        if self._take("open"):
            found = self.formula()
            if not self._take("close"):
                raise _NoFormula
        elif self._kind() == "letter":
            found = _letter(self._tokens[self.at][1])
            self.at += 1
        else:
            raise _NoFormula
        while self._take("complement"):
            found = _negated(found)
        return found


def _letter(name: str) -> _Table:
    return lambda row: row[name]


def _negated(table: _Table) -> _Table:
    return lambda row: not table(row)


def _both(left: _Table, right: _Table) -> _Table:
    return lambda row: left(row) and right(row)


def _either(left: _Table, right: _Table) -> _Table:
    return lambda row: left(row) or right(row)


def _same(left: _Table, right: _Table) -> _Table:
    return lambda row: left(row) == right(row)
