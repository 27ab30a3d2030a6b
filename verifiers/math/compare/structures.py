"""Lists, sets, tuples, points, intervals, matrices, ratios and functions by cases, element by element.

Functions by cases: the line is cut at the ends of all conditions. Both sides must be defined on the same parts, and be
equal there: at a point by their values, on an interval as functions of a variable that runs through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..grammar.meaning import IN_WORDS, assignment, find_order, is_labelled, unknowns
from ..grammar.operands import OTHERWISE, member
from ..values.exact import rational
from ..values.numeric import is_integer, literal
from ..values.sets import (
    ALL,
    HIGHEST,
    LOWEST,
    TURNED,
    End,
    NotASet,
    Piece,
    between,
    intersection,
    real_set,
    same_real_set,
    signs,
)
from ..values.tree import (
    Node,
    Op,
    Quantity,
    Rel,
    Sym,
    TooLarge,
    Words,
    is_op,
    number,
    rename,
    substitute,
    symbols,
)
from .rules import Rules

_PARAMETER_NAMES = frozenset((*"tsrknmuc", "lambda", "mu"))  # of a point of a line, of triples (n, n, n)
NodeT = TypeVar("NodeT", bound=Node)
_Item = TypeVar("_Item")
LISTS = frozenset(("list", "either", "()"))


def by_names(items: tuple[NodeT, ...]) -> tuple[NodeT, ...]:
    """Return equations for x and y, a and b, x_1 and x_2 in the order of these names, other items as they are.

    A point has that order, (x, y) = (1, 2), whichever of y = 2, x = 1 is written first; m = 3, b = 1 have none.
    """
    names = [assignment(item)[0] for item in items]
    places = find_order(names)
    return tuple(items[names.index(name)] for name in sorted(names, key=places.__getitem__)) if places else items


def of_point(node: Node) -> tuple[Rel, ...]:
    """Return the equations of a point, x = 1 and y = 2 for (x, y) = (1, 2) or x = y = 2; none for another node."""
    if not isinstance(node, Rel) or set(node.ops) != {"="}:
        return ()
    *names, value = node.sides
    values = (value,) * len(names)
    if len(names) == 1 and isinstance(value, Op) and isinstance(names[0], Op) and names[0].head == value.head == "()":
        names, values = list(names[0].args), value.args
    elif len(names) == 1 or symbols(value):
        return ()
    if len(names) != len(values) or not all(isinstance(name, Sym) and symbols(name) for name in names):
        return ()
    return tuple(Rel(("=",), pair) for pair in zip(names, values, strict=True))


def under_name_of(gold: Op, answer: Op) -> tuple[Node, ...]:
    """Return points with one parameter with the name that the gold gives it, (t, 2t) for (s, 2s); () where none is."""
    names, others = symbols(gold), symbols(answer)
    if len(names) != 1 or len(others) != 1 or names == others or not names | others <= _PARAMETER_NAMES:
        return ()
    (name,), (other,) = names, others
    return tuple(rename(arg, other, Sym(name)) for arg in answer.args)


def in_parameter_of(gold: Node, answer: Node) -> Op | None:
    """Return x = 1 + s, y = s with the parameter of x = 1 + t, y = t; None where there is nothing to rename."""
    left, right = unknowns(gold), unknowns(answer)
    if left.keys() != right.keys() or len(left) < 2:
        return None
    values = under_name_of(Op("()", tuple(left.values())), Op("()", tuple(right.values())))
    return (
        Op("list", tuple(Rel(("=",), (Sym(name), value)) for name, value in zip(right, values, strict=True)))
        if values
        else None
    )


def is_of_roots(name: str) -> bool:
    """Whether a name is a coordinate's, or an eigenvalue's: those with numbers are roots in any order."""
    return name[0] in "xyzt" or name.startswith("lambda")


def without_numbers(left: list[Node], right: list[Node]) -> tuple[list[Node], list[Node]]:
    r"""Return lists of eigenvalues, \lambda_1 = 2, \lambda_2 = 3, as values: their numbers say nothing."""
    if not all(assignment(item)[0].startswith("lambda_") for item in left):
        return left, right
    named = [assignment(item) for item in right]
    plain = all(name == "" or name.startswith("lambda") for name, _ in named)
    return ([assignment(item)[1] for item in left], [value for _, value in named]) if plain else (left, right)


def confuses_unknowns(gold: Op, answer: Node) -> bool:
    """Whether an answer is no solution for several unknowns, or one where several for one are wanted.

    x = 1, 2 gives y no value, 1 or 2 says not whose value is which; (1, 2) is not x = 1 or x = 2, nor that (1, 2).
    """
    if not isinstance(answer, Op) or len(gold.args) < 2:
        return False
    if gold.head == "()":
        one = is_labelled(answer) and len(unknowns(answer)) == 1
        return one or (answer.head == "either" and not any(is_op(arg, "()") for arg in answer.args))
    named = [assignment(item)[0] for item in gold.args]
    bases = _bases(gold)
    if "" in bases:
        return is_half_labelled(gold) and is_labelled(answer) and len(_bases(answer)) > 1
    if len(bases) == 1:
        return len({*named}) == 1 and answer.head == "()"
    return is_half_labelled(answer) or (answer.head in ("either", "set") and "" in _bases(answer))


def is_half_labelled(node: Node) -> bool:
    """Whether a node is a list such as x = 1, 2, which gives one unknown values."""
    labels = [assignment(item)[0] for item in node.args] if is_op(node, "list") else []
    return labels[:1] > [""] and "" in labels


def _bases(node: Op) -> set[str]:
    return {assignment(item)[0].partition("_")[0] for item in node.args}


def without_other_labels(left: list[Node], right: list[Node]) -> tuple[list[Node], list[Node], bool]:
    """Drop labels in words (Alice: 5, Bob: 3) unless both lists have the same ones; return whether the order counts.

    It counts where only one side says whose each value is."""
    names, others = ([_label_in_words(node) for node in side] for side in (left, right))
    if (not any(names) and not any(others)) or set(names) == set(others):
        return left, right, False
    one = (all(names) and not any(others)) or (all(others) and not any(names))
    return [_without_label(node) for node in left], [_without_label(node) for node in right], one


def _label_in_words(node: Node) -> str:
    if isinstance(node, Rel) and isinstance(node.sides[0], Sym) and node.sides[0].name.startswith(IN_WORDS):
        return node.sides[0].name
    return ""


def _without_label(node: Node) -> Node:
    return node.sides[1] if isinstance(node, Rel) and _label_in_words(node) else node


def same_builders(gold: Op, answer: Node, rules: Rules) -> bool:
    """Whether two sets have the same element and conditions, under the names of the gold's variables."""
    if not is_op(answer, "such") or len(gold.args) != len(answer.args):
        return False
    wanted, given = _bound_names(gold), _bound_names(answer)
    if len(wanted) != len(given):
        return False
    names: dict[str, Node] = {old: Sym(new) for old, new in zip(given, wanted, strict=True)}
    shown = [substitute(part, names) for part in answer.args]
    if not rules.matches(gold.args[0], shown[0]):
        return False
    return _match_greedily(gold.args[1:], shown[1:], lambda one, other: _same_condition(one, other, rules))


def _match_greedily(left: Sequence[_Item], right: Sequence[_Item], same: Callable[[_Item, _Item], bool]) -> bool:
    """Whether each item has one of its own that is the same."""
    rest = list(right)
    for item in left:
        place = next((place for place, other in enumerate(rest) if same(item, other)), None)
        if place is None:
            return False
        del rest[place]
    return not rest


def _same_condition(gold: Node, answer: Node, rules: Rules) -> bool:
    if not isinstance(gold, Rel) or not isinstance(answer, Rel) or not (member(gold) or member(answer)):
        return rules.matches(gold, answer)
    return member(gold) == member(answer) and rules.matches(gold.sides[1], answer.sides[1])


def _bound_names(builder: Op) -> list[str]:
    """The variables of the memberships, else those of the element, in order."""
    return [name for name in map(member, builder.args[1:]) if name] or sorted(symbols(builder.args[0]))


MAX_ENDS = 40
_VARIABLE = Sym("inner variable")

_Case = tuple[Node, Node]  # value, condition


def same_piecewise(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether two functions are equal, at least one of which is given by cases."""
    gold, answer = without_parity(gold), without_parity(answer)
    if not is_op(gold, "piecewise") and not is_op(answer, "piecewise"):
        return rules.matches_value(gold, answer)
    left, right = _cases(gold), _cases(answer)
    names = frozenset(name for _, condition in left + right for name in symbols(condition))
    by_words = any(isinstance(c, Words) and c != OTHERWISE for _, c in left + right)
    if len(names) != 1 or by_words:
        return is_op(gold, "piecewise") and is_op(answer, "piecewise") and _same_cases(left, right, rules)
    (name,) = names
    try:
        gold_parts = [(value, _where(condition)) for value, condition in left]
        parts = [(value, _where(condition)) for value, condition in right]
    except NotASet:
        return is_op(gold, "piecewise") and is_op(answer, "piecewise") and _same_cases(left, right, rules)
    ends = _ends([pieces for _, pieces in gold_parts + parts])
    if len(ends) > MAX_ENDS:
        return False
    for end in ends:
        if not _same_at(_value_at(gold_parts, end.place), _value_at(parts, end.place), {name: end.node}, rules):
            return False
    for low, high in zip([LOWEST, *ends], [*ends, HIGHEST], strict=True):
        place = between(low.place, high.place)
        inside = {name: _running(low, high)}
        if not _same_at(_value_at(gold_parts, place), _value_at(parts, place), inside, rules):
            return False
    return True


def without_parity(node: Node) -> Node:
    """Return cases for even and for odd n as one expression with (-1)^n; another node as it is."""
    if not is_op(node, "piecewise") or len(cases := _cases(node)) != 2:
        return node
    first, second = (_parity(condition) for _, condition in cases)
    if first is None or (second is None and cases[1][1] != OTHERWISE) or (second is not None and second[0] != first[0]):
        return node
    name, odd = first
    if second is not None and second[1] == odd:
        return node
    even_value, odd_value = (cases[1][0], cases[0][0]) if odd else (cases[0][0], cases[1][0])
    sign = Op("pow", (Op("neg", (number(1),)), Sym(name)))
    total, difference = Op("add", (even_value, odd_value)), Op("add", (even_value, Op("neg", (odd_value,))))
    return Op("div", (Op("add", (total, Op("mul", (sign, difference)))), number(2)))


def _parity(condition: Node) -> tuple[str, bool] | None:
    r"""The variable of n even, n odd or n \equiv 1 \pmod 2, and whether it is odd."""
    if isinstance(condition, Words):
        name, _, word = condition.text.partition(" ")
        return (name, word == "odd") if len(name) == 1 and word in ("even", "odd") else None
    if not isinstance(condition, Rel) or condition.ops != ("=",):
        return None
    left, right = condition.sides
    if not isinstance(left, Sym) or not is_op(right, "mod") or right.args[1] != number(2):
        return None
    return (left.name, right.args[0] == number(1)) if right.args[0] in (number(0), number(1)) else None


def _cases(node: Node) -> list[_Case]:
    """The values and conditions, "otherwise" last; a function without cases has one that always holds."""
    if not is_op(node, "piecewise"):
        return [(node, OTHERWISE)]
    cases = [(case.args[0], case.args[1]) for case in node.args if isinstance(case, Op)]
    return sorted(cases, key=lambda case: case[1] == OTHERWISE)


def _where(condition: Node) -> list[Piece]:
    """The set of a condition. "Otherwise" is everywhere: the first case that holds counts."""
    return ALL if condition == OTHERWISE else real_set(condition)


def _ends(sets: list[list[Piece]]) -> list[End]:
    """The finite ends of the pieces, each place once, in order."""
    found = {end.place: end for pieces in sets for piece in pieces for end in piece if abs(end.place) != float("inf")}
    return [found[place] for place in sorted(found)]


def _value_at(parts: list[tuple[Node, list[Piece]]], place: float) -> Node | None:
    """The value of the first case that holds at a place; None where none does."""
    for value, pieces in parts:
        for low, high in pieces:
            above = low.place < place or (low.place == place and low.closed)
            if above and (place < high.place or (place == high.place and high.closed)):
                return value
    return None


def _running(low: End, high: End) -> Node:
    """An expression whose values are the points between two ends: low + t^2, high - t^2 or a mean of both."""
    square = Op("pow", (_VARIABLE, number(2)))
    below, above = low.place == float("-inf"), high.place == float("inf")
    if below and above:
        return _VARIABLE
    if above:
        return Op("add", (low.node, square))
    if below:
        return Op("add", (high.node, Op("neg", (square,))))
    share = Op("div", (square, Op("add", (number(1), square))))
    width = Op("add", (high.node, Op("neg", (low.node,))))
    return Op("add", (low.node, Op("mul", (width, share))))


def _same_at(gold: Node | None, answer: Node | None, values: dict[str, Node], rules: Rules) -> bool:
    if gold is None or answer is None:
        return gold is answer
    return gold == answer or rules.matches_value(substitute(gold, values), substitute(answer, values))


def _same_cases(left: list[_Case], right: list[_Case], rules: Rules) -> bool:
    """Whether the cases can be paired, by their conditions, of the same variables, and then their values."""

    def same_case(case: _Case, other: _Case) -> bool:
        (value, condition), (given, bound) = case, other
        named = symbols(bound) == symbols(condition)
        return named and rules.matches(condition, bound) and rules.matches(value, given)

    return _match_greedily(left, right, same_case)


MAX_UNORDERED = 64  # elements of a list that are matched pair by pair
_ORDERS = frozenset(("<", "<=", ">", ">=", "in"))
_SETS = frozenset(("union", "inter", "minus", "domain", "both", "[)", "(]"))


def _elements(node: Node) -> list[Node]:
    """The elements of a list or set, plus-minus written out."""
    parts = node.args if is_op(node, "list", "either", "set") else (node,)
    return [signed for part in parts for signed in signs(part)]


def _match_unordered(gold: Op, answer: Node, rules: Rules) -> bool:
    """Lists of solutions and sets: the same elements in any order."""
    head = answer.head if isinstance(answer, Op) else ""
    if "either" in (gold.head, head) or _are_inequalities(gold):
        verdict = _alternatives(gold, answer, rules)
        if verdict is not None:
            return verdict
    if head in ("()", "[]"):
        assert isinstance(answer, Op)
        if gold.head == "set":
            return head == "[]" and len(answer.args) > 2 and _match(_elements(gold), list(answer.args), rules)
        wanted = by_names(gold.args)
        return (head == "()" or len(answer.args) > 2) and (
            matches_in_order(wanted, answer.args, rules)
            or matches_in_order(wanted, under_name_of(Op("()", tuple(unknowns(gold).values())), answer), rules)
        )
    if head in _SETS or (gold.args and _excludes(gold, answer)):
        return real_sets(gold, answer, rules)
    if is_labelled(gold) and is_labelled(answer) and (renamed := in_parameter_of(gold, answer)) is not None:
        answer = renamed
    left, right, in_order = without_other_labels(*without_numbers(_elements(gold), _elements(answer)))
    if in_order or _assigns(gold, answer):
        return matches_in_order(tuple(left), tuple(right), rules)
    left, right = _drop_index(left, right), _drop_index(right, left)
    if "set" in (gold.head, head):
        left, right = _distinct(left), _distinct(right)
    return _match(left, right, rules)


def _assigns(gold: Op, answer: Node) -> bool:
    """Whether a gold says whose each value is, P = 5, Q = 6, and the answer is values only: they have that order."""
    if not isinstance(answer, Op) or len(gold.args) != len(answer.args):
        return False
    nouns = {part.unit.words for part in gold.args if isinstance(part, Quantity)}
    if len(nouns) == len(gold.args) and "" not in nouns:  # 5 apples, 6 pears
        return answer.head == "list" and not any(isinstance(part, Quantity) for part in answer.args)
    names = [part.sides[0] if isinstance(part, Rel) and part.ops == ("=",) else None for part in gold.args]
    if gold.head != "list" or len({*names}) < len(names) or len(names) < 2:
        return False
    if not all(isinstance(name, Sym) and not is_of_roots(name.name) for name in names):
        return False  # x_1 and x_2 are the roots of an equation
    return answer.head == "list" and not any(isinstance(part, Rel) for part in answer.args)


def _are_inequalities(gold: Op) -> bool:
    """Whether a list is of inequalities in several variables."""
    relations = [part for part in gold.args if isinstance(part, Rel) and set(part.ops) <= _ORDERS]
    return len(relations) == len(gold.args) > 1 and len(symbols(gold)) > 1


def _excludes(gold: Op, answer: Node) -> bool:
    r"""Whether a list says which values one variable has not: x \ne -1, 1."""
    first = gold.args[0]
    return isinstance(first, Rel) and "!=" in first.ops and len(symbols(gold)) == 1 and symbols(answer) <= symbols(gold)


def _alternatives(gold: Op, answer: Node, rules: Rules) -> bool | None:
    """Whether relations, some of them joined by "or", say the same; None where the joint makes no difference.

    x = 1 or y = 2 is not the point (1, 2), and x > 1 or x < 3 is not x > 1 and x < 3.
    """
    both = isinstance(answer, Op) and gold.head == answer.head
    relations = [part for node in (gold, answer) for part in _elements(node) if isinstance(part, Rel)]
    if not both and gold.head == "either" and _unknowns(gold) > 1:
        return False
    if not both and gold.head != "either" and _unknowns(answer) > 1:
        return False
    if not _are_inequalities(gold) and not any(op in TURNED and op != "=" for part in relations for op in part.ops):
        return None
    if max(len(symbols(gold)), len(symbols(answer))) > 1:
        if "either" in (gold.head, answer.head if isinstance(answer, Op) else ""):
            return both and _match_by_name(_elements(gold), _elements(answer), rules)
        try:
            return _same_systems(_by_name(gold), _by_name(answer), rules)
        except NotASet:
            return _match_by_name(_elements(gold), _elements(answer), rules) if _are_inequalities(gold) else None
    try:
        left, right = real_set(gold), real_set(answer)
    except NotASet:
        return None if both else False
    return same_real_set(left, right, rules.matches_value)


def _match_by_name(left: list[Node], right: list[Node], rules: Rules) -> bool:
    """Whether relations are equal in this order or another, each in the same variables."""
    return _match_greedily(left, right, lambda one, other: symbols(one) == symbols(other) and rules.matches(one, other))


def _drop_index(nodes: list[Node], others: list[Node]) -> list[Node]:
    """Return x_1 = 1, x_2 = 2 with the unknown x that the other list has: x = 1 or x = 2."""
    names = {part.sides[0].name if isinstance(part, Rel) and isinstance(part.sides[0], Sym) else "" for part in others}
    name = names.pop() if names else ""
    if names or not name or "_" in name:
        return nodes
    return [
        Rel(node.ops, (Sym(name), *node.sides[1:])) if isinstance(node, Rel) and _is_numbered(node, name) else node
        for node in nodes
    ]


def _is_numbered(relation: Rel, name: str) -> bool:
    first = relation.sides[0]
    base, mark, index = first.name.partition("_") if isinstance(first, Sym) else ("", "", "")
    return base == name and bool(mark) and set(index) <= set("0123456789,")


def _unknowns(node: Node) -> int:
    """The number of unknowns that the equations of a list are solved for."""
    return len({part.sides[0] for part in _elements(node) if isinstance(part, Rel) and isinstance(part.sides[0], Sym)})


def _distinct(nodes: list[Node]) -> list[Node]:
    return list(dict.fromkeys(nodes))


def _match(left: list[Node], right: list[Node], rules: Rules) -> bool:
    """Whether the elements can be paired. Equal keys are paired first, since that needs no comparison."""
    if len(left) != len(right):
        return False
    places: dict[object, list[int]] = {}
    for place, node in enumerate(right):
        places.setdefault(_key(node), []).append(place)
    rest = dict(enumerate(right))
    unmatched: list[Node] = []
    for node in left:
        same_key = places.get(_key(node))
        if same_key:
            del rest[same_key.pop()]
        else:
            unmatched.append(node)
    if len({_key(node) for node in right}) < len({_key(node) for node in left}):
        return False  # one value twice for two that are near it
    if len(unmatched) > MAX_UNORDERED:
        raise TooLarge(f"more than {MAX_UNORDERED} elements that differ in form")
    owners: dict[int, Node] = {}
    return all(_pair(node, rest, owners, set(), rules) for node in unmatched)


def _pair(node: Node, rest: dict[int, Node], owners: dict[int, Node], tried: set[int], rules: Rules) -> bool:
    """Give an element one that equals it; one that is taken where its owner can have another (Kuhn 1955)."""
    for place, other in rest.items():
        if (
            place in tried or is_op(node, "set") != is_op(other, "set") or not rules.matches(node, other)
        ):  # {2} is not 2
            continue
        tried.add(place)
        if place not in owners or _pair(owners[place], rest, owners, tried, rules):
            owners[place] = node
            return True
    return False


def _key(node: Node) -> object:
    """Equal keys mean equal nodes: the exact value, else the tree."""
    value = rational(node)
    return node if value is None else value


def matches_in_order(left: tuple[Node, ...], right: tuple[Node, ...], rules: Rules) -> bool:
    """Whether the elements are equal in this order."""
    return len(left) == len(right) and all(rules.matches(g, a) for g, a in zip(left, right, strict=True))


def _tuple(gold: Op, answer: Node, rules: Rules) -> bool:
    """Compare (a, b): a point, a vector or an open interval, depending on how the answer is written."""
    if is_half_labelled(answer):
        return False
    if is_op(answer, "set") and len(answer.args) == 1 and is_op(answer.args[0], "()"):
        return _tuple(gold, answer.args[0], rules)  # the set of this one solution
    if isinstance(answer, Op) and (answer.head in ("()", "list") or (answer.head == "[]" and len(answer.args) != 2)):
        found = by_names(answer.args)
        return (
            matches_in_order(gold.args, _drop_point_label(found), rules)
            or matches_in_order(gold.args, found, rules)
            or matches_in_order(_drop_point_label(gold.args), found, rules)
            or matches_in_order(gold.args, under_name_of(gold, answer), rules)
        )
    if is_op(answer, "matrix"):
        return _vector(answer) is not None and matches_in_order(gold.args, _vector(answer) or (), rules)
    return len(gold.args) == 2 and real_sets(gold, answer, rules)


def _drop_point_label(entries: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the coordinates of P(1, 2), whose label was distributed over the entries like a factor."""
    labels = {entry.args[0] if is_op(entry, "mul") else None for entry in entries}
    label = labels.pop()
    if labels or not isinstance(label, Sym) or not label.name[:1].isupper():
        return entries
    return tuple(entry.args[1] for entry in entries if isinstance(entry, Op) and len(entry.args) == 2)


def _brackets(gold: Op, answer: Node, rules: Rules) -> bool:
    """[a, b]: a closed interval or a list in square brackets."""
    if isinstance(answer, Op) and answer.head == gold.head:
        return matches_in_order(gold.args, answer.args, rules)
    if is_op(answer, "list", "set") and len(gold.args) != 2:
        return matches_in_order(gold.args, answer.args, rules)
    return len(gold.args) == 2 and real_sets(gold, answer, rules)


def real_sets(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether both are the same set of reals: intervals, unions, solved inequalities, finite sets."""
    try:
        if len(symbols(gold)) > 1 or len(symbols(answer)) > 1:
            return _same_systems(_by_name(gold), _by_name(answer), rules)
        return same_real_set(real_set(gold), real_set(answer), lambda g, a: rules.matches_value(g, a))
    except NotASet:
        return False


def _by_name(node: Node) -> dict[str, list[Piece]]:
    """The set of numbers that joint inequalities allow for each variable. Raise NotASet."""
    found: dict[str, list[Piece]] = {}
    for part in node.args if is_op(node, "list", "both", "set") else (node,):
        names = symbols(part)
        if not isinstance(part, Rel) or len(names) != 1:
            raise NotASet
        (name,) = names
        pieces = real_set(part)
        found[name] = intersection(found[name], pieces) if name in found else pieces
    return found


def _same_systems(gold: dict[str, list[Piece]], answer: dict[str, list[Piece]], rules: Rules) -> bool:
    return gold.keys() == answer.keys() and all(
        same_real_set(pieces, answer[name], rules.matches_value) for name, pieces in gold.items()
    )


def _vector(matrix: Op) -> tuple[Node, ...] | None:
    """The entries of a matrix of one column or one row."""
    rows = [row.args for row in matrix.args if isinstance(row, Op)]
    if len(rows) == 1:
        return rows[0]
    return tuple(row[0] for row in rows) if all(len(row) == 1 for row in rows) else None


def _matrix(gold: Op, answer: Node, rules: Rules) -> bool:
    if is_op(answer, "()"):
        return matches_in_order(_vector(gold) or (), answer.args, rules)
    if not is_op(answer, "matrix") or len(gold.args) != len(answer.args):
        return False
    return all(
        isinstance(g, Op) and isinstance(a, Op) and matches_in_order(g.args, a.args, rules)
        for g, a in zip(gold.args, answer.args, strict=True)
    )


def _match_based(gold: Op, answer: Node, rules: Rules) -> bool:
    """52_8: the same digits in the same base; the base may be left out."""
    if is_op(answer, "based"):
        return gold == answer
    return Words(digits_of(answer)) == gold.args[0]


def digits_of(node: Node) -> str:
    """Return the digits of an integer, with letters too (3A is read as a product), "" for anything else."""
    parts = node.args if is_op(node, "mul") else (node,)
    digits = ""
    for part in parts:
        written = literal(part)
        if isinstance(part, Sym) and len(part.name) == 1:
            digits += part.name.upper()
        elif written is not None and is_integer(written) and written.value >= 0:
            digits += str(written.value)
        else:
            return ""
    return digits


def _ratio(gold: Op, answer: Node, rules: Rules) -> bool:
    """a:b as a fraction, a:b:c up to a factor."""
    parts = answer.args if is_op(answer, "ratio") else None
    if parts is None:
        return len(gold.args) == 2 and rules.matches_value(Op("div", gold.args), answer)
    if len(parts) != len(gold.args):
        return False
    return all(
        rules.matches_value(Op("mul", (gold.args[0], other)), Op("mul", (parts[0], wanted)))
        for wanted, other in zip(gold.args[1:], parts[1:], strict=True)
    )


def is_reduced(residue: Op) -> bool:
    r"""Whether a residue may stand for its class: 3 \pmod 7 is 3, 10 \pmod 7 is not 10."""
    value, modulus = map(rational, residue.args)
    return value is not None and (modulus is None or abs(value) < modulus)


def _modular(gold: Op, answer: Node, rules: Rules) -> bool:
    """3 (mod 7): the same residue class; the modulus may be left out."""
    if not is_op(answer, "mod"):
        value, modulus, least = map(rational, (*gold.args, answer))
        if value is None or not modulus:
            return not symbols(gold.args[0]) and rules.matches(gold.args[0], answer)
        return least == value % modulus or (is_reduced(gold) and least == value)
    modulus, other = rational(gold.args[1]), rational(answer.args[1])
    left, right = rational(gold.args[0]), rational(answer.args[0])
    if modulus is None or not modulus or left is None or right is None:
        return matches_in_order(gold.args, answer.args, rules)
    return modulus == other and ((left - right) / modulus).denominator == 1


def _domain(gold: Op, answer: Node, rules: Rules) -> bool:
    return gold == answer or real_sets(gold, answer, rules)


def _plus_minus(gold: Op, answer: Node, rules: Rules) -> bool:
    return _match_unordered(Op("list", (gold,)), answer, rules)


def _of_sets(gold: Op, answer: Node, rules: Rules) -> bool:
    """Unions, intersections and differences of sets of reals, or of sets by name."""
    if isinstance(answer, Op) and answer.head == gold.head and _are_names(gold) and _are_names(answer):
        if gold.head == "minus":
            return matches_in_order(gold.args, answer.args, rules)
        return _match(_distinct(list(gold.args)), _distinct(list(answer.args)), rules)
    return real_sets(gold, answer, rules)


def _are_names(node: Op) -> bool:
    return any(isinstance(part, Sym) and symbols(part) for part in node.args)


STRUCTURES: dict[str, Callable[[Op, Node, Rules], bool]] = {
    "list": _match_unordered,
    "either": _match_unordered,
    "set": _match_unordered,
    "()": _tuple,
    "[]": _brackets,
    **dict.fromkeys(("[)", "(]", "both"), real_sets),
    **dict.fromkeys(("union", "inter", "minus"), _of_sets),
    "matrix": _matrix,
    "based": _match_based,
    "ratio": _ratio,
    "domain": _domain,
    "such": same_builders,
    "mod": _modular,
    "pm": _plus_minus,
    "mp": _plus_minus,
}
# Structures of an answer that are also compared with a gold without structure.
EITHER_SIDE = frozenset(("ratio", "set"))
