"""The operators of the grammar: binary signs, exponents, and signs after an operand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.tree import (
    IMAGINARY,
    E,
    Node,
    Num,
    Op,
    ParseError,
    Quantity,
    Sym,
    TooLarge,
    Words,
    number,
    symbols,
)
from rlvr.verifiers.math.units import scale_of
from rlvr.verifiers.math.words import NUMBER_WORDS

if TYPE_CHECKING:
    from rlvr.verifiers.math.lex import Token
    from rlvr.verifiers.math.parse import Parser

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
        return Op("ratio", (*(left.args if isinstance(left, Op) and left.head == "ratio" else (left,)), right))
    if text in _SET_HEADS:
        return flat(_SET_HEADS[text], left, right) if text != "setminus" else Op("minus", (left, right))
    return Op(text, (left, right))


def product_of_sets(left: Node, right: Node) -> Node | None:
    """Return the pairs of {1, 2} x {3}; None where the factors are no finite sets."""
    if not isinstance(left, Op) or not isinstance(right, Op) or not left.head == right.head == "set":
        return None
    if len(left.args) * len(right.args) > MAX_PAIRS:
        raise TooLarge(f"a product of sets with more than {MAX_PAIRS} elements")
    return Op("set", tuple(Op("()", (*_entries(first), second)) for first in left.args for second in right.args))


def _entries(node: Node) -> tuple[Node, ...]:
    return node.args if isinstance(node, Op) and node.head == "()" else (node,)


def is_phasor(parser: Parser, left: Node) -> bool:
    """Whether the sign of an angle here is that of 5 \\angle 30^\\circ, not of the angle ABC."""
    following = parser.peek()
    angle = following.kind == "num" or following.text in ("-", "(", "{", "\\frac", "\\pi", "pi")
    return angle and not symbols(left)


def phasor(size: Node, angle: Node) -> Node:
    """Return the complex number of a size and an angle, which is in degrees where it is a number without pi."""
    if isinstance(angle, Quantity):
        angle = Op("deg", (angle.value,)) if angle.unit.dims == (("degree", 1),) else angle
    elif rational(angle) is not None:
        angle = Op("deg", (angle,))
    turned = Op("add", (Op("cos", (angle,)), Op("mul", (IMAGINARY, Op("sin", (angle,))))))
    return flat("mul", size, turned)


def cross_product(left: Node, right: Node) -> Node:
    """Return the product of two vectors by name, a x b = -(b x a), with sums, signs and numbers taken out of it."""
    for place, factor in enumerate((left, right)):
        if isinstance(factor, Op) and factor.head in ("add", "neg"):
            other = right if place == 0 else left
            parts = (cross_product(part, other) if place == 0 else cross_product(other, part) for part in factor.args)
            return Op(factor.head, tuple(parts))
        if isinstance(factor, Op) and factor.head == "mul" and isinstance(factor.args[-1], Sym):
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
    if token.kind == "name" and parser.op(1) == "^" and len(token.text) == 2 and parser.is_factor(token, token):
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
    return matrix and not token.upright and parser.is_factor(token, token)


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
        *factors, last = left.args if isinstance(left, Op) and left.head == "mul" and ends else (left,)
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


def flat(head: str, left: Node, right: Node) -> Node:
    """Return `left head right` as one n-ary node."""
    parts = left.args if isinstance(left, Op) and left.head == head else (left,)
    return Op(head, (*parts, right))
