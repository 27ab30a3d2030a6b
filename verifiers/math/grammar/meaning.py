r"""What parsed items mean together.

| items | meaning |
|---|---|
| 1, 2, ..., 10 | the terms written out |
| x = 1, y = 2 or x = 2, y = 1 | the points (1, 2) and (2, 1) |
| x = \frac{1 \pm \sqrt5}{2} | both values |
| f(a + b), E(X^2), P(A) | a function of its argument (head `apply`), and no product |
| mg(1 + \mu), P(1 + r)^t | products |
| dy/dx, \Delta x, i + 2j + 3k | one name, or a vector |

f is a function where it stands before a lone variable or number in brackets anywhere in the answer. Its value in a
comparison is that of a smooth model without symmetry, so that f(x + 1) is f(1 + x), and f(2x) is not 2f(x).
"""

from __future__ import annotations

import itertools
import re
from fractions import Fraction

from ..values.exact import rational
from ..values.matrices import with_bold_products
from ..values.tree import (
    Node,
    Num,
    Op,
    ParseError,
    Quantity,
    Rel,
    Sym,
    Words,
    children,
    heads,
    is_name,
    is_op,
    map_children,
    nodes,
    number,
    replace_parts,
    symbols,
    walk,
    with_children,
)
from .cursor import Parser
from .lex import Token
from .vocabulary import FUNCTIONS, GREEK, is_product

IN_WORDS = "in words: "


def label_items(items: list[Node], labels: list[str]) -> list[Node]:
    """Return values with different labels in words as equations: Alice: 5, Bob: 3."""
    if len(set(labels)) < len(items) or "" in labels or any(isinstance(item, Rel) for item in items):
        return items
    return [Rel(("=",), (Sym(IN_WORDS + label), item)) for item, label in zip(items, labels, strict=True)]


def in_part(label: str, value: Node) -> Node:
    """Return the answer to one part of a question, "(a) 5"."""
    if isinstance(value, Rel) and value.ops == ("=",) and is_name(value.sides[0]):
        value = value.sides[-1]
    return Rel(("=",), (Sym(f"{IN_WORDS}part {label}"), value))


MAX_TERMS = 1_000
DOTS = Words("...")


def fill_ellipsis(items: list[Node]) -> list[Node]:
    """Return the items of a list with those that its ellipsis stands for, where they are an arithmetic or geometric
    progression of numbers. Raise ParseError where nothing but an ellipsis is there."""
    if all(item == DOTS for item in items):
        raise ParseError("an ellipsis without terms")
    if items.count(DOTS) != 1:
        return items
    place = items.index(DOTS)
    before = [rational(item) for item in items[:place]]
    after = [rational(item) for item in items[place + 1 :]]
    first, last = [value for value in before if value is not None], [value for value in after if value is not None]
    if not first or not last or len(first) < len(before) or len(last) < len(after):
        return items
    terms = _arithmetic(first, last[0]) or _geometric(first, last[0])
    if terms is None or not _continues(terms, last):
        return items
    return [*items[:place], *(Num(term) for term in terms[len(first) : -1]), *items[place + 1 :]]


def _arithmetic(first: list[Fraction], last: Fraction) -> list[Fraction] | None:
    """The terms from the first to `last`; one term alone, 0 or 1, goes up by 1."""
    if len(first) == 1 and first[0] not in (0, 1):
        return None
    step = first[1] - first[0] if len(first) > 1 else Fraction(1)
    if not step or any(b - a != step for a, b in itertools.pairwise(first)):
        return None
    count = (last - first[0]) / step
    if count.denominator != 1 or not len(first) <= count < MAX_TERMS:
        return None
    return [first[0] + step * index for index in range(int(count) + 1)]


def _geometric(first: list[Fraction], last: Fraction) -> list[Fraction] | None:
    """The terms of at least three that have one ratio."""
    if len(first) < 3 or not all(first):
        return None
    ratio = first[1] / first[0]
    if abs(ratio) == 1 or any(b / a != ratio for a, b in itertools.pairwise(first)):
        return None
    terms = list(first)
    growing = abs(ratio) > 1
    while len(terms) < 200 and (abs(terms[-1]) < abs(last)) == growing and terms[-1] != last:
        terms.append(terms[-1] * ratio)
    return terms if terms[-1] == last and len(terms) > len(first) else None


def _continues(terms: list[Fraction], last: list[Fraction]) -> bool:
    """Whether the terms after the ellipsis go on as those before it."""
    step, ratio = terms[1] - terms[0], terms[1] / terms[0] if terms[0] else None
    arithmetic = terms[2] - terms[1] == step if len(terms) > 2 else True
    follow = (b - a == step if arithmetic else b == a * (ratio or 0) for a, b in itertools.pairwise(last))
    return all(follow)


def join_chain(items: list[Node], joints: list[str]) -> list[Node]:
    """Return a < b < c for a < b and b < c."""
    if not joints or not {*joints} <= {"and", "land", ","} or joints == [","] * len(joints):
        return items
    first, *others = items
    if not isinstance(first, Rel):
        return items
    chain = first
    for item in others:
        if not isinstance(item, Rel) or item.sides[0] != chain.sides[-1] or not symbols(item.sides[0]):
            return items
        chain = Rel((*chain.ops, *item.ops), (*chain.sides, *item.sides[1:]))
    return [chain]


MAX_UNKNOWNS = 6
_BRACKETS = frozenset(("()", "set", "both"))


def as_points(items: list[Node], joints: list[str]) -> list[Node]:
    """Return the points that items of a list give, in the order of their unknowns as in `by_names`; else the items."""
    grouped = [_of_group(item) for item in items]
    if all(grouped) and len({frozenset(group) for group in grouped}) == 1:
        return [_point(group, grouped[0]) for group in grouped]
    return _of_run(items, joints)


def _of_run(items: list[Node], joints: list[str]) -> list[Node]:
    """The points of x = 1, y = 2 or x = 2, y = 1: the same unknowns again and again."""
    assigned = [assignment(item) for item in items]
    names = [name for name, _ in assigned]
    size = next((place for place, name in enumerate(names) if place and name == names[0]), 0)
    if not 2 <= size <= MAX_UNKNOWNS or "" in names or len(items) % size:
        return items
    blocks = [dict(assigned[place : place + size]) for place in range(0, len(items), size)]
    within = [joint for place, joint in enumerate(joints) if (place + 1) % size]
    if any(block.keys() != blocks[0].keys() or len(block) < size for block in blocks) or "or" in within:
        return items
    return [_point(block, blocks[0]) for block in blocks]


def _of_group(item: Node) -> dict[str, Node]:
    """The unknowns and values of (x = 1, y = 2); none where it is another item."""
    if not is_op(item, *_BRACKETS) or not 2 <= len(item.args) <= MAX_UNKNOWNS:
        return {}
    values = dict(map(assignment, item.args))
    return values if len(values) == len(item.args) and "" not in values else {}


def assignment(item: Node) -> tuple[str, Node]:
    """(x, 1) of x = 1; ("", item) of anything else."""
    if isinstance(item, Rel) and item.ops == ("=",) and isinstance(item.sides[0], Sym) and symbols(item.sides[0]):
        return item.sides[0].name, item.sides[1]
    return "", item


def _point(values: dict[str, Node], first: dict[str, Node]) -> Node:
    """The point of unknowns in a row in their order, of others in that of the first point."""
    places = find_order(list(first))
    return Op("()", tuple(values[name] for name in (sorted(first, key=places.__getitem__) if places else first)))


def with_modulus(items: list[Node]) -> list[Node]:
    """Repeat the name and the modulus of x = 0, 1 (mod 3), which are written once, for each item."""
    value = items[-1].sides[-1] if isinstance(items[-1], Rel) else items[-1]
    if not is_op(value, "mod"):
        return items
    modulus = value.args[1]
    name, _ = assignment(items[0])
    found: list[Node] = []
    for item in items:
        label, residue = assignment(item)
        if label not in ("", name) or symbols(residue):
            return items
        if item is items[-1] and isinstance(residue, Op):
            residue = residue.args[0]
        elif not isinstance(residue, Num) and not (is_op(residue, "neg")):
            return items
        residue = Op("mod", (residue, modulus))
        found.append(Rel(("=",), (Sym(name), residue)) if name else residue)
    return found


def is_labelled(node: Node) -> bool:
    """Whether a node is a list of equations for its unknowns."""
    return is_op(node, "list", "both") and all(assignment(item)[0] for item in node.args)


def unknowns(node: Node) -> dict[str, Node]:
    """The unknowns of a list of equations, and their values."""
    return dict(map(assignment, node.args)) if isinstance(node, Op) else {}


def find_order(names: list[str]) -> dict[str, int]:
    """The places of names in a row: x and z, a and b, x_1 and x_3; none where they are others, or one comes twice."""
    if "" in names or len({*names}) < len(names) or len(names) < 2:
        return {}
    if all(len(name) == 1 for name in names):
        places = {name: ord(name) for name in names}
        row = max(places.values()) - min(places.values()) == len(names) - 1
        return places if row or {*names} <= {*"xyz"} else {}
    numbered = [name.partition("_")[::2] for name in names]
    if len({base for base, _ in numbered}) > 1 or not all(index.isdecimal() for _, index in numbered):
        return {}
    return {name: int(index) for name, (_, index) in zip(names, numbered, strict=True)}


_VALUES = frozenset("add mul div pow neg root abs () [] matrix".split()) | set(FUNCTIONS.values())


def two_valued(tree: Node) -> Node:
    """Return an answer with plus-minus inside as a list, so that both of its values are compared."""
    if isinstance(tree, Quantity):
        return Quantity(two_valued(tree.value), tree.unit)
    if is_op(tree, "pm") and tree.args[0] == number(0):
        vector = tree.args[1]
        if any(is_op(part, "()") for part in nodes(vector)):
            return Op("list", (vector, Op("neg", (vector,))))
    if isinstance(tree, Op) and _has_tied_signs(tree):
        return Op("list", tuple(as_points([Op("()", tree.args)], [])))
    nested = isinstance(tree, Rel) or (is_op(tree, *_VALUES))
    if not nested or heads(tree).isdisjoint(("pm", "mp")):
        return tree
    return Op("list", (tree,))


def _has_tied_signs(tree: Op) -> bool:
    r"""Whether a tree is x = \pm 1, y = \mp 2, whose upper signs go together, as in a point."""
    if tree.head not in ("list", "both") or not is_labelled(tree) or len(unknowns(tree)) < len(tree.args):
        return False
    return sum(not heads(item).isdisjoint(("pm", "mp")) for item in tree.args) > 1


_FUNCTIONS = frozenset(("f", "g", "h", "F", "G", "H", "phi", "psi"))
_WITH_VARIABLES = frozenset(("u", "S", "T", "delta", "zeta"))  # S(n), but no S(2)
_OF_EVENTS = frozenset(("E", "P"))
_EVENTS = frozenset(("union", "inter", "minus"))
_OPERATORS = frozenset(("pow", "fact", "percent"))


def may_be_called(name: str) -> bool:
    """Whether a function may have this name."""
    return name in _FUNCTIONS or name in _OF_EVENTS or name in _WITH_VARIABLES


def parse_call(parser: Parser, node: Sym) -> Node:
    """Parse what follows the name of a function: primes, another function after \\circ, an argument in brackets."""
    start = parser.mark()
    name, following = node.name, parser.peek()
    if parser.op() == "deg" and following.kind == "name" and following.text in _FUNCTIONS and node.name in _FUNCTIONS:
        parser.advance(2)
        return Sym(f"{name}\u2218{following.text}")
    while parser.op() in ("'", "''"):
        name += parser.advance().text
    if parser.op() not in ("(", "[") or parser.token.apart or (parser.op() == "[" and node.name != "E"):
        parser.backtrack(start)
        return node
    argument = parser.prefix()
    if isinstance(argument, (Num, Sym)) or (isinstance(argument, Op) and argument.head not in ("()", "[]", "list")):
        return Op("apply", (Sym(name), argument))
    parser.backtrack(start)
    return node


def split_before_call(parser: Parser, token: Token) -> bool:
    """Whether a product of letters ends with the name of a function before its argument: xf(x)."""
    return parser.op(1) == "(" and may_be_called(token.text[-1])


def with_calls(tree: Node) -> Node:
    """Return a parsed answer with products for the calls that are none."""
    calls = [part for part in nodes(tree) if type(part) is Op and part.head == "apply"]
    if not calls:
        return tree
    kept = frozenset(name for call in calls if (name := _called_for_certain(call)))
    return _labels_as_products(_multiply_calls(tree, kept))


def as_products(tree: Node) -> Node:
    """Return the tree with products for all calls."""
    return _multiply_calls(tree, frozenset())


def _name(call: Op) -> str:
    function = call.args[0]
    assert isinstance(function, Sym)
    return function.name.rstrip("'")


def _called_for_certain(call: Op) -> str:
    name, argument = _name(call), call.args[1]
    while is_op(argument, "neg"):
        argument = argument.args[0]
    if name in _OF_EVENTS:
        capitals = symbols(argument)
        return name if capitals and all(capital[0].isupper() for capital in capitals) else ""
    if name in _WITH_VARIABLES:
        return name if isinstance(argument, Sym) else ""
    plain = isinstance(argument, (Num, Sym)) or (is_op(argument, "apply"))
    return name if plain or name == "f" or call.args[0] != Sym(name) else ""


def _multiply_calls(node: Node, kept: frozenset[str]) -> Node:
    below = tuple(_multiply_calls(child, kept) for child in children(node))
    if not isinstance(node, Op):
        return with_children(node, below) if below else node
    if node.head == "apply":
        if _name(node) in kept and _EVENTS & {part.head for part in walk(node) if isinstance(part, Op)}:
            return Sym(f"{_name(node)}({_name_event(node.args[1])})")
        return Op("mul" if _name(node) not in kept else "apply", below)
    first = node.args[0] if node.args else node
    if node.head in _OPERATORS and is_op(first, "apply") and _name(first) not in kept:
        assert isinstance(below[0], Op)
        function, argument = below[0].args
        return Op("mul", (function, Op(node.head, (argument, *below[1:]))))  # P(1 + r)^t
    if node.head == "mul":
        pairs = zip(node.args, below, strict=True)
        factors = (part.args if _was_call(old) and is_op(part, "mul") else (part,) for old, part in pairs)
        return Op("mul", tuple(factor for some in factors for factor in some))
    return Op(node.head, below)


def _name_event(event: Node) -> str:
    """An event in one spelling: that of A and B is that of B and A."""
    if not isinstance(event, Op):
        return event.name if isinstance(event, Sym) else str(event)
    parts = [_name_event(arg) for arg in event.args]
    return f"{event.head}({', '.join(sorted(parts) if event.head in ('union', 'inter') else parts)})"


def _was_call(node: Node) -> bool:
    """Whether a factor was read as a call, or as a power of one."""
    if is_op(node, *_OPERATORS):
        node = node.args[0]
    return is_op(node, "apply")


def _labels_as_products(node: Node) -> Node:
    """Return equations with a product where one side is a call: f(x) = 2x."""
    if is_op(node, "list", "either"):
        return Op(node.head, tuple(map(_labels_as_products, node.args)))
    if not isinstance(node, Rel) or not set(node.ops) <= {"=", "~"}:
        return node
    for place in (0, -1):
        side, others = node.sides[place], [other for other in node.sides if other is not node.sides[place]]
        if is_op(side, "apply") and not any(_name(side) in _find_called_names(one) for one in others):
            sides = list(node.sides)
            sides[place] = Op("mul", side.args)
            return Rel(node.ops, tuple(sides))
    return node


def _find_called_names(node: Node) -> frozenset[str]:
    return frozenset(_name(part) for part in walk(node) if is_op(part, "apply"))


_UNITS = ("\\uniti", "\\unitj", "\\unitk")
_MARKED = re.compile(r"\\(?:mathbf|boldsymbol|bm|hat|widehat|vec|pmb|overrightarrow|mathrm)")
_DIFFERENTIALS = ("d", "partial")


def with_names(text: str, tree: Node) -> Node:
    """Return the tree with names for derivatives, and tuples for sums of unit vectors. `text`: what was parsed."""
    if ("d" in text or "partial" in text or "∂" in text) and ("frac" in text or "/" in text or "over" in text):
        tree = _with_derivatives(tree)
    return with_bold_products(text, _with_vectors(tree)) if _MARKED.search(text) else tree


def _with_derivatives(node: Node) -> Node:
    if is_op(node, "div") and (name := _derivative(*node.args)):
        return Sym(name)
    return map_children(_with_derivatives, node)


def _derivative(top: Node, bottom: Node) -> str:
    """The name of dy/dx or d^2y/dx^2, which parse as quotients of products; "" for another quotient."""
    above, below = _differential(top), _differential(bottom)
    if above is None or below is None:
        return ""
    (sign, order, function, power), (same_sign, one, variable, times) = above, below
    if sign != same_sign or order != times or one != 1 or power != 1:
        return ""
    mark = "partial " if sign == "partial" else "d"
    return f"{mark}{order if order > 1 else ''}{function}/{mark}{variable}"


def _differential(node: Node) -> tuple[str, int, str, int] | None:
    """Sign, order, name and power of a differential: (d, 2, y, 1) for d^2 y, (d, 1, x, 2) for d x^2."""
    if not is_op(node, "mul") or len(node.args) != 2:
        return None
    (sign, order), (name, power) = map(_power, node.args)
    if not isinstance(sign, Sym) or sign.name not in _DIFFERENTIALS or not isinstance(name, Sym) or not symbols(name):
        return None
    return sign.name, order, name.name, power


def _power(node: Node) -> tuple[Node, int]:
    if not is_op(node, "pow"):
        return node, 1
    value = rational(node.args[1])
    return (node.args[0], int(value)) if value is not None and value in range(2, 9) else (node, 1)


def _with_vectors(tree: Node) -> Node:
    """Return vectors as they are written in numbers; of two coordinates where no k is there."""
    names = {part.name for part in walk(tree) if isinstance(part, Sym)}
    if names.isdisjoint(_UNITS):
        return tree
    size = 3 if _UNITS[2] in names else 2
    values: dict[Node, Node] = {
        Sym(name): Op("()", tuple(number(int(n == place)) for n in range(size)))
        for place, name in enumerate(_UNITS[:size])
    }
    return replace_parts(tree, values)


def change(parser: Parser, mark: str) -> Node:
    """Parse what follows \\Delta: the change of x is no product."""
    parser.advance()
    following = parser.token
    bare = following.text.removeprefix("\\")
    if following.upright or bare in FUNCTIONS or (len(bare) > 1 and not (bare in GREEK or is_product(bare))):
        return Sym(mark)
    if bare in GREEK or len(bare) == 1:
        parser.advance()
        return Sym(f"{mark} {bare}")
    parser.replace(following._replace(text=bare[1:], spaced=False))
    return Sym(f"{mark} {bare[0]}")


def partial(parser: Parser, _: str) -> Node:
    r"""The \partial of \frac{\partial f}{\partial x}."""
    return Sym("partial")


def gradient(parser: Parser, _: str) -> Node:
    """The gradient of a function by name."""
    if parser.kind != "name" or len(parser.token.text) > 1:
        raise ParseError("a gradient of something that is no name")
    return Sym(f"nabla {parser.advance().text}")
