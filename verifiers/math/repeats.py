r"""Whether an answer only repeats an expression of its prompt: 57 - 1 to "What is 57 - 1?".

Expressions are the same in any order and spelling, with nothing carried out: -1 + 57, (57 - 1) \cdot 1, 57 - 1 = x.
What is written as the gold is no repetition, and neither is a name or a number, but for a number that is the only one
of the prompt, in another form than the gold: 3/20 to "Write 3/20 as a decimal".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from rlvr.verifiers.math.evaluated import is_evaluated, is_number, with_multiples
from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.labels import is_label
from rlvr.verifiers.math.tree import (
    PI,
    Node,
    Num,
    Op,
    Quantity,
    Rel,
    Sym,
    Words,
    children,
    nodes,
    number,
    symbols,
    with_children,
)
from rlvr.verifiers.math.units import UNITS

if TYPE_CHECKING:
    from rlvr.verifiers.math.compare import Rules

_NEUTRAL = frozenset((0, 1))
MAX_COPIES = 16  # of a factor: x^2 is x x
_MANY = frozenset(("list", "set", "either", "both"))
_STRUCTURES = _MANY | frozenset(("()", "(]", "[)", "[]", "union", "inter", "minus", "matrix", "row"))
_UNORDERED = _MANY | frozenset(("gcd", "lcm", "min", "max", "union", "inter"))
_TURNED = {">": "<", ">=": "<="}
_EQUAL = frozenset("=~")


NOT_EVALUATED, REPEATED = "equal, but not evaluated", "only repeats the prompt"


class Expressions(NamedTuple):
    """What a prompt holds: the forms of its expressions, their sums and products, and the numbers in it.

    `sums`: "add" or "mul", and how often each term or factor occurs in it, below 0 where it is subtracted, or divides.
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
    return REPEATED if given is not None and repeats(tree, golds, given(), rules.same) else ""


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
    return any(_is_same(gold, part, same) for part in parts for gold in golds if form(part, strict=True) not in own)


def _is_same(gold: Node, part: Node, same: Same) -> bool:
    try:
        return same(gold, part)
    except (ValueError, OverflowError, ZeroDivisionError):
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
    if isinstance(node, Op) and node.head in _STRUCTURES:
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
    if isinstance(node, Op) and node.head in ("max", "min") and all(form(arg) in prompt.forms for arg in node.args):
        return True
    if symbols(node) or not prompt.numbers.issuperset(_numbers([node])):
        return False
    return any(_is_expression(part, prompt) for part in nodes(node) if not _is_value(part))  # pieces, put together


def _without_letters(node: Node) -> Node:
    """A tree without the letters of its products, which are units."""
    if isinstance(node, Op) and node.head == "mul":
        below = tuple(_without_letters(arg) for arg in node.args if not isinstance(arg, Sym))
        return Op("mul", below)
    return with_children(node, tuple(map(_without_letters, children(node)))) if children(node) else node


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
    if isinstance(node, Op) and node.head == "neg":
        node = node.args[0]
    return isinstance(node, (Num, Sym, Words)) or is_number(node) or (isinstance(node, Op) and not node.args)


def _members(node: Node) -> Iterator[Node]:
    """A gold with its entries, sides and values."""
    yield node
    if isinstance(node, (Rel, Quantity)) or (isinstance(node, Op) and node.head in _STRUCTURES):
        for part in children(node):
            yield from _members(part)


def _numbers(trees: Iterable[Node]) -> Iterator[Fraction]:
    return (part.value for tree in trees for part in nodes(tree) if isinstance(part, Num))


# --- forms ------------------------------------------------------------------------------------------------------------


def form(node: Node, strict: bool = False) -> Hashable:
    """Return what is equal for trees that are the same expression, up to order, grouping and signs.

    Unless `strict`, terms 0 and factors 1 do not count either, x x is x^2, units are left out, a term less itself is 0.
    """
    node = node if strict else _respelled(node)
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
    if isinstance(node, Op) and node.head == "add":
        for arg in node.args:
            yield from _signed_terms(arg, sign)
    elif isinstance(node, Op) and node.head == "neg":
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
    elif not isinstance(node, Op) or node.head not in ("mul", "div", "percent", "pow"):
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


def _respelled(node: Node) -> Node:
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
    if isinstance(exponent, Op) and exponent.head == "neg":
        return -_copies(exponent.args[0])
    small = isinstance(exponent, Num) and exponent.value.denominator == 1 and abs(exponent.value) <= MAX_COPIES
    return exponent.value.numerator if isinstance(exponent, Num) and small else 0


def _form_of_factor(node: Node, strict: bool) -> Hashable:
    if isinstance(node, Op) and node.head in ("add", "neg"):
        return _form_of_sum(node, strict)
    if isinstance(node, Op) and node.head == "pow":
        return "pow", form(node.args[0], strict), form(node.args[1], strict)
    if isinstance(node, Op) and node.head == "root":
        if strict:
            return "root", form(node.args[0], strict), form(node.args[1], strict)
        share = rational(node.args[0])
        exponent = Num(1 / share) if share else Op("div", (number(1), node.args[0]))
        return "pow", form(node.args[1]), form(exponent)
    return form(node, strict)
