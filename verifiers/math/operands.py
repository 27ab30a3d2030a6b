"""The operands of the grammar: numbers, names, functions, fractions, brackets, sets, matrices.

Each handler gets the parser, positioned after the sign that selected the handler, and that sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from rlvr.verifiers.math.brackets import is_integer_part, without_sign
from rlvr.verifiers.math.builders import by_condition
from rlvr.verifiers.math.calls import split_before_call
from rlvr.verifiers.math.domains import COMMANDS, domain
from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.lex import Token
from rlvr.verifiers.math.measures import two_units
from rlvr.verifiers.math.named import change, gradient, partial
from rlvr.verifiers.math.operators import exponent
from rlvr.verifiers.math.spoken import OPERATIONS, operation
from rlvr.verifiers.math.tree import IMAGINARY, E, Node, Num, Op, ParseError, Sym, number
from rlvr.verifiers.math.vocabulary import (
    ARITY,
    BLOCKED,
    CONSTANT_NAMES,
    FUNCTIONS,
    GREEK,
    INVERSES,
    STOP,
    is_product,
)
from rlvr.verifiers.math.words import NUMBER_WORDS, number_words

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

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
    if isinstance(part, Op) and part.head == "div":
        above, below = part.args
        proper = isinstance(above, Num) and isinstance(below, Num) and above.places is None is below.places
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
        return E if text == "e" else IMAGINARY if text == "i" else Sym(text)
    if text.lower() in NUMBER_WORDS:
        return _spelled(parser)
    if text.lower() in OPERATIONS:
        return operation(parser)
    if text.lower() in BLOCKED or text in STOP:
        raise ParseError(f"the word {text!r}")
    if token.upright or not is_product(text):
        return _split_function(parser, token)
    letters = [E if c == "e" else IMAGINARY if c == "i" else Sym(c) for c in text]
    if parser.op(1) in ("^", "_") or split_before_call(parser, token):  # xy^2 is x y^2, xf(x) is x f(x)
        parser.replace(token._replace(text=text[-1]))
        return product(letters[:-1], parser.expression(30))
    parser.advance()
    return product(letters[:-1], letters[-1])


def _spelled(parser: Parser) -> Node:
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
    node = _applied(parser, head, arguments, base)
    return node if power is None else Op("pow", (node, power))


def _log_base(parser: Parser) -> Node:
    """The base of \\log_2 8; of plain text also log_10 100 and log_25(5), whose base has several digits."""
    token, following = parser.token, parser.peek()
    digits = token.text if token.kind == "num" and token.text.isdigit() else ""
    if len(digits) > 1 and (digits[0] == "1" or following.kind == "num" or following.text == "("):
        return parser.prefix()
    return _argument(parser)


def _function_arguments(parser: Parser) -> tuple[Node, ...]:
    """A parenthesised list, a group, or the factors that follow: \\sin 2x, \\cos\\frac{\\pi}{4}."""
    if parser.take("("):
        inner = parser.answer()
        parser.expect(")")
        return inner.args if isinstance(inner, Op) and inner.head == "list" else (without_sign(inner),)
    if parser.op() == "{":  # \sin{x}^2 is (sin x)^2
        return (_argument(parser),)
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
        return (bare not in FUNCTIONS) and parser.is_factor(token, parser.before)
    return token.kind == "op" and token.text in ("\\frac", "\\dfrac", "\\tfrac", "\\sqrt")


def _applied(parser: Parser, head: str, arguments: tuple[Node, ...], base: Node | None) -> Node:
    wanted = ARITY.get(head, 1)
    if wanted is None and len(arguments) == 1 and isinstance(arguments[0], Op) and arguments[0].head == "set":
        arguments = arguments[0].args  # \max\{a, b\}
    if wanted is not None and len(arguments) != wanted:
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


def _argument(parser: Parser) -> Node:
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
        letter = token.text[0]
        return E if letter == "e" else IMAGINARY if letter == "i" else Sym(letter)
    return parser.prefix()


def _fraction(parser: Parser, _: str) -> Node:
    top = _argument(parser)
    bottom = _argument(parser)
    return Op("div", (top, bottom))


def _binomial(parser: Parser, _: str) -> Node:
    top = _argument(parser)
    return Op("binom", (top, _argument(parser)))


def _root(parser: Parser, _: str) -> Node:
    index: Node = number(2)
    if parser.take("["):
        index = parser.expression(0)
        parser.expect("]")
    return Op("root", (index, _argument(parser)))


def _sign_root(parser: Parser, text: str) -> Node:
    """The unicode root signs: the operand is a group or one number or name."""
    index = {"\\usqrt": 2, "\\ucbrt": 3, "\\uqdrt": 4}[text]
    operand = _argument(parser) if parser.op() == "{" else parser.prefix()
    return Op("root", (number(index), operand))


def _signed(parser: Parser, text: str) -> Node:
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
    return Op("set", inner.args) if isinstance(inner, Op) and inner.head == "list" else inner


def _bracket(parser: Parser, opener: str) -> Node:
    """( ), [ ], half-open pairs and ]a, b[; one item is only grouped."""
    before = parser.peek(-2)
    with parser.group():
        inner = parser.answer()
        closer = parser.expect(*_CLOSERS[opener])
    if not isinstance(inner, Op) or inner.head != "list":
        if opener + closer == "[]" and is_integer_part(inner, before):
            return Op("floor", (inner,))
        if opener + closer in ("()", "[]"):
            return without_sign(inner)
        raise ParseError("brackets that do not match")
    head = opener + closer if opener != "<(" else "()"
    return Op({"[[": "[)", "]]": "(]", "][": "()"}.get(head, head) if len(inner.args) == 2 else head, inner.args)


def _braces(parser: Parser, _: str) -> Node:
    """\\{...\\}: a set, or a set by a condition."""
    if parser.take("}}"):
        return Op("set", ())
    with parser.group(in_set=True):
        inner = parser.answer()
        conditional = parser.op() in ("|", ":")
        if conditional:
            parser.start_condition()
            inner = by_condition(parser, inner)
        parser.expect("}}")
    if conditional:
        return inner
    return Op("set", inner.args if isinstance(inner, Op) and inner.head in ("list", "either") else (inner,))


def _bar(parser: Parser, closer: str) -> Node:
    with parser.bar():
        inner = parser.expression(0)
        parser.expect(closer)
    return Op("abs", (inner,))


def _rounded(parser: Parser, opener: str) -> Node:
    inner = parser.expression(0)
    parser.expect("r" + opener[1:])
    return Op("floor" if opener == "lfloor" else "ceil", (inner,))


def _empty(parser: Parser, _: str) -> Node:
    return Op("set", ())


def _decorated(parser: Parser, text: str) -> Node:
    """\\overline{AB}, \\angle ABC: a name with a mark."""
    mark = text.removeprefix("\\")
    if parser.op() == "{":
        return Sym(f"{mark} {parser.argument_text().strip('{}')}")
    if parser.kind != "name":
        raise ParseError(f"{mark} of something that is no name")
    return Sym(f"{mark} {parser.advance().text}")


def _environment(parser: Parser, _: str) -> Node:
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


PREFIX: dict[str, Callable[[Parser, str], Node]] = {
    **dict.fromkeys(_FRACTIONS, _fraction),
    **dict.fromkeys(("\\binom", "\\dbinom", "\\tbinom"), _binomial),
    **dict.fromkeys(("\\usqrt", "\\ucbrt", "\\uqdrt"), _sign_root),
    **dict.fromkeys(("+", "-", "pm", "mp"), _signed),
    **dict.fromkeys(("(", "[", "]", "<("), _bracket),
    **dict.fromkeys((*COMMANDS, "\\mathbb", "\\Bbb"), domain),
    **dict.fromkeys(("\\overline", "\\bar", "\\overrightarrow", "\\widehat", "\\dot", "\\ddot"), _decorated),
    **dict.fromkeys(("\\hat", "angle", "triangle", "overarc"), _decorated),
    **dict.fromkeys(("|", "||"), _bar),
    **dict.fromkeys(("lfloor", "lceil"), _rounded),
    "\\sqrt": _root,
    "!": lambda parser, _: Op("subfact", (parser.expression(40),)),  # !n
    "{": _group,
    "{{": _braces,
    "emptyset": _empty,
    "\\partial": partial,
    "\\nabla": gradient,
    "\\begin": _environment,
}
