"""The grammar of math answers: a precedence parser over the tokens of `lex`, in linear time.

    answer   := item ((`,` | `;` | and | or | newline) item)*
    item     := side (relation side)*
    side     := lead-words? currency? expression unit-or-words?
    expression: precedence climbing: over choose < cup cap setminus < : < + - pm mp < * / juxtaposition < unary - < ^ <
                ! % deg _

| heads of `Op` | of |
|---|---|
| add mul div neg pow root pm mp abs floor ceil, the functions of `FUNCTIONS` | values |
| fact, multifact (n, step), subfact, binom, gcd, lcm, min, max, deg, percent | values |
| log (x), logb (base, x), root (index, radicand), scale (value, a multiplier in words) | values |
| sum prod int lim diff | open forms (values/tree.py) |
| list, either (or), both (and, of inequalities), set, such, "()" "[]" "[)" "(]", matrix row, piecewise case | lists |
| union inter minus domain, based (digits, base), ratio, mod | sets and numbers in other forms |
| apply, proposition, det, trace | functions, propositions, matrices |

Beyond the bounds TooLarge is raised: characters, tokens and digits (lex), nesting (cursor), height and items (here). A
text that is not an answer raises ParseError.
"""

from __future__ import annotations

import functools

from ..values.tree import (
    Node,
    Op,
    ParseError,
    Quantity,
    Rel,
    Sym,
    TooLarge,
    Unit,
    Words,
    flat,
    height,
    is_op,
    nodes,
    symbols,
)
from ..values.units import NO_UNIT, RATES, UNITS, temperature
from .affixes import (
    CURRENCIES,
    QUANTIFIERS,
    explains,
    is_rate,
    is_restated,
    juxtaposable,
    lead,
    skip_condition,
    skip_restatement,
    smaller_units,
    tail,
    without_conditions,
)
from .calculus import CALCULUS
from .cursor import Parser
from .lex import END, Token, tokenize
from .meaning import (
    DOTS,
    as_points,
    fill_ellipsis,
    join_chain,
    label_items,
    may_be_called,
    parse_call,
    two_valued,
    with_calls,
    with_modulus,
    with_names,
)
from .operands import (
    MATRIX_NAMES,
    POSTFIX,
    PREFIX,
    binary,
    is_phasor,
    matrix_name,
    name,
    numeral,
    phasor,
    postfix,
)
from .vocabulary import SEPARATORS

MAX_HEIGHT = 100
MAX_ITEMS = 2_000
MAX_CONDITIONS = 3  # attempts to read a condition in one answer

_RELATIONS = frozenset(("=", "~", "<", "<=", ">", ">=", "!=", "in", "notin"))
_BINARY = {"cup": 10, "cap": 10, "setminus": 10, ":": 15, "+": 20, "-": 20, "pm": 20, "mp": 20, "*": 30, "/": 30,
           "cross": 30, "^": 50, "over": 5, "\\choose": 5}  # fmt: skip
JUXTAPOSED = 30
_MEASURED = frozenset(("percent", "deg", "neg", "scale"))  # values that may be quantities without a unit after them


@functools.lru_cache(maxsize=4096)
def parse(text: str, commas: str = "thousands", units: bool = True) -> Node:
    """Parse a whole answer. `commas`: see tokenize. `units`: letters after a number may be a unit.

    Raise ParseError (not of the grammar) or TooLarge (beyond the bounds).
    """
    parser = Grammar(tokenize(_trim(text), commas), units)
    tree = _parse_all(parser)
    if "pm" in text or "mp" in text or not text.isascii():
        tree = two_valued(tree)
    tree = with_calls(with_names(text, tree))
    if len(nodes(tree)) > MAX_HEIGHT and height(tree) > MAX_HEIGHT:
        raise TooLarge(f"an expression nested deeper than {MAX_HEIGHT}")
    return tree


def _parse_all(parser: Grammar) -> Node:
    tree = parser.answer()
    parser.skip(".", '"', "`")
    if parser.kind != "end":
        raise ParseError(f"cannot read {parser.place()}")
    return tree


def dropped_conditions(text: str) -> list[Rel]:
    """Return the conditions of an answer that `parse` leaves out. Raise as it does."""
    parser = Grammar(tokenize(_trim(text)), True)
    _parse_all(parser)
    return parser.dropped


def _trim(text: str) -> str:
    """The answer without quotes, emphasis and the punctuation of its sentence."""
    text = text.strip()
    if text[:1] == text[-1:] == "'":
        text = text[:-1]
    text = text.lstrip("*`\"'")
    if not text.endswith("^*"):  # \\mathbb{R}^*
        text = text.rstrip('*`"')
    if text.endswith("\\") and not text.endswith("\\\\"):
        text = text[:-1].rstrip()  # a forced space whose space is gone
    bare = text.rstrip(".,;:")
    return text if text.endswith("..") or bare.endswith("\\") else bare.rstrip()


class Grammar(Parser):
    """The grammar, over a Cursor. Handlers of single constructs are in operands, calculus and affixes.

    `units`: letters after a number may be a unit. `named`: the variables of the sides before this one.
    """

    def __init__(self, tokens: list[Token], units: bool, depth: int = 0) -> None:
        super().__init__(tokens, depth)
        self.units = units
        self.named: frozenset[str] = frozenset()
        self.label = ""  # of the last side, in words
        self.dropped: list[Rel] = []  # conditions beside the answer
        self._conditions = 0

    def part(self, tokens: list[Token]) -> Grammar:
        """Return a parser of some tokens of this answer, which must be read to their end."""
        self.deeper()
        inner = Grammar([*tokens, END], self.units, self.depth)
        self.shallower()
        return inner

    def may_try_condition(self) -> bool:
        """Count an attempt to read a condition; return whether it may be made."""
        self._conditions += 1
        return self._conditions <= MAX_CONDITIONS

    def answer(self) -> Node:
        """Parse items with separators between them: a list ("and") or alternatives ("or")."""
        if self.word() in QUANTIFIERS and skip_condition(self):
            self.separator()
        items = [self.item()]
        labels = [self.label]
        joints: list[str] = []
        while self.kind != "end":
            if self.word() in QUANTIFIERS:
                skip_condition(self, symbols(items[-1]))
            separator = self.separator()
            if not separator:
                break
            if (self.word() in QUANTIFIERS and skip_condition(self, symbols(items[-1]))) or explains(self):
                continue
            joints.append(separator)
            if self.kind == "end" or self.op() in ("}", "}}", ")", "]"):
                break
            items.append(self.item())
            labels.append(self.label)
            if len(items) > MAX_ITEMS:
                raise TooLarge(f"more than {MAX_ITEMS} items")
        if len(items) > 1:
            items = label_items(join_chain(items, joints), labels)
        if not self.in_set:
            items = without_conditions(items, self.dropped)
        if len(items) > 1 and isinstance(items[0], (Rel, Op)):
            items = as_points(items, joints)
        if len(items) > 1 and isinstance(items[-1], (Rel, Op)):
            items = with_modulus(items)
        if Words in map(type, items) and DOTS in items:
            items = fill_ellipsis(items)
        if len(items) == 1:
            return items[0]
        if {"land", "lor"} & set(joints) and all(symbols(item) and not isinstance(item, Rel) for item in items):
            return Op("proposition", (*items, Words(" ".join(joints))))  # compared as text, by truth tables
        if "then" in joints:
            return Op("()", tuple(items))
        conjunction, alternatives = not {"and", "land"}.isdisjoint(joints), not {"or", "lor"}.isdisjoint(joints)
        if conjunction and any(isinstance(item, Rel) and not set(item.ops) <= {"=", "~"} for item in items):
            return Op("both", tuple(items))
        return Op("either" if alternatives else "list", tuple(items))

    def separator(self) -> str:
        """Skip `,`, `and`, `, and`, ...; return ",", "and", "or" or "". A formula of its own needs none before it."""
        found = ""
        while True:
            token = self.token
            if token.kind == "op" and token.text in (",", ";", "newline"):
                found = found or ","
            elif token.kind == "op" and token.text == "and":
                found = "and"
            elif token.kind == "op" and token.text in ("land", "lor"):
                found = token.text
            elif self.word() in SEPARATORS:
                found = SEPARATORS[self.word()]
            else:
                return found or ("," if self._begins_formula(token) else "")
            self.advance()

    def _begins_formula(self, token: Token) -> bool:
        """Whether a formula of its own begins here, or an ellipsis after the terms of a list."""
        if token.kind == "op" and (token.text == "dots" or token.text in ("+", "-", "pm", "mp")):
            return token.text == "dots"
        return token.apart and (token.kind in ("num", "name") or token.text in PREFIX)

    def item(self) -> Node:
        """Parse a side, or a chain of relations."""
        if self.op() == "dots":
            self.advance()
            return DOTS
        self.deeper()
        self.skip("=", "~", ":", "&", "because", "implies")
        self.named = frozenset()
        self.label = ""
        first = self.side()
        if self.op() not in _RELATIONS and not (self.op() == "&" and self.op(1) in _RELATIONS):
            self.shallower()
            return first
        sides, ops = [first], []
        while True:
            self.take("&")
            if self.op() not in _RELATIONS:
                break
            ops.append(self.advance().text)
            self.take("&")
            self.named |= symbols(sides[-1])
            sides.append(self.side())
        self.shallower()
        return Rel(tuple(ops), tuple(sides))

    def side(self) -> Node:
        """Parse an expression with the words, the currency and the unit around it."""
        label = lead(self)
        sign = False
        currency = None
        if self.op() == "-" and self.op(1) in CURRENCIES:
            sign = self.take("-")
        if self.op() in CURRENCIES:
            currency = UNITS[self.advance().text]
        word = self.word()
        if word in ("negative", "minus") or (word == "positive" and self.peek().kind == "num"):
            sign = sign is (word == "positive")
            self.advance()
        value = self.expression(0)
        value = Op("neg", (value,)) if sign else value
        if self.op() in ("\\pmod", "\\mod", "\\bmod"):
            self.advance()
            return Op("mod", (value, self.prefix()))
        self.label = label
        if self.kind == "end" and currency is None and (not is_op(value, *_MEASURED)):
            return value
        value, unit = tail(self, value)
        self.label = label
        value = smaller_units(self, value, unit)
        if self.op() == "(" and is_restated(self, value):
            skip_restatement(self, value)
        if currency is not None:
            if unit.dims and unit != currency:
                raise ParseError("two currencies or units")
            unit = currency._replace(words=unit.words) if {*unit.words.split()[:1]} <= RATES else currency
        if is_op(value, "percent") and unit == NO_UNIT:
            return Quantity(value.args[0], UNITS["%"])
        if is_op(value, "deg") and unit == NO_UNIT:
            return Quantity(value.args[0], UNITS["°"])
        if is_op(value, "neg") and isinstance(value.args[0], Op):
            inner = value.args[0]
            if inner.head == "scale":  # -40°C
                value = Op("scale", (Op("neg", inner.args[:1]), *inner.args[1:]))
        if is_op(value, "scale") and isinstance(value.args[1], Words) and unit == NO_UNIT:
            return Quantity(value.args[0], temperature(value.args[1].text))
        return value if unit == NO_UNIT else Quantity(value, unit)

    def quantity(self) -> tuple[Node, Unit]:
        """Parse a value without sums and its unit."""
        return tail(self, self.expression(JUXTAPOSED))

    def expression(self, least: int) -> Node:
        """Parse operators that bind more tightly than `least`, by precedence climbing."""
        left = self.prefix()
        while True:
            token = self.token
            if token.kind == "op":
                text = token.text
                binding = _BINARY.get(text)
                if binding is not None:
                    if binding <= least or (text == ":" and self.in_set) or (text == "/" and is_rate(self)):
                        return left
                    self.advance()
                    left = binary(self, text, binding, left)
                    continue
                if text in POSTFIX:
                    left = postfix(self, POSTFIX[text], left)
                    continue
                if text == "angle" and is_phasor(self, left):
                    self.advance()
                    left = phasor(left, self.expression(_BINARY["^"]))
                    continue
                if not juxtaposable(self, token, left):
                    return left
            elif token.text == "to" and token.kind == "name":
                if least >= _BINARY[":"]:
                    return left
                self.advance()
                left = binary(self, ":", _BINARY[":"], left)
                continue
            elif token.kind == "end" or not juxtaposable(self, token, left):
                return left
            if least >= JUXTAPOSED:
                return left
            left = flat("mul", left, self.expression(JUXTAPOSED))

    def prefix(self) -> Node:
        """Parse an operand with the signs before it."""
        self.deeper()
        token = self.token
        if token.kind == "num":
            node = numeral(self, token)
        elif token.kind == "name":
            node = (matrix_name(self) if token.text in MATRIX_NAMES else None) or name(self, token)
            if isinstance(node, Sym) and may_be_called(node.name):
                node = parse_call(self, node)
        elif token.kind == "end":
            raise ParseError(f"expected a value, found {self.place()}")
        else:
            handler = CALCULUS.get(token.text) or PREFIX.get(token.text)
            if handler is None:
                raise ParseError(f"cannot read {self.place()}")
            self.advance()
            node = handler(self, token.text)
        self.shallower()
        return node
