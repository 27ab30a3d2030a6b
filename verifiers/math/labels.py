r"""Left sides of equations that only name a value: f(3) = 10, |AB| = 1, \sin A = 1/2, AB:BC = 2:3, dy/dx = 2x.

An equation between coordinates (x + y = 5, xy = 6) is a curve, not a value with a name.
"""

from __future__ import annotations

from rlvr.verifiers.math.binders import unevaluated
from rlvr.verifiers.math.rounding import literal
from rlvr.verifiers.math.tree import PI, Node, Num, Op, Rel, Sym, symbols, walk
from rlvr.verifiers.math.vocabulary import FUNCTIONS

_SETS = frozenset(("union", "inter", "minus"))
_PARTS = frozenset(("add", "mul", "apply", "div", "abs", "()", "neg", "max", "min")) | _SETS
_MEASURES = frozenset(FUNCTIONS.values()) - {"binom", "fact", "sqrt", "cbrt", "exp"} | {"logb"}
_FUNCTION_NAMES = frozenset("fghpFGHP")
_SOLVED_FOR = frozenset(("pow", "div", "ln", "log", "logb"))
_COORDINATES = frozenset("xyz")


def is_name(node: Node) -> bool:
    """Whether a side is a variable."""
    return isinstance(node, Sym) and bool(symbols(node))


def is_label(node: Node) -> bool:
    r"""Whether a side only names a quantity: x, f(x), f(2), P(X = 2), AB, BC^2, x + y, \tan A; not a polynomial."""
    if _is_call(node) or is_derivative(node) or unevaluated(node):
        return True
    if is_to_be_solved(node):
        return False
    if isinstance(node, Op) and node.head in ("ratio", *_SETS):
        return all(is_label(arg) for arg in node.args)
    if isinstance(node, Op) and node.head in _MEASURES and node.head not in _PARTS:
        return bool(symbols(node)) and all(_is_plain(arg) for arg in node.args)
    if isinstance(node, Op) and node.head == "mul":
        node = Op("mul", tuple(map(_base, node.args)))
    if isinstance(node, Op) and node.head == "pow":
        return is_label(node.args[0])
    if isinstance(node, Sym):
        return bool(symbols(node))
    if not isinstance(node, Op) or node.head not in _PARTS or not symbols(node):
        return False
    if node.head in ("add", "mul") and (PI in node.args or _has_twice(node)):
        return False
    if node.head == "add":
        return all(map(_is_term, node.args))
    return all(isinstance(part, Sym) or (isinstance(part, Op) and part.head in _PARTS) for part in walk(node))


def is_to_be_solved(node: Node) -> bool:
    """Whether a side is another quantity than the one sought: -a; 1/x, x^2 or ln x of a coordinate."""
    if not isinstance(node, Op) or node.head == "neg":
        return isinstance(node, Op)
    names = symbols(node)
    return node.head in _SOLVED_FOR and len(names) == 1 and names <= _COORDINATES


def names_coordinates(node: Node) -> bool:
    """Whether all names of a side are those of coordinates: x, y + z."""
    return {name.rstrip("'") for name in symbols(node)} <= _COORDINATES


def _has_twice(node: Op) -> bool:
    """Whether an unknown is added to itself or multiplied by itself: x + x, y y."""
    names = [arg for arg in node.args if isinstance(arg, Sym) and arg.name in _COORDINATES]
    return len(set(names)) < len(names)


def _is_term(node: Node) -> bool:
    """Whether a term of a sum has a name of its own: a, AB, f(x); not the r y of an equation."""
    if isinstance(node, Op) and node.head == "neg":
        node = node.args[0]
    if isinstance(node, Op) and node.head == "pow" and isinstance(node.args[0], Sym):
        return node.args[0].name[0].isupper()  # x^2 + y^2 is a circle's
    if not isinstance(node, Op) or node.head != "mul":
        return is_label(node)
    first = _base(node.args[0])
    named = isinstance(first, Sym) and (first.name[0].isupper() or first.name.rstrip("'") in _FUNCTION_NAMES)
    return named and is_label(node)


def _is_plain(node: Node) -> bool:
    r"""Whether the argument of a function is of names and numbers: \cos 2A, \sin(A + B)."""
    return literal(node) is not None or all(
        isinstance(part, Sym) or literal(part) is not None or (isinstance(part, Op) and part.head in _PARTS)
        for part in walk(node)
    )


def _is_call(node: Node) -> bool:
    """f(2), f(-1) or P(X = 2), which parse as products: a name, then a number or a relation."""
    if (
        not isinstance(node, Op)
        or node.head not in ("mul", "apply")
        or len(node.args) != 2
        or not is_name(node.args[0])
    ):
        return False
    argument = node.args[1]
    inner = isinstance(argument, Op) and argument.head == "apply"
    return literal(argument) is not None or isinstance(argument, Rel) or inner


def is_function_value(node: Node) -> bool:
    """Whether a side is f(2) or g(-1): what another function or argument gives is another statement."""
    if not _is_call(node) or not isinstance(node, Op) or not isinstance(node.args[0], Sym):
        return False
    return node.args[0].name.rstrip("'") in _FUNCTION_NAMES


_IN_WORDS = "in words: "


def names_other_function(label: Node, value: Node) -> bool:
    """Whether an equation gives another function than its value may be sought as: f(-x), f(x + 1), 2y, |f(x)|."""
    names = symbols(value)
    if not names or not isinstance(label, Op) or is_derivative(label):
        return False
    if label.head == "mul" and len(label.args) == 2 and isinstance(label.args[0], Sym):
        argument = label.args[1]
        named = label.args[0].name.rstrip("'") in _FUNCTION_NAMES | {"y"}
        if named and literal(argument) is not None:
            return "x" in names  # f(0) = x^2
        other = isinstance(argument, Op) and argument.head in ("neg", "mul", "add", "div", "pow")
        return named and other and bool(symbols(argument) & names)
    calls = any(isinstance(part, Op) and part.head == "apply" for part in walk(label))
    if label.head == "add":
        return any(isinstance(arg, Num) for arg in label.args) and (calls or names.isdisjoint(symbols(label)))
    if label.head in ("neg", "abs", "div", "pow"):
        return calls
    scaled = label.head == "mul" and isinstance(label.args[0], Num)
    return scaled and (calls or (len(label.args) == 2 and names.isdisjoint(symbols(label))))


def labelled(items: list[Node], labels: list[str]) -> list[Node]:
    """Return values with different labels in words as equations: Alice: 5, Bob: 3."""
    if len(set(labels)) < len(items) or "" in labels or any(isinstance(item, Rel) for item in items):
        return items
    return [Rel(("=",), (Sym(_IN_WORDS + label), item)) for item, label in zip(items, labels, strict=True)]


def in_part(label: str, value: Node) -> Node:
    """Return the answer to one part of a question, "(a) 5"."""
    if isinstance(value, Rel) and value.ops == ("=",) and is_name(value.sides[0]):
        value = value.sides[-1]
    return Rel(("=",), (Sym(f"{_IN_WORDS}part {label}"), value))


def without_other_labels(left: list[Node], right: list[Node]) -> tuple[list[Node], list[Node], bool]:
    """Return two lists without their labels in words, unless both have the same ones, and whether their order counts.

    It does where one side says which value is whose."""
    names, others = ([_label_in_words(node) for node in side] for side in (left, right))
    if (not any(names) and not any(others)) or set(names) == set(others):
        return left, right, False
    one = (all(names) and not any(others)) or (all(others) and not any(names))
    return [_unlabelled(node) for node in left], [_unlabelled(node) for node in right], one


def _label_in_words(node: Node) -> str:
    if isinstance(node, Rel) and isinstance(node.sides[0], Sym) and node.sides[0].name.startswith(_IN_WORDS):
        return node.sides[0].name
    return ""


def _unlabelled(node: Node) -> Node:
    return node.sides[1] if isinstance(node, Rel) and _label_in_words(node) else node


def is_other_argument(gold: Node, answer: Node) -> bool:
    """Whether two sides are values of one measure of different things: P(A) and P(B)."""
    if not isinstance(gold, Op) or not isinstance(answer, Op) or not (gold.head == answer.head == "mul"):
        return False
    measure = gold.args[0]
    two = len(gold.args) == len(answer.args) == 2
    return two and measure == answer.args[0] and measure in _OF_THINGS and gold.args[1] != answer.args[1]


_OF_THINGS = (Sym("P"), Sym("E"), Sym("N"), Sym("n"))


def distance(label: Node) -> Node:
    """Return the AB of |AB| and \\overline{AB}, the distance of two points, which has both names."""
    if isinstance(label, Op) and label.head == "abs" and isinstance(label.args[0], Op):
        points = label.args[0]
        if points.head == "mul" and len(points.args) == 2 and all(is_point_name(arg) for arg in points.args):
            return points
    if isinstance(label, Sym) and label.name.startswith(("overline ", "bar ")) and len(label.name.split()[1]) == 2:
        return Op("mul", tuple(map(Sym, label.name.split()[1])))
    return label


def is_point_name(node: Node) -> bool:
    """Whether a node is a capital letter."""
    return isinstance(node, Sym) and len(node.name) == 1 and node.name.isupper()


def _base(node: Node) -> Node:
    return node.args[0] if isinstance(node, Op) and node.head == "pow" else node


def is_derivative(node: Node) -> bool:
    """dy/dx or d^2y/dx^2, which parse as quotients of products."""
    if not isinstance(node, Op) or node.head != "div":
        return False
    return all(
        isinstance(part, Op)
        and part.head == "mul"
        and len(part.args) == 2
        and isinstance(letter := _base(part.args[0]), Sym)
        and letter.name in ("d", "partial")
        and is_name(_base(part.args[1]))
        for part in node.args
    )


def names_value(gold: Rel) -> bool:
    """Whether a reference is a value with a name before or behind it, so that the value alone answers it."""
    first, last = gold.sides[0], gold.sides[-1]
    return _names(first, last) or is_name(last)


def _names(label: Node, value: Node) -> bool:
    names = symbols(label)
    if is_name(label) or not names:
        return is_name(label) or not symbols(value)
    if not is_label(label) or not isinstance(label, Op):
        return False
    if names_coordinates(label):
        return _names_all_the_same(label, value)
    if label.head == "pow":
        return isinstance(label.args[0], Op)
    if label.head in ("mul", "()", "ratio", *_SETS) or is_derivative(label):
        return True
    return not symbols(value)


def _names_all_the_same(label: Op, value: Node) -> bool:
    """Whether names of coordinates only name a value all the same: y(x), |z|, tan x, dy/dx."""
    if is_derivative(label):
        return True
    if label.head == "mul" and len(label.args) == 2 and all(map(is_name, label.args)):
        function, variable = (symbols(arg) for arg in label.args)
        return variable <= symbols(value) and not function & symbols(value)
    modulus = label.head == "abs" and symbols(label) == {"z"}
    return (modulus or (label.head in _MEASURES and label.head != "abs")) and not symbols(value)
