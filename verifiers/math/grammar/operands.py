"""Operands and operators: numbers, names, functions, fractions, brackets, sets, matrices, cases.

A handler gets the parser, positioned after the sign that selected it, and that sign. Functions by cases are
`piecewise (case (value, condition), ...)`: rows are cases where each has a value and then a condition, else they are a
list, as in a system of equations. In a set by a condition, a condition on a real x or on a point (x, y) is the set
itself; anything else is `such`, an element and its conditions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from ..values.exact import rational
from ..values.sets import NotASet, Piece, solve_any
from ..values.tree import (
    IMAGINARY,
    E,
    Node,
    Num,
    Op,
    ParseError,
    Quantity,
    Rel,
    Sym,
    TooLarge,
    Words,
    flat,
    heads,
    is_op,
    number,
    symbols,
)
from ..values.units import UNITS, scale_of
from .affixes import is_factor, is_root_of, two_units
from .cursor import Parser
from .lex import Token
from .meaning import change, gradient, partial, split_before_call
from .vocabulary import (
    ARITY,
    BLOCKED,
    CONSTANT_NAMES,
    FUNCTIONS,
    GREEK,
    INVERSES,
    NUMBER_WORDS,
    STOP,
    is_product,
    number_words,
)

COMMANDS = ("reals", "integers", "naturals", "rationals", "complexes")
INTEGERS, REALS = Op("domain", (Words("integers"),)), Op("domain", (Words("reals"),))
_LETTERS = {"R": "reals", "Z": "integers", "N": "naturals", "Q": "rationals", "C": "complexes"}
# What an index or exponent leaves of a set: Z^+, Z_{>0}, Z_{\ge 0}, R^*.
_MARKS = {
    **dict.fromkeys(("+", ">0", "0<", ">=1"), "positive"),
    **dict.fromkeys((">=0", "0+", "+0"), "nonnegative"),
    **dict.fromkeys(("-", "<0", "<=-1"), "negative"),
    "<=0": "nonpositive",
    **dict.fromkeys(("!=0", "*", "\\ast", "\\times"), "nonzero"),
}
_SPELLINGS = {"\\geqslant": ">=", "\\geq": ">=", "\\ge": ">=", "≥": ">=", "\\gt": ">", "\\lt": "<", "\\leq": "<=",
              "\\le": "<=", "≤": "<=", "\\neq": "!=", "\\ne": "!="}  # fmt: skip
_NATURALS = {"0": "nonnegative", "*": "positive", "\\ast": "positive"}  # N_0, N^*


def domain(parser: Parser, text: str) -> Node:
    """Parse what follows the command of a set: its letter, and a mark such as ^+."""
    if text in COMMANDS:
        name = text
    else:
        letter = parser.argument_text()
        if letter not in _LETTERS:
            raise ParseError(f"the set {letter[:20]!r}")
        name = _LETTERS[letter]
    if parser.op() not in ("^", "_"):
        return Op("domain", (Words(name),))
    start = parser.mark()
    parser.advance()
    mark = parser.argument_text().replace(" ", "")
    for sign, spelling in _SPELLINGS.items():
        mark = mark.replace(sign, spelling)
    kind = (_NATURALS.get(mark) if name == "naturals" else None) or _MARKS.get(mark)
    if kind is None or name == "complexes" or (kind == "nonzero" and name == "integers"):
        parser.backtrack(start)
        return Op("domain", (Words(name),))
    if name == "naturals":
        name = "integers"
    return Op("domain", (Words(f"{kind} {name}"),))


_BROKEN = frozenset(("div", "root", "log", "logb", "ln"))
_PRODUCTS = _BROKEN | {"mul", "neg"}
_SIGN_HEADS = {UNITS["°"]: "deg", UNITS["%"]: "percent"}


def is_integer_part(inner: Node, before: Token) -> bool:
    r"""Whether square brackets around one expression are Gauss's, [n/2], [x] or [an]: needless as a group.

    A group needs them around a sum that is a factor, and around what has brackets of its own; after a function's name
    they hold its argument, as after \frac{d}{dx}.
    """
    if not symbols(inner) or before.kind == "name" or before.text == "}" or not isinstance(inner, (Sym, Op)):
        return False
    if isinstance(inner, Sym):
        return True
    alone = before.text not in ("*", "/", "-", ")", "]") and before.kind != "num"
    if inner.head == "add":
        return alone and any(map(_may_be_broken, inner.args))
    return inner.head in _PRODUCTS and (_may_be_broken(inner) or (alone and "add" not in heads(inner)))


def _may_be_broken(node: Node) -> bool:
    """Whether a term is a fraction, a root or a logarithm, or has such a factor: it is seldom an integer."""
    if isinstance(node, Num):
        return node.value.denominator > 1
    if not isinstance(node, Op):
        return False
    return node.head in _BROKEN or (node.head in _PRODUCTS and any(map(_may_be_broken, node.args)))


def without_sign(node: Node) -> Node:
    """Return 30° or 50% within brackets as a value that may be reckoned with, not as a quantity."""
    if isinstance(node, Quantity) and node.unit in _SIGN_HEADS:
        return Op(_SIGN_HEADS[node.unit], (node.value,))
    return node


_ROOTS = {"root": 2, "square": 2, "cube": 3, "cubic": 3, "fourth": 4, "fifth": 5}
_SHARES = {"half": 2, "third": 3, "quarter": 4}
OPERATIONS = _ROOTS.keys() | _SHARES.keys()


def operation(parser: Parser) -> Node:
    """The (square, cube) root of 42, half of 42."""
    word = parser.token.text.lower()
    if word in _SHARES and parser.peek().text == "of":
        parser.advance(2)
        return Op("div", (parser.expression(30), number(_SHARES[word])))
    named = 0 if word == "root" else 1
    if word not in _ROOTS or parser.peek(named).text.lower() != "root" or not is_root_of(parser, named):
        raise ParseError(f"the word {word!r}")
    parser.advance(named + 2)
    return Op("root", (number(_ROOTS[word]), parser.expression(30)))


MAX_ELEMENTS = 200


def by_condition(parser: Parser, element: Node) -> Node:
    """Parse the conditions of a set, up to its closing brace; return the set of the elements."""
    if isinstance(element, Rel) and element.ops == ("in",) and isinstance(element.sides[0], Sym):
        condition = parser.answer()
        return condition if element.sides[1] == REALS else _within(element, condition)
    if is_op(element, "()") and all(isinstance(arg, Sym) for arg in element.args):
        return parser.answer()
    start = parser.mark()
    items = [parser.item()]
    while parser.separator() and parser.op() != "}}":
        items.append(parser.item())
    if not isinstance(element, Sym):
        return Op("such", (element, *items))
    values = [
        item.sides[1] for item in items if isinstance(item, Rel) and item.ops == ("=",) and item.sides[0] == element
    ]
    members = [item for item in items if member(item) not in ("", element.name)]
    if len(values) == 1 and members and len(items) == 1 + len(members):
        return Op("such", (values[0], *members))
    parser.backtrack(start)
    return parser.answer()


def member(node: Node) -> str:
    r"""Return the k of k \in \mathbb{Z}; "" for any other condition."""
    if isinstance(node, Rel) and node.ops == ("in",) and isinstance(node.sides[0], Sym):
        return node.sides[0].name
    return ""


def _within(element: Rel, condition: Node) -> Node:
    """The elements of a domain that meet a condition; integers in a bounded set are written out."""
    if element.sides[1] == INTEGERS and symbols(condition) == symbols(element.sides[0]):
        try:
            return Op("set", tuple(map(number, _integers(solve_any(condition)))))
        except NotASet:
            pass
    return Op("such", (element.sides[0], element, condition))


def _integers(pieces: list[Piece]) -> list[int]:
    found: set[int] = set()
    for low, high in pieces:
        if math.isinf(low.place) or math.isinf(high.place) or high.place - low.place > MAX_ELEMENTS:
            raise NotASet
        first, last = math.ceil(low.place), math.floor(high.place)
        first += first == low.place and not low.closed
        last -= last == high.place and not high.closed
        found.update(range(first, last + 1))
    return sorted(found)


POSTFIX = {"!": "fact", "%": "percent", "deg": "deg", "'": "prime", "''": "prime", "_": "sub"}
MAX_STEP = 3  # of a factorial: every third number
MAX_PAIRS = 200  # of a product of sets
_SET_HEADS = {"cup": "union", "cap": "inter", "setminus": "minus"}


def binary(parser: Parser, text: str, binding: int, left: Node) -> Node:
    """Parse the right side of the binary sign `text`, which has been passed; return the operation."""
    parser.deeper()
    if text == "^":
        right = exponent(parser)
        parser.shallower()
        return Op("pow", (left, right))
    if text == "*" and parser.op() == "*":
        raise ParseError("two signs side by side")
    right = parser.expression(binding)
    parser.shallower()
    if text == "+":
        return flat("add", left, right)
    if text == "-":
        return flat("add", left, Op("neg", (right,)))
    if text == "*":
        return product_of_sets(left, right) or flat("mul", left, right)
    if text == "cross":
        return cross_product(left, right)
    if text in ("/", "over"):
        return Op("div", (left, right))
    if text == "\\choose":
        return Op("binom", (left, right))
    if text == ":":
        return Op("ratio", (*(left.args if is_op(left, "ratio") else (left,)), right))
    if text in _SET_HEADS:
        return flat(_SET_HEADS[text], left, right) if text != "setminus" else Op("minus", (left, right))
    return Op(text, (left, right))


def product_of_sets(left: Node, right: Node) -> Node | None:
    """Return the pairs of {1, 2} x {3}; None where the factors are no finite sets."""
    if not isinstance(left, Op) or not isinstance(right, Op) or not left.head == right.head == "set":
        return None
    if len(left.args) * len(right.args) > MAX_PAIRS:
        raise TooLarge(f"a product of sets with more than {MAX_PAIRS} elements")
    entries = [first.args if is_op(first, "()") else (first,) for first in left.args]
    return Op("set", tuple(Op("()", (*first, second)) for first in entries for second in right.args))


def is_phasor(parser: Parser, left: Node) -> bool:
    """Whether the sign of an angle here is that of 5 \\angle 30^\\circ, not of the angle ABC."""
    following = parser.peek()
    angle = following.kind == "num" or following.text in ("-", "(", "{", "\\frac", "\\pi", "pi")
    return angle and not symbols(left)


def phasor(size: Node, angle: Node) -> Node:
    """Return the complex number of a size and an angle. A number without pi is an angle in degrees."""
    if isinstance(angle, Quantity):
        angle = Op("deg", (angle.value,)) if angle.unit.dims == (("degree", 1),) else angle
    elif rational(angle) is not None:
        angle = Op("deg", (angle,))
    turned = Op("add", (Op("cos", (angle,)), Op("mul", (IMAGINARY, Op("sin", (angle,))))))
    return flat("mul", size, turned)


def cross_product(left: Node, right: Node) -> Node:
    """Return the product of two vectors by name, a x b = -(b x a), with sums, signs and numbers taken out of it."""
    for place, factor in enumerate((left, right)):
        if is_op(factor, "add", "neg"):
            other = right if place == 0 else left
            parts = (cross_product(part, other) if place == 0 else cross_product(other, part) for part in factor.args)
            return Op(factor.head, tuple(parts))
        if is_op(factor, "mul") and isinstance(factor.args[-1], Sym):
            *scalars, vector = factor.args
            rest = cross_product(vector, right) if place == 0 else cross_product(left, vector)
            return Op("mul", (*scalars, rest))
    if not isinstance(left, Sym) or not isinstance(right, Sym):
        return Op("mul", (left, right))
    if left == right:
        return number(0)
    if left.name > right.name:
        return Op("neg", (cross_product(right, left),))
    return Sym(f"{left.name} \u00d7 {right.name}")


def exponent(parser: Parser) -> Node:
    """Parse the operand after ^: a group, or a signed atom with its own exponents. 2^10 is read as in plain text."""
    if parser.take("-"):
        return Op("neg", (exponent(parser),))
    parser.take("+")
    if parser.op() == "'":
        raise ParseError("a prime as an exponent")
    token = parser.token
    if token.kind == "name" and parser.op(1) == "^" and len(token.text) == 2 and is_factor(parser, token, token):
        parser.replace(token._replace(text=token.text[1]))  # x^zy^z is x^z y^z
        return constant_or_name(token.text[0])
    if token.text[:1] == "T" and len(token.text) > 1 and _is_transpose(parser, token):
        parser.replace(token._replace(text=token.text[1:]))  # X^Ty is X^T y
        return Sym("T")
    base = parser.prefix()
    while parser.op() == "!" or parser.op() == "_":
        base = postfix(parser, POSTFIX[parser.op()], base)
    if parser.take("^"):
        parser.deeper()
        base = Op("pow", (base, exponent(parser)))
        parser.shallower()
    return base


def _is_transpose(parser: Parser, token: Token) -> bool:
    """Whether letters that begin with T follow the sign of a matrix and its ^."""
    base = parser.peek(-2)
    matrix = base.text == ")" or (base.kind == "name" and (base.text[-1:].isupper() or token.text[1].isupper()))
    return matrix and not token.upright and is_factor(parser, token, token)


def constant_or_name(letter: str) -> Node:
    """Return e, i or the variable that a letter stands for."""
    return E if letter == "e" else IMAGINARY if letter == "i" else Sym(letter)


def postfix(parser: Parser, head: str, left: Node) -> Node:
    """Parse the sign at the position, which follows its operand; return the operation."""
    sign = parser.advance().text
    if head == "fact":
        return _factorial(parser, left)
    if head == "deg" and parser.kind == "name" and (scale := scale_of(parser.token.text)):
        parser.advance()
        return Op("scale", (left, Words(scale)))
    if head == "deg":
        return Op("deg", (_with_minutes(parser, left),))
    if head == "prime":
        ends = parser.kind != "name" or parser.token.spaced  # fg' is f g', That's is a word
        *factors, last = left.args if is_op(left, "mul") and ends else (left,)
        if not isinstance(last, Sym) or len(factors) > 1:
            raise ParseError("a prime after something that is no name")
        primed = Sym(last.name + "'" * len(sign))
        return Op("mul", (*factors, primed)) if factors else primed
    if head == "sub":
        return subscript(parser, left)
    return Op(head, (left,))


def _factorial(parser: Parser, left: Node) -> Node:
    """Parse the signs after the first one of 5!!, the product of every second number, or 5!!!."""
    step = 1
    while parser.take("!"):
        step += 1
    if step > MAX_STEP:
        raise ParseError(f"a factorial of more than {MAX_STEP} signs")
    return Op("fact", (left,)) if step == 1 else Op("multifact", (left, number(step)))


def _with_minutes(parser: Parser, degrees: Node) -> Node:
    """Parse the minutes and seconds of an angle: 63° 45' 30''."""
    for sign, part in (("'", 60), ("''", 3600)):
        minutes = parser.token.number
        if minutes is not None and parser.op(1) == sign:
            parser.advance(2)
            degrees = _sum(degrees, minutes, part)
        elif minutes is not None and sign == "''" and parser.op(1) == parser.op(2) == "'":
            parser.advance(3)
            degrees = _sum(degrees, minutes, part)
    return degrees


def _sum(degrees: Node, minutes: Num, part: int) -> Node:
    if isinstance(degrees, Num) and degrees.places is None:
        return Num(degrees.value + minutes.value / part)
    return flat("add", degrees, Op("div", (minutes, number(part))))


def subscript(parser: Parser, left: Node) -> Node:
    """Parse the index after _: a base (52_8), or part of a name."""
    index = parser.argument_text()
    if isinstance(left, Num) and left.places is None and left.value.denominator == 1:
        base = int(index) if index.isdigit() and len(index) < 4 else NUMBER_WORDS.get(index.lower())
        if base is None or base < 2:
            raise ParseError(f"the base {index[:20]!r}")
        digits = str(left.value.numerator)
        if any(int(d) >= base for d in digits):
            raise ParseError(f"the digits {digits[:40]} in base {base}")
        return Op("based", (Words(digits), number(base)))
    if isinstance(left, Sym):
        return Sym(f"{left.name}_{index}")
    raise ParseError("a subscript after something that is no name")


UNIT_VECTORS = frozenset(("\\uniti", "\\unitj", "\\unitk"))
_FRACTIONS = ("\\frac", "\\dfrac", "\\tfrac", "\\cfrac", "\\sfrac", "\\nicefrac")
_MATRICES = frozenset("matrix pmatrix bmatrix Bmatrix smallmatrix array".split())
_ROWS = frozenset(
    "aligned align align* cases dcases rcases gathered gather gather* split equation equation* alignedat".split()
)
_CLOSERS = {"(": (")", "]"), "[": ("]", ")", "["), "<(": (")>", ">"), "]": ("[", "]")}


def product(factors: Sequence[Node], last: Node) -> Node:
    """Return the product of `factors` and `last`."""
    return Op("mul", (*factors, last)) if factors else last


def numeral(parser: Parser, token: Token) -> Node:
    """Parse a number, or a mixed number: 1\\frac{1}{2}, 1 1/2."""
    parser.advance()
    assert token.number is not None
    whole = token.number
    if whole.places is not None or whole.value.denominator != 1:
        return whole
    if parser.token.text in ("'", "h") and (quantity := two_units(parser, whole)) is not None:
        return quantity
    start = parser.mark()
    if parser.op() in _FRACTIONS and not parser.token.apart:
        parser.advance()
        part = _fraction(parser, "")
    elif (
        parser.kind == "num"
        and parser.token.spaced
        and not parser.token.apart
        and parser.op(1) == "/"
        and parser.peek(2).kind == "num"
    ):
        top, bottom = parser.token.number, parser.peek(2).number
        parser.advance(3)
        part = Op("div", (top, bottom)) if top and bottom else whole
    else:
        return whole
    if is_op(part, "div"):
        above, below = part.args
        proper = isinstance(above, Num) and isinstance(below, Num) and above.places is None and below.places is None
        share = rational(part) if proper and parser.op() != "^" else None
        if share is not None and 0 < share < 1:
            return Num(whole.value + share)
    parser.backtrack(start)
    return whole


def name(parser: Parser, token: Token) -> Node:
    """Parse a variable, a constant, a function with its argument, a number word, or a product of letters."""
    text = token.text
    bare = text[1:] if text.startswith("\\") else text
    if bare in FUNCTIONS and (text != bare or len(bare) > 1):
        parser.advance()
        return _function(parser, FUNCTIONS[bare])
    if bare in CONSTANT_NAMES:
        parser.advance()
        return CONSTANT_NAMES[bare]
    if text != bare or bare in GREEK:
        if bare in ("Delta", "nabla") and parser.peek().kind == "name":
            return change(parser, bare)
        if text in UNIT_VECTORS:
            parser.advance()
            return Sym(text)
        if bare not in GREEK:
            raise ParseError(f"the command \\{bare[:40]}")
        parser.advance()
        return Sym(bare.removeprefix("var"))
    if len(text) == 1:
        parser.advance()
        return constant_or_name(text)
    if text.lower() in NUMBER_WORDS:
        return _parse_number_words(parser)
    if text.lower() in OPERATIONS:
        return operation(parser)
    if text.lower() in BLOCKED or text in STOP:
        raise ParseError(f"the word {text!r}")
    if token.upright or not is_product(text):
        return _split_function(parser, token)
    letters = list(map(constant_or_name, text))
    if parser.op(1) in ("^", "_") or split_before_call(parser, token):  # xy^2 is x y^2, xf(x) is x f(x)
        parser.replace(token._replace(text=text[-1]))
        return product(letters[:-1], parser.expression(30))
    parser.advance()
    return product(letters[:-1], letters[-1])


def _parse_number_words(parser: Parser) -> Node:
    """A number in words, some of them hyphenated."""
    words: list[str] = []
    ends: list[int] = []  # tokens up to and with each word
    count = 0
    while len(words) < 16:
        token = parser.peek(count)
        count += 1
        if token.kind == "name":
            words.append(token.text.lower())
            ends.append(count)
        elif token.text != "-":
            break
    found = number_words(words)
    assert found is not None
    value, used = found
    parser.advance(ends[used - 1])
    return Num(value)


def _split_function(parser: Parser, token: Token) -> Node:
    """sinx, cos2 and the like: a function's name joined to its argument."""
    for name in ("arcsin", "arccos", "arctan", "sqrt", "sin", "cos", "tan", "log", "ln"):
        rest = token.text[len(name) :]
        if token.text.startswith(name) and len(rest) <= 2 and not token.upright and rest.isalpha():
            parser.replace(token._replace(text=rest))
            return _function(parser, FUNCTIONS[name])
    raise ParseError(f"the word {token.text[:40]!r}")


def _function(parser: Parser, head: str) -> Node:
    power: Node | None = None
    base: Node | None = None
    if head == "log" and parser.kind == "num" and not parser.token.spaced and parser.before.text == "log":
        base = parser.prefix() if parser.op(1) == "(" else None  # log10(100), log2(8)
    while parser.op() in ("^", "_"):
        mark = parser.advance().text
        if mark == "^" and power is None:
            power = exponent(parser)
        elif mark == "_" and head == "log" and base is None:
            base = _log_base(parser)
        elif mark == "_" and head in ("max", "min"):
            parser.argument_text()
        else:
            raise ParseError(f"an index of {head}")
    if power == Op("neg", (number(1),)) and head in INVERSES:
        head, power = INVERSES[head], None
    arguments = _function_arguments(parser)
    node = _apply_function(parser, head, arguments, base)
    return node if power is None else Op("pow", (node, power))


def _log_base(parser: Parser) -> Node:
    """The base of \\log_2 8; of plain text also log_10 100 and log_25(5), whose base has several digits."""
    token, following = parser.token, parser.peek()
    digits = token.text if token.kind == "num" and token.text.isdigit() else ""
    if len(digits) > 1 and (digits[0] == "1" or following.kind == "num" or following.text == "("):
        return parser.prefix()
    return argument(parser)


def _function_arguments(parser: Parser) -> tuple[Node, ...]:
    """A parenthesised list, a group, or the factors that follow: \\sin 2x, \\cos\\frac{\\pi}{4}."""
    if parser.take("("):
        inner = parser.answer()
        parser.expect(")")
        return inner.args if is_op(inner, "list") else (without_sign(inner),)
    if parser.op() == "{":  # \sin{x}^2 is (sin x)^2
        return (argument(parser),)
    if parser.take("-"):
        return (Op("neg", (parser.expression(25),)),)
    parser.deeper()
    factors = [parser.expression(40)]
    while _continues_argument(parser):
        factors.append(parser.expression(40))
    parser.shallower()
    return (product(factors[:-1], factors[-1]),)


def _continues_argument(parser: Parser) -> bool:
    token = parser.token
    if token.apart:
        return False
    if token.kind == "name":
        bare = token.text.removeprefix("\\")
        return (bare not in FUNCTIONS) and is_factor(parser, token, parser.before)
    return token.kind == "op" and token.text in ("\\frac", "\\dfrac", "\\tfrac", "\\sqrt")


def _apply_function(parser: Parser, head: str, arguments: tuple[Node, ...], base: Node | None) -> Node:
    wanted = ARITY.get(head, 1)
    if wanted is None and len(arguments) == 1 and is_op(arguments[0], "set"):
        arguments = arguments[0].args  # \max\{a, b\}
    if len(arguments) != wanted and (wanted is not None or not arguments):
        raise ParseError(f"{head} of {len(arguments)} arguments")
    if head == "sqrt" or head == "cbrt":
        return Op("root", (number(2 if head == "sqrt" else 3), arguments[0]))
    if head == "cis":
        return Op("add", (Op("cos", arguments), Op("mul", (IMAGINARY, Op("sin", arguments)))))
    if head == "lg":
        return Op("logb", (number(10), arguments[0]))
    if base is not None:
        return Op("logb", (base, arguments[0]))
    return Op(head, arguments)


def argument(parser: Parser) -> Node:
    """The argument of \\frac, \\sqrt, ...: a group, one digit, or one operand."""
    if parser.take("{"):
        inner = parser.expression(0)
        parser.expect("}")
        return inner
    token = parser.token
    if token.kind == "num" and token.text.isdigit() and len(token.text) > 1:
        rest = token.text[1:]
        parser.replace(token._replace(text=rest, number=Num(Fraction(int(rest))), spaced=False))
        return number(int(token.text[0]))
    if token.kind == "name" and len(token.text) > 1 and not token.text.startswith("\\") and not token.upright:
        parser.replace(token._replace(text=token.text[1:], spaced=False))
        return constant_or_name(token.text[0])
    return parser.prefix()


def _fraction(parser: Parser, _: str) -> Node:
    top = argument(parser)
    bottom = argument(parser)
    return Op("div", (top, bottom))


def _binomial(parser: Parser, _: str) -> Node:
    top = argument(parser)
    return Op("binom", (top, argument(parser)))


def _root(parser: Parser, _: str) -> Node:
    index: Node = number(2)
    if parser.take("["):
        index = parser.expression(0)
        parser.expect("]")
    return Op("root", (index, argument(parser)))


def _sign_root(parser: Parser, text: str) -> Node:
    """The unicode root signs: the operand is a group or one number or name."""
    index = {"\\usqrt": 2, "\\ucbrt": 3, "\\uqdrt": 4}[text]
    operand = argument(parser) if parser.op() == "{" else parser.prefix()
    return Op("root", (number(index), operand))


def _parse_sign(parser: Parser, text: str) -> Node:
    operand = parser.expression(25)
    if text == "+":
        return operand
    if text in ("pm", "mp"):
        return Op(text, (number(0), operand))
    return Op("neg", (operand,))


def _group(parser: Parser, _: str) -> Node:
    """{...}: grouping, or a set written with plain braces."""
    with parser.group():
        inner = parser.answer()
        parser.expect("}")
    return Op("set", inner.args) if is_op(inner, "list") else inner


def _inner_list(parser: Parser, closers: Sequence[str]) -> Node:
    r"""Parse what stands within brackets, and perhaps within braces too that only group: \left( {0, 1} \right]."""
    level, offset = int(parser.op() == "{"), 0
    while level and parser.peek(offset := offset + 1).kind != "end":
        level += (parser.op(offset) == "{") - (parser.op(offset) == "}")
    if not offset or level or parser.op(offset + 1) not in closers:
        return parser.answer()
    parser.advance()
    inner = parser.answer()
    parser.expect("}")
    return inner


def _bracket(parser: Parser, opener: str) -> Node:
    """( ), [ ], half-open pairs and ]a, b[; one item is only grouped."""
    before = parser.peek(-2)
    with parser.group():
        inner = _inner_list(parser, _CLOSERS[opener])
        closer = parser.expect(*_CLOSERS[opener])
    if not is_op(inner, "list"):
        if opener + closer == "[]" and is_integer_part(inner, before):
            return Op("floor", (inner,))
        if opener + closer in ("()", "[]"):
            return without_sign(inner)
        raise ParseError("brackets that do not match")
    head = opener + closer if opener != "<(" else "()"
    return Op({"[[": "[)", "]]": "(]", "][": "()"}.get(head, head) if len(inner.args) == 2 else head, inner.args)


def _braces(parser: Parser) -> Node:
    """\\{...\\}: a set, or a set by a condition."""
    if parser.take("}}"):
        return Op("set", ())
    with parser.group(in_set=True):
        inner = _inner_list(parser, ("}}",))
        conditional = parser.op() in ("|", ":")
        if conditional:
            parser.start_condition()
            inner = by_condition(parser, inner)
        parser.expect("}}")
    if conditional:
        return inner
    return Op("set", inner.args if is_op(inner, "list", "either") else (inner,))


def _bar(parser: Parser, closer: str) -> Node:
    with parser.bar():
        inner = parser.expression(0)
        parser.expect(closer)
    return Op("abs", (inner,))


def _parse_rounding(parser: Parser, opener: str) -> Node:
    inner = parser.expression(0)
    parser.expect("r" + opener[1:])
    return Op("floor" if opener == "lfloor" else "ceil", (inner,))


_SAME_MARKS = {"\\bar": "overline", "\\widehat": "hat"}


def _parse_marked_name(parser: Parser, text: str) -> Node:
    """\\overline{AB}, \\angle ABC: a name with a mark."""
    mark = _SAME_MARKS.get(text, text.removeprefix("\\"))
    if parser.op() == "{":
        name = parser.argument_text().strip("{}")
        return Sym(name if text == "\\overrightarrow" and len(name) == 1 else f"{mark} {name}")
    if parser.kind != "name":
        raise ParseError(f"{mark} of something that is no name")
    return Sym(f"{mark} {parser.advance().text}")


def _environment(parser: Parser) -> Node:
    name = parser.argument_text()
    if name == "array":
        parser.argument_text()
    if name not in _MATRICES and name not in _ROWS:
        raise ParseError(f"the environment {name[:20]!r}")
    rows: list[tuple[Node, ...]] = []
    while parser.op() != "\\end":
        cells = [parser.item()]
        while parser.take("&"):
            cells.append(parser.item())
        rows.append(tuple(cells))
        if not parser.take("newline") and parser.op() != "\\end":
            raise ParseError("a matrix that does not end")
    parser.advance()
    if parser.argument_text() != name:
        raise ParseError("a matrix that does not end")
    if name in _ROWS:
        cells_ = tuple(cell for row in rows for cell in row)
        return cells_[0] if len(cells_) == 1 else Op("list", cells_)
    if name == "array" and len(rows) == len(rows[0]) == 1:
        return rows[0][0]
    if len({len(row) for row in rows}) != 1:
        raise ParseError("a matrix with rows of different lengths")
    return Op("matrix", tuple(Op("row", row) for row in rows))


MAX_ROWS = 12
OTHERWISE = Words("otherwise")
_ENVIRONMENTS = frozenset("cases array dcases rcases".split())
_INTRODUCE = frozenset("if for when where".split())
_ELSE = frozenset("otherwise else elsewhere".split())
_FILLERS = frozenset("is are an a the".split())
_RELATIONS = frozenset(("=", "<", "<=", ">", ">=", "!=", "in", "notin"))
_BOUNDS = frozenset(("<", "<=", ">", ">="))
_OPENING = frozenset(("(", "[", "{", "{{", "<(", "\\begin"))
_CLOSING = frozenset((")", "]", "}", "}}", ")>", "\\end"))
_NAMES = {"\\det": "det", "det": "det", "\\tr": "trace", "tr": "trace", "trace": "trace"}
MATRIX_NAMES = frozenset((*_NAMES, "\\top"))


def matrix_name(parser: Parser) -> Node | None:
    """Parse the determinant or trace of a matrix, or the sign of a transpose; None where it is another name."""
    if parser.token.text == "\\top":
        parser.advance()
        return Sym("T")
    opener, inner = parser.op(1), parser.peek(2)
    of_names = opener == "(" and inner.kind == "name" and inner.text[0].isupper()
    if not of_names and (opener not in ("(", "{", "[", "\\begin") or "\\begin" not in (opener, inner.text)):
        return None
    head = _NAMES[parser.advance().text]
    return Op(head, (parser.prefix(),))


def _determinant(parser: Parser) -> Node:
    """The matrix of \\begin{vmatrix}, positioned at the name: its rows are those of a pmatrix."""
    tokens, count = _inside(parser)
    name = Token("name", "pmatrix")
    brace, close = Token("op", "{"), Token("op", "}")
    inner = parser.part([brace, name, close, *tokens, Token("op", "\\end"), brace, name, close])
    matrix = _environment(inner)
    parser.advance(count)
    return Op("det", (matrix,))


def _cases_or_environment(parser: Parser, _: str) -> Node:
    """\\begin{...}: cases, a determinant, or another environment."""
    name = parser.peek().text if parser.op() == "{" else ""
    if name == "vmatrix":
        return _determinant(parser)
    if name not in _ENVIRONMENTS:
        return _environment(parser)
    tokens, count = _inside(parser)
    halves = [_halves(row) for row in _split(tokens, "newline") if row]
    if not 0 < len(halves) <= MAX_ROWS or any(half is None for half in halves):
        return _environment(parser)
    parser.deeper()
    node = Op("piecewise", tuple(_case(parser, *half) for half in halves if half is not None))
    parser.shallower()
    parser.advance(count)
    return node


def _brace(parser: Parser, _: str) -> Node:
    """\\left\\{ \\begin{array} ... \\right. of cases or of a system of equations; else a set."""
    if parser.op() != "\\begin" or parser.op(1) != "{":
        return _braces(parser)
    start = parser.mark()
    parser.advance()
    count = _inside(parser)[1]
    if parser.op(count) == "}}":
        parser.backtrack(start)
        return _braces(parser)
    node = _cases_or_environment(parser, "\\begin")
    if is_op(node, "matrix"):
        rows = [row.args for row in node.args if isinstance(row, Op)]
        if len(rows[0]) != 1:
            raise ParseError("a brace that is not closed")
        return Op("list", tuple(row[0] for row in rows)) if len(rows) > 1 else rows[0][0]
    return node


def _inside(parser: Parser) -> tuple[list[Token], int]:
    """Return the tokens between \\begin{name} and its \\end, and how many tokens there are up to and with the latter.

    The position is after \\begin. The format of an array's columns is left out.
    """
    tokens: list[Token] = []
    level, offset = 1, 3
    if parser.peek().text == "array" and parser.op(3) == "{":
        while parser.op(offset) != "}":
            if parser.peek(offset).kind == "end":
                raise ParseError("a matrix that does not end")
            offset += 1
        offset += 1
    while True:
        token = parser.peek(offset)
        if token.kind == "end":
            raise ParseError("a matrix that does not end")
        if token.kind == "op":
            level += (token.text == "\\begin") - (token.text == "\\end")
        if not level:
            return tokens, offset + 4
        tokens.append(token)
        offset += 1


def _split(tokens: list[Token], sign: str) -> list[list[Token]]:
    """Cut tokens at a sign that is in no brackets."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.kind == "op":
            depth += (token.text in _OPENING) - (token.text in _CLOSING)
            if not depth and token.text == sign:
                parts.append([])
                continue
        parts[-1].append(token)
    return parts


def _halves(row: list[Token]) -> tuple[list[Token], list[Token]] | None:
    """Return the tokens of the value and of the condition of a row; None where it has no condition."""
    depth = 0
    for place, token in enumerate(row):
        if token.kind == "op":
            depth += (token.text in _OPENING) - (token.text in _CLOSING)
            if not depth and token.text in _RELATIONS:
                return None
        word = token.text.lower() if token.kind == "name" else ""
        if not depth and (token.text in ("&", ",") or word in _INTRODUCE or word in _ELSE):
            value, condition = row[:place], row[place:]
            break
    else:
        return None
    while condition and (condition[0].text in ("&", ",") or condition[0].text.lower() in _INTRODUCE):
        condition = condition[1:]
    while condition and condition[-1].text in (",", ";", "."):
        condition = condition[:-1]
    return (value, condition) if value and _is_condition(condition) else None


def _is_condition(tokens: list[Token]) -> bool:
    if not tokens or (tokens[0].kind == "op" and tokens[0].text in _RELATIONS):
        return False
    if tokens[0].kind == "op" and tokens[0].text in ("+", "-"):  # -1 <= x, but no column of an equation: & -y & = 3
        return any(token.text in _BOUNDS for token in tokens)
    return any(token.text in _RELATIONS for token in tokens) or _words(tokens) is not None


def _words(tokens: list[Token]) -> Words | None:
    """A condition in words: otherwise, "n is even"."""
    if any(token.kind != "name" for token in tokens) or max(len(token.text) for token in tokens) < 3:
        return None
    words = [token.text.lower() for token in tokens]
    if words[0] in _ELSE:
        return OTHERWISE
    return Words(" ".join(word for word in words if word not in _FILLERS))


def _case(parser: Parser, value: list[Token], condition: list[Token]) -> Op:
    inner = parser.part(value)
    node = inner.expression(0)
    if inner.kind != "end":
        raise ParseError(f"cannot read {inner.place()}")
    words = _words(condition)
    if words is not None:
        return Op("case", (node, words))
    inner = parser.part(condition)
    found = inner.answer()
    if is_op(found, "list"):
        found = Op("both", found.args)
    relations = found.args if is_op(found, "both", "either") else (found,)
    if inner.kind != "end" or not all(isinstance(relation, Rel) for relation in relations):
        raise ParseError("a case without its condition")
    return Op("case", (node, found))


PREFIX: dict[str, Callable[[Parser, str], Node]] = {
    **dict.fromkeys(_FRACTIONS, _fraction),
    **dict.fromkeys(("\\binom", "\\dbinom", "\\tbinom"), _binomial),
    **dict.fromkeys(("\\usqrt", "\\ucbrt", "\\uqdrt"), _sign_root),
    **dict.fromkeys(("+", "-", "pm", "mp"), _parse_sign),
    **dict.fromkeys(("(", "[", "]", "<("), _bracket),
    **dict.fromkeys((*COMMANDS, "\\mathbb", "\\Bbb"), domain),
    **dict.fromkeys(("\\overline", "\\bar", "\\overrightarrow", "\\widehat", "\\dot", "\\ddot"), _parse_marked_name),
    **dict.fromkeys(("\\hat", "angle", "triangle", "overarc"), _parse_marked_name),
    **dict.fromkeys(("|", "||"), _bar),
    **dict.fromkeys(("lfloor", "lceil"), _parse_rounding),
    "\\sqrt": _root,
    "!": lambda parser, _: Op("subfact", (parser.expression(40),)),  # !n
    "{": _group,
    "{{": _brace,
    "emptyset": lambda parser, _: Op("set", ()),
    "\\partial": partial,
    "\\nabla": gradient,
    "\\begin": _cases_or_environment,
}
