r"""What stands around a value.

| part | example |
|---|---|
| words before it | the answer is, Height =, $ |
| a factor, a unit or a word after it | 3x, 3 m, 3 cats |
| the same value in brackets | 1/2 (0.5), \sqrt2 (\approx 1.414) |
| smaller units | 5 feet 6 inches |
| conditions that restate the question | 2k + 2 for k >= 1 |
"""

from __future__ import annotations

from fractions import Fraction

from ..values.exact import Inexact, Undefined, rational
from ..values.numeric import approximates
from ..values.tree import (
    PI,
    Node,
    Num,
    Op,
    ParseError,
    Quantity,
    Rel,
    Sym,
    TooLarge,
    Unit,
    Words,
    flat,
    is_op,
    number,
    symbols,
    walk,
)
from ..values.units import (
    CLEAR_UNITS,
    LETTER_UNITS,
    NO_UNIT,
    POWERS,
    SQUARED,
    UNITS,
    find_unit,
    power_of,
    product_of,
    scale_of,
    temperature,
    unit_of_two,
)
from .cursor import Parser
from .lex import Token
from .vocabulary import (
    ABBREVIATED,
    ALTERING,
    BLOCKED,
    CONSTANT_NAMES,
    FUNCTIONS,
    GREEK,
    LEAD,
    MAGNITUDES,
    MULTIPLIERS,
    NO_MAGNITUDE,
    NUMBER_WORDS,
    PARTS,
    SEPARATORS,
    STOP,
    is_noun,
    is_product,
)

# A factor does not begin with these signs.
_NO_START = frozenset(("cup", "cap", "setminus", ",", ";", ")", "]", "}", "}}", "=", "~", "<", ">", "<=", ">=", "!=",
                       "in", "and", "or", "newline", "*", "/", "^", "&", "!", ":"))  # fmt: skip


def is_bracketed_factor(parser: Parser) -> bool:
    """Whether [ opens a factor, as in 2[x + 1], and not an interval that is written ]0, 1[."""
    first = parser.peek()
    if is_word(parser, first) or first.kind == "end" or (first.kind == "op" and first.text in _NO_START):
        return False
    level, offset = 0, 1
    while (token := parser.peek(offset)).kind != "end":
        if token.kind == "op":
            if token.text in ("(", "[", "{", "{{"):
                level += 1
            elif token.text in (")", "]", "}", "}}"):
                if not level:
                    return token.text == "]"
                level -= 1
            elif not level and token.text in (",", ";", "newline", "&"):
                return False
        offset += 1
    return False


def is_root_of(parser: Parser, offset: int) -> bool:
    """Whether "root of" stands here, before a value: the square root of 42."""
    following = parser.peek(offset + 2)
    operand = following.kind == "num" or following.text in ("(", "{", "\\frac", "\\sqrt", "-")
    return parser.peek(offset + 1).text == "of" and operand


# --- a value in brackets again ----------------------------------------------------------------------------------------

_MARKS = frozenset(("~", "="))
_FRACTIONS = frozenset(("\\frac", "\\dfrac", "\\tfrac"))
_WORDS = frozenset("or about approximately approx roughly i.e. ie".split())


def is_restated(parser: Parser, value: Node) -> bool:
    """Whether the bracket here repeats the value before it, and is no factor."""
    spelled = parser.before.kind == "name" and parser.before.text.lower() in NUMBER_WORDS
    if (parser.peek().text.lower() in NUMBER_WORDS or (spelled and parser.op(2) == ")")) and not symbols(value):
        return parser.peek().kind in ("name", "num")  # 42 (forty-two), five (5)
    written = parser.peek(2).kind == "num" or parser.op(2) in _FRACTIONS
    if parser.op(1) in _MARKS or (parser.peek().text in _WORDS and written):
        return not symbols(value)
    if not parser.token.spaced:
        return False
    first, second = parser.peek().number, parser.peek(3).number
    if first is None:
        return False
    if parser.op(2) == "%" and parser.op(3) == ")":  # 1/8 (12.5%)
        return approximates(value, Quantity(first, UNITS["%"]))
    if parser.op(2) == ")":  # 1/2 (0.5), \sqrt{2} (1.414)
        precise = bool(first.places) and (first.digits > 1 or rational(value) == first.value)
        return precise and not isinstance(value, Num) and not symbols(value) and approximates(value, first)
    quotient = second is not None and second.value and parser.op(2) == "/" and parser.op(4) == ")"  # 0.5 (1/2)
    if not quotient or second is None or not isinstance(value, Num) or value.places is None:
        return False
    return value.value == first.value / second.value


def skip_restatement(parser: Parser, value: Node) -> None:
    """Move over the bracket. Raise ParseError where it holds another value."""
    parser.expect("(")
    parser.skip(*_MARKS)
    parser.skip_words(_WORDS)
    parser.deeper()
    with parser.group():
        again = parser.side()
        parser.expect(")")
    parser.shallower()
    try:
        same = rational(again) is not None and rational(value) == rational(again)
        same = same or approximates(value, again)
    except (Inexact, Undefined):
        same = False
    if not same:
        raise ParseError("two different values side by side")


# --- conditions -------------------------------------------------------------------------------------------------------

PARAMETERS = frozenset("jklmnKMN")
_INTEGERS = Op("domain", (Words("integers"),))
QUANTIFIERS = frozenset(("for", "where", "with", "when", "provided", "forall", "\\forall"))
_FILLERS = frozenset(
    "all any every each some real reals integer integers natural positive nonnegative nonzero number numbers value "
    "values of the that".split()
)
_COPULAS = frozenset("is are denotes denote".split())
_ADJECTIVES = frozenset("a an any the arbitrary some real positive nonzero non zero".split())
_KINDS = frozenset("constant constants integer integers parameter parameters number numbers real".split())
_BOUNDS = frozenset(("<", "<=", ">", ">=", "!=", "in"))


def skip_condition(parser: Parser, names: frozenset[str] | None = None) -> bool:
    """Move over a condition, if there is one here; return whether there was. It must bound only `names`, if given."""
    if parser.word() not in QUANTIFIERS or not parser.may_try_condition():
        return False
    start = parser.mark()
    quantifier = parser.advance()
    if explains(parser):
        return True
    filled = parser.skip_words(_FILLERS) or quantifier.text == "\\forall"
    try:
        condition = parser.item()
    except (ParseError, TooLarge):
        condition = Words("")
    bare = filled and isinstance(condition, Sym) and bool(symbols(condition))
    if bare:
        return True
    bounded = symbols(condition) if isinstance(condition, Rel) and set(condition.ops) <= _BOUNDS else frozenset()
    if bounded and (names is None or bounded <= names):
        if isinstance(condition, Rel):
            parser.dropped.append(condition)
        return True
    parser.backtrack(start)
    return False


def explains(parser: Parser) -> bool:
    """Move over `c is a constant` or `k an integer`; return whether it was there. A set of integers is a condition."""
    if parser.kind != "name" or len(parser.token.text) > 1:
        return False
    start = parser.mark()
    names = []
    while parser.kind == "name" and (len(parser.token.text) == 1 or parser.word() == "and"):
        if (token := parser.advance()).text != "and":
            names.append(token.text)
        if parser.take("_"):
            parser.argument_text()
        parser.take(",")
    parser.skip_words(_COPULAS)
    words = []
    while parser.word() in _ADJECTIVES | _KINDS:
        words.append(parser.advance().text.lower())
    described = names and words and words[-1] in _KINDS
    if not described or (parser.kind != "end" and parser.op() not in (",", ";", ")", "}")):
        parser.backtrack(start)
        return False
    if words[-1].startswith("integer"):
        integers = Op("domain", (Words("positive integers" if "positive" in words else "integers"),))
        for name in names:
            parser.dropped.append(Rel(("in",), (Sym(name), integers)))
    return True


def without_conditions(items: list[Node], dropped: list[Rel]) -> list[Node]:
    """Return the items without `x in R` and bounds on variables of the first item, where they come last.

    What is left out is added to `dropped`."""
    items = [_unbound(item, dropped) for item in items]
    while len(items) > 1 and _only_restricts(items[-1], items[0]):
        *items, condition = items
        if isinstance(condition, Rel):
            dropped.append(condition)
    return items


def _unbound(item: Node, dropped: list[Rel]) -> Node:
    """Return the formula of `k \\pi (k \\in \\mathbb{Z})`, parsed as a product; add its condition to `dropped`."""
    if isinstance(item, Rel) and item.sides:
        return Rel(item.ops, (*item.sides[:-1], _unbound(item.sides[-1], dropped)))
    if not is_op(item, "mul", "add") or not isinstance(item.args[-1], (Rel, Op)):
        return item
    last, rest = item.args[-1], item.args[:-1]
    if item.head == "add":
        return Op("add", (*rest, _unbound(last, dropped)))
    if not isinstance(last, Rel) or not set(last.ops) <= _BOUNDS:
        return item
    dropped.append(last)
    return rest[0] if len(rest) == 1 else Op("mul", rest)


def _only_restricts(condition: Node, formula: Node) -> bool:
    if not isinstance(condition, Rel) or not set(condition.ops) <= _BOUNDS:
        return False
    names = symbols(condition)
    inequality = isinstance(formula, Rel) and not set(formula.ops) <= {"=", "~"}
    if condition.ops == ("in",):
        domain = condition.sides[1]
        if is_op(domain, "minus") and is_op(domain.args[1], "set"):
            domain = domain.args[0]
        known = is_op(domain, "domain")
        if names <= PARAMETERS and domain != _INTEGERS and PI in walk(formula):
            return False  # k \\pi for a real or a natural k
        return known and names <= symbols(formula) and (not inequality or domain == Op("domain", (Words("reals"),)))
    if inequality or not isinstance(formula, (Rel, Op)) or not names:
        return False
    return names <= symbols(formula.sides[-1] if isinstance(formula, Rel) else formula)


# --- units ------------------------------------------------------------------------------------------------------------

_DEGREE, _TIME = (("degree", 1),), (("time", 1),)
_DEGREES_OF_TIME = {60: 60, 1: 3600}  # seconds of time: parts of a degree
_CAPITALS = frozenset("NJWVC")
MAX_RUN = 24  # tokens of a unit without a multiplication sign


def unit(parser: Parser) -> Unit | None:
    """Parse a known unit: powers, quotients, products and "square"."""
    total: Unit | None = None
    while True:
        start = parser.mark()
        power = 1
        if total is not None:
            hyphenated = parser.op() == "-" and not parser.token.spaced and not parser.peek().spaced
            if parser.op() in ("/", "*") or parser.word() == "per" or hyphenated:
                power = 1 if parser.advance().text in ("*", "-") else -1
            elif not _goes_on(parser):
                return total
        one = _parse_unit_group(parser) if total is not None else None
        one = one or _simple_unit(parser, total is not None)
        if one is None:
            parser.backtrack(start)
            return total
        total = one if total is None else product_of(total, power_of(one, power))


def _goes_on(parser: Parser) -> bool:
    """Whether the name here is a further factor of a unit: kg m, J K^{-1}."""
    token = parser.token
    return token.kind == "name" and (token.upright or token.spaced) and find_unit(token.text, True) is not None


def _parse_unit_group(parser: Parser) -> Unit | None:
    """Parse the (kg K) of J/(kg K); None (and no move) where there is none."""
    start = parser.mark()
    if not parser.take("("):
        return None
    parser.deeper()
    inner = unit(parser)
    parser.shallower()
    if inner is None or not parser.take(")"):
        parser.backtrack(start)
        return None
    return inner


def _simple_unit(parser: Parser, within: bool) -> Unit | None:
    """Parse one unit with its power, and "square" or "cubic" before it; None (and no move) where there is none.

    `within`: it follows another unit."""
    if parser.word() == "per" and parser.peek().text.lower() == "cent":
        parser.advance(2)
        return UNITS["%"]
    start = parser.mark()
    squared = SQUARED.get(parser.word(), 1)
    if squared > 1:
        parser.advance()
        parser.take(".")
    found = _name(parser, within) if parser.kind == "name" else None
    if found is None:
        parser.backtrack(start)
        return None
    if parser.take("^"):
        return power_of(found, _unit_power(parser) * squared)
    if parser.word() in POWERS:
        return power_of(found, POWERS[parser.advance().text.lower()] * squared)
    if squared == 1:
        parser.take(".")
    return found if squared == 1 else power_of(found, squared)


def _name(parser: Parser, within: bool) -> Unit | None:
    """Parse the name of a unit; its prefix may be a token of its own: \\mu m, k\\Omega."""
    token, following = parser.token, parser.peek()
    hyphen = 1 if following.text == "-" else 0
    second = parser.peek(1 + hyphen)
    if second.kind == "name" and (two := unit_of_two(token.text, second.text)) is not None:
        parser.advance(2 + hyphen)
        return two
    if following.kind == "name" and (token.text == "\\mu" or following.text == "\\Omega"):
        found = find_unit(token.text.replace("\\mu", "μ") + following.text, True)
        if found is not None:
            parser.advance(2)
            return found
    found = find_unit(token.text, token.upright or within or token.text == "\\Omega")
    if found is not None:
        parser.advance()
        if found.dims == _DEGREE and parser.kind == "name" and (scale := scale_of(parser.token.text)):
            parser.advance()
            return temperature(scale)
    return found


def _unit_power(parser: Parser) -> int:
    """Parse the exponent of a unit: 1, 2, 3 or 4, with or without a minus."""
    braced = parser.take("{")
    negative = parser.take("-")
    exponent = parser.token.number
    if parser.kind != "num" or exponent is None or exponent.value not in (1, 2, 3, 4):
        raise ParseError("a unit to an odd power")
    parser.advance()
    if braced:
        parser.expect("}")
    return int(exponent.value) * (-1 if negative else 1)


def is_unit_run(parser: Parser) -> bool:
    """Whether letters that may be variables are a unit at the end of a side: N m, or m s^{-2} with a negative power."""
    negative = False
    count = 0
    capital = parser.token.text in _CAPITALS
    for offset in range(MAX_RUN):
        token = parser.peek(offset)
        if token.kind == "name":
            if find_unit(token.text, True) is None:
                return False
            count += 1
        elif token.kind == "op":
            negative |= token.text == "-"
            if token.text not in ("^", "{", "-", "}", "*", "/"):
                return (negative or (capital and count > 1)) and token.text in (",", ")", ";", "and", "or")
        elif token.kind == "end":
            return negative or (capital and count > 1)
        elif parser.peek(offset - 1).text not in ("^", "{", "-"):
            return False
    return False


def sign_is_unit(parser: Parser) -> bool:
    """Whether \\Omega or \\mu here, after a number, is a unit or its prefix, and nothing but units follows."""
    following = parser.peek()
    if parser.token.text == "\\Omega":
        return following.kind == "end" or parser.op(1) in (",", ")", "/")
    return (
        following.kind == "name"
        and (following.upright or parser.peek(2).kind == "end")
        and (find_unit("μ" + following.text, True) is not None)
    )


def smaller_units(parser: Parser, value: Node, first: Unit) -> Node:
    """Parse what follows a quantity, as in 5 feet 6 inches or 2 hours and 30 minutes; return the sum in the first."""
    size = Fraction(1)
    while first.dims:
        start = parser.mark()
        joined = parser.take("and") or (parser.word() == "and" and bool(parser.advance()))
        if parser.kind != "num":
            parser.backtrack(start)
            return value
        more, smaller = parser.quantity()
        part = _part(first, smaller)
        if part is None or part.value >= size:
            if not joined:
                raise ParseError("two quantities side by side")
            parser.backtrack(start)
            return value
        value = flat("add", value, Op("mul", (more, part)))
        size = part.value
    return value


def _part(whole: Unit, smaller: Unit) -> Num | None:
    """The size of the smaller unit in the larger; minutes and seconds after degrees are parts of a degree."""
    if whole.dims == smaller.dims and not smaller.words:
        return Num(smaller.factor / whole.factor)
    if whole.dims == _DEGREE and smaller.dims == _TIME and smaller.factor in _DEGREES_OF_TIME:
        return Num(whole.factor / _DEGREES_OF_TIME[int(smaller.factor)])
    return None


# The signs of the smaller unit, "" for none, and the names of both units.
_SHORT = {"'": (("", "''", '"'), "foot", "inch"), "h": (("m", "min"), "hour", "minute")}


def two_units(parser: Parser, whole: Num) -> Node | None:
    """Parse the rest of 5'6" and 2h30m after the first number; None (and no move) where another value stands here."""
    if parser.token.text not in _SHORT or parser.peek().kind != "num":
        return None
    seconds, first, second = _SHORT[parser.token.text]
    more, mark = parser.peek().number, parser.peek(2)
    count = 2 if mark.kind == "end" else 3
    if (mark.text not in seconds and mark.kind != "end") or more is None or parser.peek(count).kind != "end":
        return None
    if mark.kind == "end" and "" not in seconds:
        return None
    parser.advance(count)
    part = UNITS[second].factor / UNITS[first].factor
    return Quantity(Num(whole.value + more.value * part), UNITS[first])


# --- factors ----------------------------------------------------------------------------------------------------------

MAX_POWER_TOKENS = 8  # of the exponent of a unit
CJK = "\u2e80"  # from here on letters are words, never variables
_AFTER_NOUN = frozenset((",", ";", ")", "]", "}", "(", ".", "newline", "and", "or", "&"))
_ORDINALS = {"1": "st", "2": "nd", "3": "rd"}
_ARTICLES = frozenset(("a", "an"))
_OPENERS = frozenset(
    ("(", "{", "{{", "<(", "lfloor", "lceil", "\\frac", "\\dfrac", "\\tfrac", "\\cfrac", "\\sfrac", "\\nicefrac",
     "\\sqrt", "\\usqrt", "\\ucbrt", "\\uqdrt", "\\binom", "\\dbinom", "\\tbinom", "\\begin", "\\mathbb", "\\Bbb",
     "\\overline", "\\bar", "\\overrightarrow", "\\widehat", "\\dot", "\\ddot", "\\hat", "angle", "triangle", "overarc",
     "\\sum", "\\prod", "\\int", "\\lim")
)  # fmt: skip


def juxtaposable(parser: Parser, token: Token, left: Node) -> bool:
    """Whether the operand at the position is a factor of the one before it, `left`."""
    before = parser.before
    if token.apart:
        return False
    if token.kind == "num":
        power = before.text == "}" and parser.op(1) == "^"  # \\frac{1}{2}2^n
        if (before.kind == "num" or before.upright or before.text == "}") and not (power or _ends_in_power(left)):
            raise ParseError("two numbers side by side")
        return True
    if token.kind == "name":
        return is_factor(parser, token, before)
    if token.text == "|":
        return not parser.bars and not parser.in_set
    if token.text == "(":
        return not is_word(parser, parser.peek()) and not is_restated(parser, left)
    if token.text == "[":
        return is_bracketed_factor(parser)
    return token.text in _OPENERS


def is_word(parser: Parser, token: Token) -> bool:
    """Whether a name is a word or a unit rather than mathematics."""
    text = token.text
    if token.kind != "name" or len(text) < 2 or text.startswith("\\") or text in FUNCTIONS or text in CONSTANT_NAMES:
        return False
    if text.lower() in NUMBER_WORDS or text in GREEK:
        return False
    if token.upright or text[0] >= CJK or not is_product(text):
        return True
    return parser.units and (_is_unit(text) or is_noun(text))


def is_rate(parser: Parser) -> bool:
    """Whether the / here is a "per" between a number and a word: $160/week."""
    token = parser.peek()
    if not parser.units or parser.before.kind != "num" or token.kind != "name":
        return False
    return is_word(parser, token) or (token.text == "min" and parser.peek(2).kind == "end")


def is_factor(parser: Parser, token: Token, before: Token) -> bool:
    """Whether a name after an operand is a factor (a variable, a function), not a unit or a word."""
    text = token.text
    if (
        text in FUNCTIONS
        and (before.kind == "num" or before.text in ("}", ")"))
        and find_unit(text)
        and parser.op(1) not in ("(", "{", "^", "\\frac", "_")
    ):
        return parser.peek().kind == "name"  # 5 min, 5 sec; but 2 sec x
    if parser.units and text in ("\\Omega", "\\mu") and before.kind == "num" and sign_is_unit(parser):
        return False
    if text.startswith("\\") or text in FUNCTIONS or text in CONSTANT_NAMES or text in GREEK:
        return True
    if text.lower() in SEPARATORS or text.lower() in MULTIPLIERS or text.lower() in BLOCKED or text in STOP:
        return False
    if text[0] >= CJK:
        return False
    if token.upright:
        stuck = before.kind == "num" and before.upright and not token.spaced and text not in LETTER_UNITS
        return len(text) == 1 and (text in "ei" or stuck)
    if text in _ARTICLES and parser.units and token.spaced and parser.peek().spaced and is_word(parser, parser.peek()):
        return False  # $5 a day
    if len(text) > 1:
        if parser.units and (before.kind == "num" or before.text in ("}", ")")):
            if not token.spaced and _may_be_variables(text, before):
                return True
            return is_product(text) and not _is_unit(text) and not (token.spaced and _ends_in_noun(parser))
        return is_product(text)
    after_value = before.kind == "num" or (before.text == "}" and text in "JNWVKC")
    if parser.units and token.spaced and after_value and text in LETTER_UNITS:
        if parser.op(1) == "^":
            return _power_is_factor(parser) and not is_unit_run(parser)
        return parser.peek().kind != "end" and parser.op(1) not in ("/", ",") and not is_unit_run(parser)
    return True


def _power_is_factor(parser: Parser) -> bool:
    """Whether the power of a letter here, m^2, is followed by mathematics: a variable or a sign."""
    place = 3
    if parser.op(2) == "{":
        while parser.op(place) != "}" and parser.peek(place).kind != "end" and place < MAX_POWER_TOKENS:
            place += 1
        place += 1
    after = parser.peek(place)
    if after.kind == "op":
        return after.text not in _AFTER_NOUN and after.text != "/"
    return after.kind == "num" or (after.kind == "name" and not is_word(parser, after))


def _ends_in_noun(parser: Parser) -> bool:
    """Whether the letters here are a word at the end of a side: 42 cats, 42 black cats."""
    following = parser.peek()
    if not is_noun(parser.token.text) or following.kind == "num":
        return False
    return following.kind != "op" or following.text in _AFTER_NOUN or (following.text == "-" and not following.spaced)


def _ends_in_power(node: Node) -> bool:
    """Whether a product ends in a power or in a name (its exponent or index is not a factor): 2^3 3^2, x_1 100."""
    last = node.args[-1] if is_op(node, "mul") else node
    return isinstance(last, Sym) or (is_op(last, "pow"))


def _may_be_variables(text: str, before: Token) -> bool:
    """Whether two letters that follow a value at once, 3mg or 2st, are a product and no unit or ordinal."""
    if text in _ORDINALS.values() or text == "th":
        last = before.text[-1:]
        return text != ("th" if before.text[-2:-1] == "1" else _ORDINALS.get(last, "th"))
    return len(text) == 2 and text not in CLEAR_UNITS and is_product(text)


def _is_unit(word: str) -> bool:
    """A unit, the start of one ("sq. ft."), or the end of an ordinal (12th)."""
    return find_unit(word) is not None or word.lower() in SQUARED or word in ("st", "nd", "rd", "th")


# --- words ------------------------------------------------------------------------------------------------------------

MAX_TAIL_WORDS = 8
MAX_LABEL_WORDS = 6
MAX_LABEL_TOKENS = 16
_MATRIX_NUMBERS = frozenset(("\\det", "\\dim", "\\rank", "\\deg", "\\tr", "\\ker"))
_PROPERTIES = frozenset("odd even prime composite rational irrational large small".split())  # n odd
_ORDINAL = frozenset(("st", "nd", "rd", "th"))
_MULTIPLE = frozenset(("double", "repeated", "triple"))
_ROOTS = frozenset("root roots zero solution".split())
_NOTATIONS = frozenset("binary octal hexadecimal hex ternary".split())
_RELATIONS = frozenset(("=", "~", "<", "<=", ">", ">=", "!=", "in"))
CURRENCIES = frozenset("$£€¥₹¢")

# Verbs between a name and an answer: Janet makes $18.
LARGE_NUMBERS = frozenset("hundred thousand million billion trillion".split())
_VERBS = frozenset("is are was has have had makes made needs gets got costs spent earns earned paid pays".split())


def lead(parser: Parser) -> str:
    """Move over words that only introduce an answer; return the label among them, "" without one."""
    if parser.kind != "name":
        return ""
    label = _skip_label(parser)
    named = is_word(parser, parser.token) and parser.token.text.istitle() and parser.word() not in BLOCKED
    if named and parser.peek().text in _VERBS:
        label = label or parser.word()
        parser.advance()
    while parser.word() in LEAD and _introduces(parser.token, parser.peek()) and not _is_mathematics(parser):
        parser.advance()
        parser.skip(":", "=", "~", ".")
    return label


def _is_mathematics(parser: Parser) -> bool:
    """Whether a word of LEAD is a product within brackets (e^{it}), or the root of what follows."""
    token = parser.token
    if parser.groups and len(token.text) <= 2 and not token.upright:
        return True
    return token.text.lower() == "root" and (parser.peek().kind == "num" or is_root_of(parser, 0))


def _introduces(token: Token, following: Token) -> bool:
    """Whether a word of LEAD introduces an answer; before some tokens it is a variable, or the answer itself."""
    if (len(token.text) == 1 and not token.upright) or following.kind == "end":
        return False
    if token.text.lower() in ("i", "a") and following.kind != "name":
        return False
    return following.kind != "op" or following.text not in ("^", "_", "/", ")", ",")


def _skip_label(parser: Parser) -> str:
    """Move over a label in words, and return it: `Height = 5`, `The total cost: 5`, `rank(A) = 5`."""
    words = 0
    while (
        words < MAX_LABEL_WORDS and is_word(parser, token := parser.peek(words)) and token.text.lower() not in BLOCKED
    ):
        words += 1
    if words == 1 or parser.token.text in _MATRIX_NUMBERS:
        words = _past_argument(parser)
    if not words or parser.op(words) not in ("=", ":"):
        return ""
    label = " ".join(parser.peek(place).text.lower() for place in range(words))
    parser.advance(words + 1)
    return label.removeprefix("the ").removeprefix("and ")


def _past_argument(parser: Parser) -> int:
    """Return the number of tokens of a name and its argument: rank(A), \\det A."""
    if parser.op(1) != "(":
        return 2 if parser.token.text in _MATRIX_NUMBERS and parser.peek().kind == "name" else 1
    for place in range(2, MAX_LABEL_TOKENS):
        if parser.op(place) in ("(", "=") or parser.peek(place).kind == "end":
            break
        if parser.op(place) == ")":
            return place + 1
    return 1


def tail(parser: Parser, value: Node) -> tuple[Node, Unit]:
    """Parse multipliers, a unit and harmless words after a value; return the value and its unit."""
    _skip_multiplicity(parser)
    parenthesis = parser.op() in ("(", "[") and is_word(parser, parser.peek()) and not is_restated(parser, value)
    if parser.op() == "/" and is_rate(parser):
        parser.advance()
        return value, Unit(Fraction(1), (), " ".join(("per", *_trailing_words(parser, frozenset()))))
    if parser.kind != "name" and not parenthesis:
        return value, UNITS[parser.advance().text] if parser.op() in CURRENCIES else NO_UNIT
    if parser.token.apart and not is_word(parser, parser.token):
        return value, NO_UNIT
    if parser.word() in _ORDINAL and not parser.token.spaced and is_word(parser, parser.peek()):
        raise ParseError("an ordinal")
    while scale := _multiplier(parser):
        value = Op("mul", (value, number(scale)))
    if (part := parser.word()) in PARTS or (
        f"{part}s" in PARTS and (value == number(1) or parser.peek().kind == "end")
    ):
        if part not in PARTS and value != number(1):
            raise ParseError(f"the word {part!r} beside a value")
        value = Op("div", (value, number(PARTS.get(part) or PARTS[f"{part}s"])))
        parser.advance()
    found = _parenthesised_unit(parser) if parenthesis else unit(parser)
    words = _trailing_words(parser, symbols(value) | parser.named)
    if found is not None:
        return value, found
    if words and (parser.named or symbols(value)) and not _PROPERTIES.isdisjoint(words):
        raise ParseError(f"the word {words[0]!r} beside a name")
    return value, Unit(Fraction(1), (), " ".join(words)) if words else NO_UNIT


def _skip_multiplicity(parser: Parser) -> None:
    """Move over `(double root)`."""
    if parser.op() == "(" and parser.peek().text in _MULTIPLE:
        closing = 3 if parser.peek(2).text in _ROOTS else 2
        if parser.op(closing) == ")":
            parser.advance(closing + 1)


def _multiplier(parser: Parser) -> int:
    """Move over a word of magnitude after a number (42 million, 42万), and return it; 0 where there is none."""
    token, word = parser.token, parser.word()
    if word in MULTIPLIERS:
        parser.advance()
        return MULTIPLIERS[word]
    if token.text in ABBREVIATED and (token.upright or len(word) > 3) and parser.peek().kind == "end":
        parser.advance()
        return ABBREVIATED[word]
    if word[:1] in MAGNITUDES and not word.startswith(NO_MAGNITUDE):
        if len(word) > 1:
            parser.replace(token._replace(text=word[1:]))
        else:
            parser.advance()
        return MAGNITUDES[word[0]]
    return 0


def _parenthesised_unit(parser: Parser) -> Unit | None:
    """Parse 36 (sq. inches), 5 [cm]; None (and no move) where the brackets hold other words."""
    start = parser.mark()
    closer = ")" if parser.advance().text == "(" else "]"
    found = unit(parser)
    if found is None or not parser.take(closer):
        parser.backtrack(start)
        return None
    return found


def _trailing_words(parser: Parser, names: frozenset[str]) -> list[str]:
    """Move over words to the end of the side, and return them. Raise ParseError for one that changes the answer."""
    words: list[str] = []
    before = parser.before.text
    depth = 0
    while True:
        token = parser.token
        if token.apart and words and not is_word(parser, token):
            break
        if token.kind == "name":
            word = token.text.lower()
            joins = word == "and" and bool(words) and is_word(parser, parser.peek())  # 7 cats and dogs
            if depth == 0 and not joins and (word in SEPARATORS or skip_condition(parser, names)):
                break
            if joins:
                parser.advance()
                continue
            if word == "times" and parser.peek().kind == "end":  # how often: 3 times
                parser.advance()
                break
            if word in LARGE_NUMBERS:
                raise ParseError(f"the word {token.text[:40]!r} behind a unit")
            conditional = word == "only" and parser.peek().text in ("when", "if", "for")
            if conditional or word in BLOCKED or word in ALTERING or word in NUMBER_WORDS or word.startswith("\\"):
                raise ParseError(f"the word {token.text[:40]!r} beside a value")
            letter = len(token.text) == 1 and token.text.isascii() and not token.upright
            if letter and (parser.op(1) in _RELATIONS if words else not token.spaced):  # 5 with R = 1
                raise ParseError(f"the letter {token.text!r} beside a value")
            words.append(word)
        elif token.kind == "op" and token.text == "(" and depth == 0:
            depth = 1
        elif token.kind == "op" and token.text == ")" and depth == 1:
            depth = 0
        elif token.kind == "op" and token.text in ("-", "/", "'", ".") and words:
            pass
        else:
            break
        parser.advance()
        if len(words) > MAX_TAIL_WORDS:
            raise ParseError("a sentence where an answer should be")
    if depth:
        raise ParseError("an open parenthesis")
    if words[-1:] == ["negative"] or (words and words[-1] in _NOTATIONS and "in" in (*words[-2:-1], before)):
        raise ParseError(f"the word {words[-1]!r} beside a value")
    return words
