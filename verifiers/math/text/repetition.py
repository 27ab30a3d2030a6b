r"""Answers that leave the question undone: repetitions of the prompt, and arithmetic that is not carried out.

docs/explained/math-rules.md has both rules as tables. An expression is the same in any order and spelling with
nothing carried out: 57 - 1, -1 + 57, (57 - 1) \cdot 1. What is written as the gold is no repetition.

The expressions of a prompt are its formulas and its operations in words: "57 minus 1" is rewritten as 57 - 1, then
runs of mathematics are read as answers are. Functions that the prompt defines are applied: of "f(x) = 2x + 1 ... f(3)"
2(3) + 1 is an expression too.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from rlvr.core.types import Prompt

from ...extract.last_expression import is_mathematics
from ..compare.relations import is_label
from ..compare.rules import Rules
from ..grammar.lex import to_latex
from ..grammar.vocabulary import ABBREVIATED, MAGNITUDES, MULTIPLIERS, NUMBER_WORDS, number_words
from ..values.exact import rational
from ..values.numeric import FAILURES
from ..values.tree import (
    PI,
    Node,
    Num,
    Op,
    Quantity,
    Rel,
    Sym,
    Words,
    children,
    heads,
    is_op,
    map_children,
    nodes,
    number,
    substitute,
    symbols,
    with_children,
)
from ..values.units import UNITS
from .normal import normal_text
from .readings import readings

# --- whether an answer is evaluated -----------------------------------------------------------------------------------

_ONE, _TEN = number(1), number(10)
_PRIMES = 1_000  # above it, factors of radicands are not looked for
_WORDS = {word: value for word, value in (MULTIPLIERS | ABBREVIATED).items() if value >= 12}  # 24 tens are no number
_LARGE = _WORDS | MAGNITUDES
_MULTIPLE = re.compile(
    rf"\d\W*(?:\\(?:text|mathrm)\s*\{{\s*)?((?:{'|'.join(_WORDS)})\b|[{''.join(MAGNITUDES)}])", re.IGNORECASE
)
_CONTAINERS = frozenset("list set both either such () (] [) [] domain matrix row piecewise".split())
_HOLD = _CONTAINERS | frozenset(
    "union inter minus based mod deg pm mp neg ratio apply exp".split()
)  # they compute none
_ALIKE = {"ln": "log", "logb": "log", "lg": "log"}


def is_evaluated(answer: Node, gold: Node) -> bool:
    """Whether nothing is left to compute in an answer; true where the gold itself leaves something: 2^{1000}, 10!."""
    known = frozenset(_ALIKE.get(head, head) for head in heads(gold))
    return _is_done(answer, known) or not _is_done(gold, known)


def with_multiples(node: Node, text: str) -> Node:
    """Return the tree with 5 million as one number. 5 * 1000000 has the same tree and stays a product."""
    named = {_LARGE[word.lower()] for word in _MULTIPLE.findall(text)}
    return _multiply_out(node, named) if named else node


def _multiply_out(node: Node, named: set[int]) -> Node:
    if is_op(node, "mul") and len(node.args) == 2:
        count, multiple = node.args
        if isinstance(count, Num) and isinstance(multiple, Num) and multiple.value in named:
            return count._replace(value=count.value * multiple.value)
    return map_children(lambda child: _multiply_out(child, named), node)


def is_number(node: Node) -> bool:
    r"""Whether a tree is a number in a usual form, with or without a unit.

    An integer, a decimal, a fraction or ratio in lowest terms, a mixed number, a percentage, 1.2 \cdot 10^5, 10^6.
    """
    if isinstance(node, Quantity):
        return is_number(node.value) or _is_of_two_units(node.value)
    if isinstance(node, Num):
        return True
    if not isinstance(node, Op):
        return False
    args = node.args
    if node.head == "neg":
        inner = args[0]
        return not (is_op(inner, "neg")) and is_number(inner)
    if node.head in ("div", "ratio") and len(args) == 2:
        return _is_reduced(*args, least=2 if node.head == "div" else 1)
    if node.head in ("percent", "deg"):
        return is_number(args[0])
    if node.head == "pow":
        return _is_power_of_ten(node)
    return node.head == "mul" and len(args) == 2 and _is_scientific(*args)


def _is_done(node: Node, known: frozenset[str]) -> bool:
    """Whether nothing is left to compute in a tree whose gold has the heads `known`."""
    if isinstance(node, (Num, Sym, Words)) or is_number(node):
        return True
    if isinstance(node, Quantity):
        return _is_done(node.value, known)
    if isinstance(node, Rel):
        return _is_done_relation(node, known)
    if not isinstance(node, Op) or rational(node) is not None:
        return False
    if not all(_is_done(arg, known) for arg in node.args):
        return False
    head = _ALIKE.get(node.head, node.head)
    if head in ("add", "mul", "div", "pow") and any(is_op(arg, *_CONTAINERS) for arg in node.args):
        return False
    if head in ("pm", "mp"):
        return not all(rational(arg) for arg in node.args)
    if head == "add":
        return not _has_like_terms(node)
    if head in ("mul", "div"):
        return _has_reduced_factors(node)
    if head in _HOLD or symbols(node):
        return True
    if head in ("pow", "root"):
        base, exponent = node.args if head == "pow" else (node.args[1], Op("div", (_ONE, node.args[0])))
        return _is_reduced_root(rational(base), rational(exponent))
    return head in known


def _is_done_relation(node: Rel, known: frozenset[str]) -> bool:
    """57 - 1 = 56 is done, x = 57 - 1 is not."""
    constant = [side for side in node.sides if not symbols(side)] if set(node.ops) <= {"=", "~"} else []
    if constant:
        return any(_is_done(side, known) for side in constant)
    return all(_is_done(side, known) for side in node.sides)


def _is_reduced(top: Node, bottom: Node, least: int) -> bool:
    above, below = _integer(top), _integer(bottom)
    return above is not None and below is not None and below >= least and math.gcd(above, below) == 1


def _integer(node: Node) -> int | None:
    """The integer that is written, with its sign; None for anything else."""
    if is_op(node, "neg"):
        inner = _integer(node.args[0]) if isinstance(node.args[0], Num) else None
        return None if inner is None else -inner
    whole = isinstance(node, Num) and node.places is None and node.value.denominator == 1
    return node.value.numerator if isinstance(node, Num) and whole else None


def _is_scientific(mantissa: Node, power: Node) -> bool:
    if is_op(mantissa, "neg"):
        mantissa = mantissa.args[0]
    return isinstance(mantissa, Num) and 1 <= mantissa.value < 10 and _is_power_of_ten(power, least=1)


def _is_power_of_ten(node: Node, least: int = 2) -> bool:
    """Whether a tree is 10 to a whole power: at least `least`, or negative."""
    if not is_op(node, "pow") or node.args[0] != _TEN:
        return False
    exponent = _integer(node.args[1])
    return exponent is not None and (exponent >= least or exponent < 0)


def _is_of_two_units(value: Node) -> bool:
    """2 hours 30 minutes, whose value in hours is 2 + 30 * (1/60)."""

    if not is_op(value, "add") or not isinstance(value.args[0], Num):
        return False
    smaller = [term.args for term in value.args[1:] if is_op(term, "mul")]
    return len(smaller) == len(value.args) - 1 and all(
        isinstance(count, Num) and isinstance(share, Num) and share.places is None and share.value < 1
        for count, share in smaller
    )


def _has_like_terms(node: Op) -> bool:
    r"""Whether terms of a sum differ in their numbers only: 57 - 1, 3x + 2x, \sqrt{2} + 2\sqrt{2}."""
    seen = set()
    for term, _ in _signed_terms(node, 1):
        rest = frozenset(Counter(factor for factor in _sided_factors(term) if not is_number(factor[0])).items())
        if rest in seen:
            return True
        seen.add(rest)
    return False


def _sided_factors(node: Node, under: bool = False) -> Iterator[tuple[Node, bool]]:
    """The factors of a product, however they are grouped, and whether each is below."""
    if is_op(node, "mul", "neg"):
        for arg in node.args:
            yield from _sided_factors(arg, under)
    elif is_op(node, "div"):
        yield from _sided_factors(node.args[0], under)
        yield from _sided_factors(node.args[1], not under)
    else:
        yield node, under


def _has_reduced_factors(node: Op) -> bool:
    r"""Whether a product has at most one number above and one below, in lowest terms: not 2 \cdot 3\pi, 2\pi/4."""
    numbers = [(part.value, under) for part, under in _sided_factors(node) if isinstance(part, Num) and part != _ONE]
    above, below = ([value for value, under in numbers if under is side] for side in (False, True))
    if len(above) > 1 or len(below) > 1:
        return False
    return not (above and below) or math.gcd(above[0].numerator, below[0].numerator) == 1


def _is_reduced_root(base: Fraction | None, exponent: Fraction | None) -> bool:
    r"""Whether no factor can be drawn out of a root of a number: \sqrt{6}, not \sqrt{12}; true where it is no root."""
    if base is None or exponent is None:
        return True
    if exponent.denominator == 1:
        return False  # a power that is too large to be written out
    return not any(_has_power(abs(value), exponent.denominator) for value in (base.numerator, base.denominator))


def _has_power(value: int, degree: int) -> bool:
    """Whether the `degree`-th power of a prime below a bound, or a square above it, divides a number."""
    factor = 2
    while factor < _PRIMES and factor**2 <= value:
        times = 0
        while value % factor == 0:
            value, times = value // factor, times + 1
        if times >= degree:
            return True
        factor += 1
    return degree == 2 and value > 1 and math.isqrt(value) ** 2 == value


# --- repetitions ------------------------------------------------------------------------------------------------------

_NEUTRAL = frozenset((0, 1))
MAX_COPIES = 16  # of a factor: x^2 is x x
_MANY = frozenset(("list", "set", "either", "both"))
_STRUCTURES = _MANY | frozenset(("()", "(]", "[)", "[]", "union", "inter", "minus", "matrix", "row"))
_UNORDERED = _MANY | frozenset(("gcd", "lcm", "min", "max", "union", "inter"))
_TURNED = {">": "<", ">=": "<="}
_EQUAL = frozenset("=~")


NOT_EVALUATED, REPEATED = "equal, but not evaluated", "only repeats the prompt"


class Expressions(NamedTuple):
    """The expressions of a prompt: their forms, their sums and products, and the numbers in them.

    sums: "add" or "mul", and how often each term or factor occurs; the count is negative where it is subtracted or
    divides.
    """

    forms: frozenset[Hashable]
    sums: tuple[tuple[str, Mapping[Hashable, int]], ...]
    numbers: frozenset[Fraction]


Same = Callable[[Node, Node], bool]
Given = Callable[[], Expressions] | None  # reads the prompt; None where there is none, or where it may be repeated


def refusal(golds: Iterable[Node], gold: Node, tree: Node, text: str, rules: Rules, given: Given) -> str:
    """Return why an answer does not count that equals `gold`, one of the readings `golds`; "" where it counts."""
    if tree == gold or (isinstance(tree, Num) and tree.places is None and tree.value.denominator == 1):
        return ""
    tree = with_multiples(tree, text)
    if rules.unevaluated == "reject" and not is_evaluated(tree, gold):
        return NOT_EVALUATED
    return REPEATED if given is not None and repeats(tree, golds, given(), rules.matches) else ""


def expressions(trees: Iterable[Node]) -> Expressions:
    """Return the expressions of a prompt: all subtrees of the trees that were read in it."""
    trees = list(trees)
    written = dict.fromkeys([*trees, *map(_with_values, trees)])
    forms = {form(part) for tree in written for part in nodes(tree)}
    sums = tuple((key[0], dict(key[1])) for key in forms if isinstance(key, tuple) and key[0] in ("add", "mul"))
    return Expressions(frozenset(forms), sums, frozenset(_numbers(trees)))


def repeats(answer: Node, golds: Iterable[Node], prompt: Expressions, same: Same) -> bool:
    """Whether an answer repeats an expression of the prompt, and is not written as one of the golds or its parts.

    `same` compares a gold with a part of the answer.
    """
    golds = list(golds)
    own = frozenset(form(part, strict=True) for gold in golds for part in _members(gold))
    if _repeats(answer, own, prompt) or _holds_repeated(answer, golds, own, prompt, same):
        return True
    measured = any(isinstance(gold, Quantity) for gold in golds)
    return measured and bool(symbols(answer)) and _repeats(_without_letters(answer), own, prompt)  # 57 km - 1 km


def _holds_repeated(
    answer: Node, golds: Sequence[Node], own: frozenset[Hashable], prompt: Expressions, same: Same
) -> bool:
    r"""Whether an expression of the prompt in an answer is all that equals the gold: \max(57 - 1, 0)."""
    if isinstance(answer, Rel) or form(answer, strict=True) in own:
        return False
    parts = [part for part in nodes(answer) if not _is_value(part) and _is_expression(part, prompt)]
    for part in parts:
        for gold in golds if form(part, strict=True) not in own else ():
            with contextlib.suppress(*FAILURES):
                if same(gold, part):
                    return True
    return False


def _with_values(node: Node, neutral: frozenset[int] = frozenset()) -> Node:
    r"""An expression with its operands as numbers where they are written in a usual form, or equal a `neutral` one.

    0.15 \cdot 80 and 15\% \cdot 80 are one expression; 57 - 1! is 57 - 1 where 1 is neutral.
    """
    below = []
    for arg in children(node):
        value = None if isinstance(arg, (Num, Sym, Words)) or symbols(arg) else rational(arg)
        plain = value is not None and (value in neutral or is_number(arg))
        below.append(Num(value) if plain and value is not None else _with_values(arg, neutral))
    return with_children(node, tuple(below)) if below else node


def _repeats(node: Node, own: frozenset[Hashable], prompt: Expressions) -> bool:
    if form(node, strict=True) in own:
        return False
    if isinstance(node, Rel):
        return _relation_repeats(node, own, prompt)
    if is_op(node, *_STRUCTURES):
        if all(form(arg, strict=True) in own for arg in node.args):
            return False
        return form(node) in prompt.forms or any(_repeats(arg, own, prompt) for arg in node.args)
    if _is_value(node):
        bare = node.value if isinstance(node, Quantity) else node
        if form(bare, strict=True) in own or form(node) not in prompt.forms:
            return False
        return bool(prompt.numbers) and prompt.numbers <= set(_numbers([bare]))
    if _is_expression(node, prompt) or _is_expression(_with_values(node, _NEUTRAL), prompt):
        return True
    if is_op(node, "max", "min") and all(form(arg) in prompt.forms for arg in node.args):
        return True
    if symbols(node) or not prompt.numbers.issuperset(_numbers([node])):
        return False
    return any(_is_expression(part, prompt) for part in nodes(node) if not _is_value(part))  # pieces, put together


def _without_letters(node: Node) -> Node:
    """A tree without the letters of its products, which are units."""
    if is_op(node, "mul"):
        below = tuple(_without_letters(arg) for arg in node.args if not isinstance(arg, Sym))
        return Op("mul", below)
    return map_children(_without_letters, node)


def _relation_repeats(node: Rel, own: frozenset[Hashable], prompt: Expressions) -> bool:
    """57 - 1 = x repeats, 57 - 1 = 56 does not."""
    if not set(node.ops) <= _EQUAL:
        return form(node) in prompt.forms
    sides = [side for side in node.sides if not is_label(side)]
    if any(form(side, strict=True) in own or _is_value(side) for side in sides):
        return False
    return form(node) in prompt.forms or (bool(sides) and all(_repeats(side, own, prompt) for side in sides))


def _is_expression(node: Node, prompt: Expressions) -> bool:
    """Whether an expression, or some terms or factors of one, stands in the prompt."""
    key = form(node)
    if key in prompt.forms:
        return True
    if not isinstance(key, tuple) or key[0] not in ("add", "mul"):
        return False
    signs = (1, -1) if key[0] == "add" else (1,)  # the difference of 1 and 57 is 57 - 1
    return any(
        head == key[0] and all(_holds(items, factor, sign * count) for factor, count in key[1])
        for head, items in prompt.sums
        for sign in signs
    )


def _holds(items: Mapping[Hashable, int], key: Hashable, count: int) -> bool:
    found = items.get(key, 0)
    return found * count > 0 and abs(found) >= abs(count)


def _is_value(node: Node) -> bool:
    """Whether a tree has no operation: a number in a usual form, a name."""
    if isinstance(node, Quantity):
        return _is_value(node.value)
    if is_op(node, "neg"):
        node = node.args[0]
    return isinstance(node, (Num, Sym, Words)) or is_number(node) or (isinstance(node, Op) and not node.args)


def _members(node: Node) -> Iterator[Node]:
    """A gold with its entries, sides and values."""
    yield node
    if isinstance(node, (Rel, Quantity)) or (is_op(node, *_STRUCTURES)):
        for part in children(node):
            yield from _members(part)


def _numbers(trees: Iterable[Node]) -> Iterator[Fraction]:
    return (part.value for tree in trees for part in nodes(tree) if isinstance(part, Num))


# --- forms ------------------------------------------------------------------------------------------------------------


def form(node: Node, strict: bool = False) -> Hashable:
    """Return what is equal for trees that are the same expression, up to order, grouping and signs.

    Unless `strict`, terms 0 and factors 1 do not count either, x x is x^2, units are left out, a term less itself is 0.
    """
    node = node if strict else _respell(node)
    if isinstance(node, Num):
        return ("number", node.value) if node.value >= 0 else ("add", frozenset({(("number", -node.value), -1)}))
    if isinstance(node, (Sym, Words)):
        return node
    if isinstance(node, Quantity):
        return ("unit", form(node.value, strict), node.unit) if strict else form(node.value)
    if isinstance(node, Rel):
        return _form_of_relation(node, strict)
    if node.head in ("add", "neg", "mul", "div", "percent", "pow", "root"):
        return _form_of_sum(node, strict)
    below = [form(arg, strict) for arg in node.args]
    head = "set" if node.head in _MANY else node.head
    return (head, frozenset(Counter(below).items())) if node.head in _UNORDERED else (head, tuple(below))


def _form_of_relation(node: Rel, strict: bool) -> Hashable:
    sides = [form(side, strict) for side in node.sides]
    if set(node.ops) <= _EQUAL:
        return "=", frozenset(sides)
    if {_TURNED.get(op, op) for op in node.ops} <= {"<", "<="} and node.ops[0] in _TURNED:
        return tuple(_TURNED.get(op, op) for op in reversed(node.ops)), tuple(reversed(sides))
    return node.ops, tuple(sides)


def _form_of_sum(node: Node, strict: bool) -> Hashable:
    terms: Counter[Hashable] = Counter()
    for term, sign in _signed_terms(node, 1):
        key, own_sign = _form_of_product(term, strict)
        if not strict and isinstance(key, tuple) and key[0] == "add":
            terms.update({inner: count * sign * own_sign for inner, count in key[1]})
        elif strict or key != ("number", 0):
            terms[key] += sign * own_sign
    items = {key: count for key, count in terms.items() if count or strict}
    if not items:
        return ("number", Fraction(0))
    (key, count), *others = items.items()
    return key if not others and count == 1 else ("add", frozenset(items.items()))


def _signed_terms(node: Node, sign: int) -> Iterator[tuple[Node, int]]:
    if is_op(node, "add"):
        for arg in node.args:
            yield from _signed_terms(arg, sign)
    elif is_op(node, "neg"):
        yield from _signed_terms(node.args[0], -sign)
    else:
        yield node, sign


def _form_of_product(node: Node, strict: bool) -> tuple[Hashable, int]:
    """Return the form of a term without its sign, and the sign."""
    factors: Counter[Hashable] = Counter()
    sign = 1
    for factor, power in _factors(node, 1, strict):
        key = _form_of_factor(factor, strict)
        while isinstance(key, tuple) and key[0] == "add" and len(key[1]) == 1 and next(iter(key[1]))[1] == -1:
            sign, key = -sign, next(iter(key[1]))[0]
        if not strict and isinstance(key, tuple) and key[0] == "add" and min(key[1], key=repr)[1] < 0:
            sign = sign * (-1) ** power
            key = "add", frozenset((term, -count) for term, count in key[1])  # 2 - x is -(x - 2)
        if not strict and key == ("number", 0) and power > 0:
            return ("number", Fraction(0)), 1
        if not strict and isinstance(key, tuple) and key[0] == "mul":
            factors.update({inner: count * power for inner, count in key[1]})
        elif strict or key != ("number", 1):
            factors[key] += power
    items = {key: count for key, count in factors.items() if count or strict}
    if not items:
        return ("number", Fraction(1)), sign
    (key, count), *others = items.items()
    return (key if not others and count == 1 else ("mul", frozenset(items.items()))), sign


def _factors(node: Node, power: int, strict: bool) -> Iterator[tuple[Node, int]]:
    """The factors of a product, with their powers; unless `strict`, units are left out."""
    if isinstance(node, Quantity) and not strict:
        yield from _factors(node.value, power, strict)
    elif not is_op(node, "mul", "div", "percent", "pow"):
        yield node, power
    elif node.head == "mul":
        for arg in node.args:
            yield from _factors(arg, power, strict)
    elif node.head == "div":
        yield from _factors(node.args[0], power, strict)
        yield from _factors(node.args[1], -power, strict)
    elif node.head == "percent":
        yield from _factors(node.args[0], power, strict)
        yield Num(Fraction(100)), -power
    elif (copies := _copies(node.args[1])) and not strict:
        yield from _factors(node.args[0], power * copies, strict)
    else:
        yield node, power


def _respell(node: Node) -> Node:
    """A logarithm of a base as a quotient of logarithms, degrees as radians; any other node as it is."""
    if isinstance(node, Quantity) and node.unit == UNITS["°"]:
        node = Op("deg", (node.value,))
    if not isinstance(node, Op):
        return node
    if node.head == "ln":
        return Op("log", node.args)
    if node.head == "logb":
        return Op("div", (Op("log", node.args[1:]), Op("log", node.args[:1])))
    if node.head == "deg" and (turn := rational(node.args[0])):
        share = turn / 180
        return Op("div", (Op("mul", (number(share.numerator), PI)), number(share.denominator)))
    return node


def _copies(exponent: Node) -> int:
    """A small whole exponent; 0 for any other."""
    if is_op(exponent, "neg"):
        return -_copies(exponent.args[0])
    small = isinstance(exponent, Num) and exponent.value.denominator == 1 and abs(exponent.value) <= MAX_COPIES
    return exponent.value.numerator if isinstance(exponent, Num) and small else 0


def _form_of_factor(node: Node, strict: bool) -> Hashable:
    if is_op(node, "add", "neg"):
        return _form_of_sum(node, strict)
    if is_op(node, "pow"):
        return "pow", form(node.args[0], strict), form(node.args[1], strict)
    if is_op(node, "root"):
        if strict:
            return "root", form(node.args[0], strict), form(node.args[1], strict)
        share = rational(node.args[0])
        exponent = Num(1 / share) if share else Op("div", (number(1), node.args[0]))
        return "pow", form(node.args[1]), form(exponent)
    return form(node, strict)


# --- prompts ----------------------------------------------------------------------------------------------------------

MAX_PROMPT = 20_000  # characters, at the end of a prompt
MAX_RUN = 1_000  # characters of one expression
MAX_TREES = 400
MAX_INSERTED = 60  # expressions with values inserted

_DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)
_DISPLAYED = re.compile(
    r"\$\$(.{1,2000}?)\$\$|(?<!\\)\$([^$]{1,1000})(?<!\\)\$(?!\d)|\\\((.{1,1000}?)\\\)|\\\[(.{1,2000}?)\\\]"
    r"|(\\begin\{([a-z]+\*?)\}.{1,2000}?\\end\{\6\})",
    re.DOTALL,
)
_PIECES = re.compile(r"\\\\|&|,\s|;|\\(?:text|mbox)\s*\{[^{}]*\}|\\q?quad|\n")
_SIDES = re.compile(r"(?<![<>!:])=|\\[lg]e(?:q|qslant)?(?![a-z])|[<>≤≥]|\\approx")


def read_prompt(prompt: Prompt) -> Expressions:
    """Return the expressions of a prompt; of messages, those of the user."""
    if not isinstance(prompt, str):
        said = (message["content"] for message in prompt if message["role"] == "user")
        prompt = "\n".join(text for text in said if isinstance(text, str))
    return _read(prompt[-MAX_PROMPT:])


@functools.lru_cache(maxsize=2048)
def _read(prompt: str) -> Expressions:
    trees: list[Node] = []
    for text in _texts(_DRAWING.sub(" ", prompt)):
        trees += (tree for tree in _trees(text) if tree not in trees)
        if len(trees) > MAX_TREES:
            break
    return expressions([*trees, *_insert_values(trees)])


def _trees(text: str) -> tuple[Node, ...]:
    return readings(text, normal_text(to_latex(text)))[0] if len(text) <= MAX_RUN else ()


def _texts(prompt: str) -> Iterator[str]:
    """Yield what may be expressions: formulas, their pieces and sides, runs of mathematics in the rewritten prose."""
    prose, position = [], 0
    for match in _DISPLAYED.finditer(prompt):
        formula = next(group for group in match.groups() if group is not None).strip().rstrip(".,;:?")
        yield formula
        pieces = [piece.strip() for piece in _PIECES.split(formula)]
        yield from pieces if len(pieces) > 1 else ()
        for piece in pieces:
            sides = _SIDES.split(piece)
            yield from (side.strip() for side in sides if len(sides) > 1)
        prose += [prompt[position : match.start()], _in_prose(formula)]
        position = match.end()
    prose.append(prompt[position:])
    for run in _runs(_rewritten("".join(prose))):
        run = run.strip(" =:,")
        yield run
        sides = _SIDES.split(run)
        yield from (side.strip() for side in sides if len(sides) > 1)


_ATOM = re.compile(r"-?[\d.,]+|[A-Za-z]|\\[A-Za-z]+")


def _in_prose(formula: str) -> str:
    """A formula as an operand of the words around it."""
    if _ATOM.fullmatch(formula) or _SIDES.search(formula):
        return f" {formula} "
    return f" ({formula}) "


# --- operations in words ----------------------------------------------------------------------------------------------

_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?"
_GROUP = r"\((?:[^()\n]|\((?:[^()\n]|\([^()\n]{0,99}\)){0,99}\)){0,199}\)"
_OPERAND = rf"(?:-?{_NUMBER}|{_GROUP}|\\[a-z]+(?:\[\d\])?\{{[^{{}}\n]*\}}(?:\{{[^{{}}\n]*\}})?|\b[b-zB-HJ-Z]\b)"
_A, _B = rf"(?:the\s+)?(?P<a>{_OPERAND})", rf"(?:the\s+)?(?P<b>{_OPERAND})"
_NOUNS = r"(?:\s+(?!(?:and|is|are|by|from|to|of|than|times|minus|plus)\b)[a-z]+){0,2}"  # 57 apples minus 1 apple
_AND = r"\s*(?:,\s*(?:and\s+)?|\band\b)\s*"
_OPERATORS = {"sum": " + ", "total": " + ", "product": " * ", "difference": " - ", "quotient": " / ", "ratio": " / "}

_FRACTION = r"(?P<a>\d+/\d+|\(?\\[dt]?frac\{\d+\}\{\d+\}\)?)"
_GCD = r"(?:(?:greatest|highest)\s+common\s+(?:divisor|factor)|gcd)"


def _between(words: str) -> str:
    """A pattern of operator words between two operands, each with what is counted."""
    return rf"{_A}{_NOUNS}\s+(?:{words}){_NOUNS}\s+{_B}"


_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), form)
    for pattern, form in (
        (r"(?<=\d)\s+[a-z]+(?:\s+[a-z]+)?(?=\s*(?:[-+*/×÷·−]|\\times|\\cdot|\\div)\s*\(?\d)", ""),
        (rf"\b(?:positive\s+)?square\s+root\s+of\s+{_A}", r" (\\sqrt{\g<a>}) "),
        (rf"\bcube\s+root\s+of\s+{_A}", r" (\\sqrt[3]{\g<a>}) "),
        (rf"\bsquare\s+of\s+{_A}", r" (\g<a>^2) "),
        (rf"\bcube\s+of\s+{_A}", r" (\g<a>^3) "),
        (rf"{_A}\s+squared\b", r" (\g<a>^2) "),
        (rf"{_A}\s+cubed\b", r" (\g<a>^3) "),
        (rf"{_A}\s+factorial\b", r" (\g<a>!) "),
        (rf"{_A}\s+(?:raised\s+)?to\s+the\s+(?:power\s+(?:of\s+)?)?{_B}(?:th|nd|rd|st)?", r" (\g<a>^{\g<b>}) "),
        (rf"{_A}\s+choose\s+{_B}", r" (\\binom{\g<a>}{\g<b>}) "),
        (rf"\b{_GCD}\s+of\s+{_A}{_AND}{_B}", r" (\\gcd(\g<a>,\g<b>)) "),
        (rf"\bleast\s+common\s+multiple\s+of\s+{_A}{_AND}{_B}", r" (\\operatorname{lcm}(\g<a>,\g<b>)) "),
        (rf"\b(?:(?:one|1)[-\s]+)?half\s+(?:of\s+)?{_A}", r" (\g<a>/2) "),
        (rf"\b(?:an?|one|1)[-\s]+(?:quarter|fourth)\s+of\s+{_A}", r" (\g<a>/4) "),
        (rf"\b(?:an?|one|1)[-\s]+third\s+of\s+{_A}", r" (\g<a>/3) "),
        (rf"\b(?:twice|double)\s+(?:of\s+)?{_A}", r" (2*\g<a>) "),
        (rf"\b(?:thrice|triple)\s+(?:of\s+)?{_A}", r" (3*\g<a>) "),
        (rf"{_A}\s*(?:\\?%|percent)\s+of\s+{_B}", r" (\g<a>\\%*\g<b>) "),
        (rf"{_FRACTION}\s+of\s+{_B}", r" (\g<a>*\g<b>) "),
        (_between(r"times|multiplied\s+by"), r" \g<a> * \g<b> "),
        (_between(r"divided\s+by|over"), r" \g<a> / \g<b> "),
        (_between(r"plus|added\s+to|more\s+than|increased\s+by"), r" \g<a> + \g<b> "),
        (_between(r"minus|(?:decreased|reduced|diminished)\s+by"), r" \g<a> - \g<b> "),
        (_between(r"subtracted\s+from|taken\s+(?:away\s+)?from|less\s+than"), r" \g<b> - \g<a> "),
        (rf"\b(?:subtract|take(?:\s+away)?)\s+{_A}{_NOUNS}\s+from\s+{_B}", r" \g<b> - \g<a> "),
        (rf"\badd\s+{_A}{_NOUNS}\s+(?:to|and)\s+{_B}", r" \g<a> + \g<b> "),
        (rf"\bmultiply\s+{_A}{_NOUNS}\s+(?:by|and|with)\s+{_B}", r" \g<a> * \g<b> "),
        (rf"\bdivide\s+{_A}{_NOUNS}\s+by\s+{_B}", r" \g<a> / \g<b> "),
    )
)
_ENTRY = rf"(?:the\s+)?{_OPERAND}"
_LISTED = re.compile(
    r"\b(?P<name>sum|total|product|difference|quotient|ratio|average|mean)\s+(?:of|between)\s+(?:the\s+numbers?\s+)?"
    rf"(?P<items>{_ENTRY}{_NOUNS}(?:{_AND}{_ENTRY}{_NOUNS}){{0,9}}(?:{_AND}|\s+to\s+){_ENTRY})",
    re.IGNORECASE,
)
_ITEM = re.compile(_OPERAND)
_NUMERALS = "|".join(NUMBER_WORDS)
_SPELLED = re.compile(rf"\b(?:{_NUMERALS})(?:[-\s]+(?:and\s+)?(?:{_NUMERALS}|hundred|thousand))*\b", re.IGNORECASE)
MAX_ROUNDS = 4  # of operations within one another


def _rewritten(prose: str) -> str:
    """The prose with its operations as signs; inner ones first, so that outer ones find them as operands."""
    prose = _SPELLED.sub(_digits, prose)
    for _ in range(MAX_ROUNDS):
        before = prose
        for pattern, form in _RULES:
            prose = pattern.sub(form, prose)
        prose = _LISTED.sub(_join_list, prose)
        if prose == before:
            break
    return prose


def _digits(match: re.Match[str]) -> str:
    words = re.split(r"[-\s]+", match[0].lower())
    found = number_words(words)
    return str(found[0]) if found is not None and found[1] == len(words) else match[0]


def _join_list(match: re.Match[str]) -> str:
    """((2 + 3 + 4)/3) for "average of 2, 3 and 4"."""
    items = _ITEM.findall(match["items"])
    name = match["name"].lower()
    joined = _OPERATORS.get(name, " + ").join(items)
    return f" ({joined}) " if name in _OPERATORS else f" (({joined})/{len(items)}) "


_CHUNK = re.compile(r"\S+")
_END = re.compile(r"[.;:!?]+[)*_\"']*\Z")


def _runs(prose: str) -> Iterator[str]:
    """Yield the longest pieces of a text that look like mathematics."""
    run: list[str] = []
    for chunk in _CHUNK.finditer(prose):
        word = chunk.group()
        bare = _END.sub("", word) if not word.endswith("!") else word
        if is_mathematics(bare, bool(run) and run[-1][-1] in "-+*/^=<>("):
            run.append(bare)
            if bare == word:
                continue
        if run:
            yield " ".join(run)
        run = []
    if run:
        yield " ".join(run)


# --- definitions ------------------------------------------------------------------------------------------------------


def _insert_values(trees: Sequence[Node]) -> list[Node]:
    """Return expressions of the trees with the functions that they define applied, and the values that they give."""
    values: dict[str, Node] = {}
    functions: dict[str, tuple[str, Node]] = {}
    for relation in (part for tree in trees for part in nodes(tree) if isinstance(part, Rel)):
        if len(relation.sides) != 2 or relation.ops != ("=",):
            continue
        left, right = relation.sides
        if isinstance(left, Sym) and not symbols(right):
            values.setdefault(left.name, right)
        elif (call := _call(left)) and isinstance(call[1], Sym):
            functions.setdefault(call[0], (call[1].name, right))
    if not values and not functions:
        return []
    found: list[Node] = []
    for part in dict.fromkeys(part for tree in trees for part in nodes(tree) if not isinstance(part, Rel)):
        new = substitute(_apply_functions(part, functions), values)
        if new != part and isinstance(new, Op):
            found.append(new)
        if len(found) >= MAX_INSERTED:
            break
    return found


def _call(node: Node) -> tuple[str, Node] | None:
    """The name of a function and its argument: f(x), which may be read as a product."""
    if not is_op(node, "apply", "mul") or len(node.args) != 2:
        return None
    name, argument = node.args
    return (name.name, argument) if isinstance(name, Sym) else None


def _apply_functions(node: Node, functions: dict[str, tuple[str, Node]], depth: int = 0) -> Node:
    if not isinstance(node, Op) or not functions or depth > MAX_ROUNDS:
        return node
    call = _call(node)
    if call is not None and call[0] in functions:
        variable, body = functions[call[0]]
        return substitute(body, {variable: _apply_functions(call[1], functions, depth + 1)})
    return Op(node.head, tuple(_apply_functions(arg, functions, depth + 1) for arg in node.args))
