r"""Equations, chains of equalities, definitions and inequalities.

| text | read as |
|---|---|
| f(3) = 10, \|AB\| = 1, \sin A = 1/2 | a value with a name before it |
| x + y = 5, xy = 6 | a curve: coordinates name no value |
| f(x) = x^2 | a definition, whose variable may have another name |
| A = bh/2 = 6 | a chain, which gives its last value if it holds |
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import NamedTuple

from ..grammar.meaning import is_labelled
from ..grammar.vocabulary import FUNCTIONS
from ..values.exact import Inexact, Undefined
from ..values.identity import Undecided, proportional, same_value
from ..values.matrices import has_order
from ..values.numeric import approximates, literal
from ..values.sets import (
    TURNED,
    NotASet,
    real_set,
    same_real_set,
    same_up_to_factor,
    solution_set,
    solve_any,
)
from ..values.tree import (
    PI,
    Node,
    Num,
    Op,
    Rel,
    Sym,
    TooLarge,
    is_name,
    is_op,
    is_unevaluated,
    number,
    rename,
    replace_parts,
    substitute,
    subtract,
    symbols,
    walk,
)
from .forms import contradicts
from .parameters import same_class, same_solution
from .rules import Rules
from .structures import by_names, matches_in_order, of_point, real_sets

_DERIVATIVE = re.compile(r"(?:d|partial )(\d?)(.+)/(?:d|partial )(.+)")


def _use_primes(node: Rel, others: frozenset[str]) -> Rel:
    """The relation with the names of derivatives that the other one uses: V' for dV/dt."""
    values: dict[Node, Node] = {}
    for name in symbols(node):
        match = _DERIVATIVE.fullmatch(name)
        if match is None:
            continue
        order = int(match[1] or 1)
        if name.startswith("partial"):
            values |= {Sym(name): Sym(short) for short in (f"{match[2]}_{match[3] * order}",) if short in others}
            continue
        for short in (match[2] + "'" * order, f"{'d' * (order - 1)}dot {match[2]}"):
            if short in others and not any(other.partition("/")[0] == name.partition("/")[0] for other in others):
                values[Sym(name)] = Sym(short)
    return Rel(node.ops, tuple(replace_parts(side, values) for side in node.sides)) if values else node


_SETS = frozenset(("union", "inter", "minus"))
_PARTS = frozenset(("add", "mul", "apply", "div", "abs", "()", "neg", "max", "min")) | _SETS
_MEASURES = frozenset(FUNCTIONS.values()) - {"binom", "fact", "sqrt", "cbrt", "exp"} | {"logb"}
_FUNCTION_NAMES = frozenset("fghpFGHP")
_SOLVED_FOR = frozenset(("pow", "div", "ln", "log", "logb"))
_COORDINATES = frozenset("xyz")


def is_label(node: Node) -> bool:
    r"""Whether a side only names a quantity: x, f(x), f(2), P(X = 2), AB, BC^2, x + y, \tan A; not a polynomial."""
    if _is_call(node) or is_unevaluated(node):
        return True
    if is_to_be_solved(node):
        return False
    if is_op(node, "ratio", *_SETS):
        return all(is_label(arg) for arg in node.args)
    if is_op(node, *_MEASURES) and node.head not in _PARTS:
        return bool(symbols(node)) and all(_is_plain(arg) for arg in node.args)
    if is_op(node, "mul"):
        node = Op("mul", tuple(map(_base, node.args)))
    if is_op(node, "pow"):
        return is_label(node.args[0])
    if isinstance(node, Sym):
        return bool(symbols(node))
    if not is_op(node, *_PARTS) or not symbols(node):
        return False
    if node.head in ("add", "mul") and (PI in node.args or _has_twice(node)):
        return False
    if node.head == "add":
        return all(map(_is_term, node.args))
    return all(isinstance(part, Sym) or (is_op(part, *_PARTS)) for part in walk(node))


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
    if is_op(node, "neg"):
        node = node.args[0]
    if is_op(node, "pow") and isinstance(node.args[0], Sym):
        return node.args[0].name[0].isupper()  # x^2 + y^2 is a circle's
    if not is_op(node, "mul"):
        return is_label(node)
    first = _base(node.args[0])
    named = isinstance(first, Sym) and (first.name[0].isupper() or first.name.rstrip("'") in _FUNCTION_NAMES)
    return named and is_label(node)


def _is_plain(node: Node) -> bool:
    r"""Whether the argument of a function is of names and numbers: \cos 2A, \sin(A + B)."""
    return literal(node) is not None or all(
        isinstance(part, Sym) or literal(part) is not None or (is_op(part, *_PARTS)) for part in walk(node)
    )


def _is_call(node: Node) -> bool:
    """f(2), f(-1) or P(X = 2), which parse as products: a name, then a number or a relation."""
    if not is_op(node, "mul", "apply") or len(node.args) != 2 or not is_name(node.args[0]):
        return False
    argument = node.args[1]
    inner = is_op(argument, "apply")
    return literal(argument) is not None or isinstance(argument, Rel) or inner


def is_function_value(node: Node) -> bool:
    """Whether a side is f(2) or g(-1): what another function or argument gives is another statement."""
    if not _is_call(node) or not isinstance(node, Op) or not isinstance(node.args[0], Sym):
        return False
    return node.args[0].name.rstrip("'") in _FUNCTION_NAMES


def names_other_function(label: Node, value: Node) -> bool:
    """Whether an equation gives another function than its value may be sought as: f(-x), f(x + 1), 2y, |f(x)|."""
    names = symbols(value)
    if not names or not isinstance(label, Op):
        return False
    if label.head == "mul" and len(label.args) == 2 and isinstance(label.args[0], Sym):
        argument = label.args[1]
        named = label.args[0].name.rstrip("'") in _FUNCTION_NAMES | {"y"}
        if named and literal(argument) is not None:
            return "x" in names  # f(0) = x^2
        other = is_op(argument, "neg", "mul", "add", "div", "pow")
        return named and other and bool(symbols(argument) & names)
    calls = any(is_op(part, "apply") for part in walk(label))
    if label.head == "add":
        return any(isinstance(arg, Num) for arg in label.args) and (calls or names.isdisjoint(symbols(label)))
    if label.head in ("neg", "abs", "div", "pow"):
        return calls
    scaled = label.head == "mul" and isinstance(label.args[0], Num)
    return scaled and (calls or (len(label.args) == 2 and names.isdisjoint(symbols(label))))


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
    if is_op(label, "abs") and isinstance(label.args[0], Op):
        points = label.args[0]
        if points.head == "mul" and len(points.args) == 2 and all(is_point_name(arg) for arg in points.args):
            return points
    if isinstance(label, Sym) and label.name.startswith("overline ") and len(label.name.split()[1]) == 2:
        return Op("mul", tuple(map(Sym, label.name.split()[1])))
    return label


def is_point_name(node: Node) -> bool:
    """Whether a node is a capital letter."""
    return isinstance(node, Sym) and len(node.name) == 1 and node.name.isupper()


def _base(node: Node) -> Node:
    return node.args[0] if is_op(node, "pow") else node


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
    if label.head in ("mul", "()", "ratio", *_SETS):
        return True
    return not symbols(value)


def _names_all_the_same(label: Op, value: Node) -> bool:
    """Whether names of coordinates only name a value all the same: y(x), |z|, tan x."""
    if label.head == "mul" and len(label.args) == 2 and all(map(is_name, label.args)):
        function, variable = (symbols(arg) for arg in label.args)
        return variable <= symbols(value) and not function & symbols(value)
    modulus = label.head == "abs" and symbols(label) == {"z"}
    return (modulus or (label.head in _MEASURES and label.head != "abs")) and not symbols(value)


_FUNCTIONS = frozenset("fghyFGHP")
_INVERSE = Op("neg", (number(1),))


_LEIBNIZ = re.compile(r"d(\d?)([fghyFGH])/d([a-z])")


class _Definition(NamedTuple):
    """f'(x) = value: the function f, what is said of it ("'", "''" or "-1"), its variables and the value."""

    name: str
    mark: str
    names: tuple[str, ...]
    value: Node


def _definition(chain: Rel) -> _Definition | None:
    """The definition that f(x) = value, f^{-1}(x) = value, dy/dx = value or y = value is."""
    left, value = chain.sides[0], chain.sides[-1]
    if len(chain.sides) != 2:
        return None
    if isinstance(left, Sym) and (derivative := _LEIBNIZ.fullmatch(left.name)):
        return _Definition(derivative[2], "'" * int(derivative[1] or 1), (), value)
    if isinstance(left, Sym):
        name = left.name.rstrip("'")
        bare = name in _FUNCTIONS if name != left.name else name == "y"
        return _Definition(name, left.name[len(name) :], (), value) if bare and name not in symbols(value) else None
    if not is_op(left, "mul") or len(left.args) != 2:
        return None
    function, argument = left.args
    mark = ""
    if is_op(function, "pow") and function.args[1] == _INVERSE:
        function, mark = function.args[0], "-1"
    variables = argument.args if is_op(argument, "()") else (argument,)
    names = tuple(part.name for part in variables if isinstance(part, Sym))
    if not isinstance(function, Sym) or len(set(names)) != len(variables):
        return None
    name = function.name.rstrip("'")
    return _Definition(name, mark or function.name[len(name) :], names, value) if name in _FUNCTIONS else None


def is_identity(chain: Rel) -> bool:
    """Whether a chain is f(x) = x, or another function that is one of its variables."""
    found = _definition(chain)
    return found is not None and isinstance(found.value, Sym) and found.value.name in found.names


def same_definition(gold: Rel, answer: Rel, rules: Rules) -> bool:
    """Whether both define one function: f(x) = x^2 and f(t) = t^2, or y = x^2; f(x, y) = xy and f(u, v) = uv.

    f'(x) = 2x is f'(t) = 2t, y' = 2x and dy/dx = 2x; f^{-1}(x) is y only.
    """
    left, right = _definition(gold), _definition(answer)
    if left is None or right is None or not (left.names or right.names):
        return False
    if left.mark != right.mark and {left.mark, right.mark} != {"", "-1"}:
        return False
    if left.mark != right.mark and (left.names and right.names):
        return False  # f(x) and f^{-1}(x)
    if left.name != right.name and "y" not in (left.name, right.name):
        return False
    value = right.value
    if left.names and right.names:
        if left.name != right.name or len(left.names) != len(right.names):
            return False
        if left.names != right.names:
            if not symbols(value).isdisjoint(left.names):
                return False
            for name, other in zip(left.names, right.names, strict=True):
                value = substitute(value, {other: Sym(name)})
    return rules.matches(left.value, value)


def rename_index(gold: Rel, answer: Rel) -> Rel | None:
    """Return a_k = 2k + 1 with the index of a_n = 2n + 1; None where there is nothing to rename."""
    first, second = gold.sides[0], answer.sides[0]
    if not isinstance(first, Sym) or not isinstance(second, Sym) or "_" not in first.name or first == second:
        return None
    (name, _, index), (other, _, old) = first.name.partition("_"), second.name.partition("_")
    if name != other or not (len(index) == len(old) == 1 and index.isalpha() and old.isalpha()):
        return None
    if old in symbols(gold) or index in symbols(answer):
        return None
    return Rel(answer.ops, tuple(rename(side, old, Sym(index)) for side in answer.sides))


def chain_value(chain: Rel, rules: Rules, decimal: bool = False) -> Node | None:
    """Return the value that a chain of equalities gives: 5 for `x = 5` and `2 + 3 = 5`, 6 for `A = \\frac12 b h = 6`.

    `decimal`: take the decimal after an approximation sign. None where the chain contradicts itself (5 = 6), is a
    tautology (x = x), or an equation to be solved (2x = 10).
    """
    if is_identity(chain):
        return chain.sides[-1]
    sides, ops = list(chain.sides), list(chain.ops)
    if not _may_hold(chain) or any(contradicts(side, sides[-1], rules) for side in sides[:-1] if is_unevaluated(side)):
        return None
    named: frozenset[str] = frozenset()
    if len(sides) > 1 and is_label(sides[0]) and not is_name(sides[-1]):
        named = symbols(sides[0])
        del sides[0], ops[0]
    elif len(sides) > 1 and is_name(sides[-1]) and not is_name(sides[0]):
        del sides[-1], ops[-1]
    kept = sides[:1]
    for op, side in zip(ops, sides[1:], strict=True):
        if op == "~":
            if not literal(side) and approximates(side, kept[-1]):  # 1.414 \approx \sqrt{2}
                kept[-1] = kept[-1] if decimal else side
                continue
            if not approximates(kept[-1], side):
                return None
            if not decimal:
                break
        kept.append(side)
    while (
        len(kept) > 1
        and is_unevaluated(kept[-1])
        and not is_unevaluated(kept[-2])
        and symbols(kept[-2]) <= symbols(kept[-1])
    ):
        if contradicts(kept[-1], kept[-2], rules):
            return None
        del kept[-1]  # what restates the value: \frac{1}{1-x} = \sum x^n
    value = kept[-1]
    for side in kept[:-1]:
        if is_unevaluated(side):
            continue
        if symbols(value) and symbols(value).isdisjoint(symbols(side)) and symbols(side) and is_to_be_solved(side):
            return None
        if symbols(side) and not symbols(value):
            if not is_label(side) and not (named and named.isdisjoint(symbols(side))):
                return None
        elif is_op(value, "mod"):
            continue  # 3^{100} = 4 (mod 7), which need not be computed
        elif (
            not symbols(side)
            and not symbols(value)
            and not (rules.matches(side, value) or _rounded_decimal(side, value))
        ):
            return None
    return None if len(kept) > 1 and kept[0] == value and symbols(value) else value


def _may_hold(chain: Rel) -> bool:
    """Whether no side contradicts the last one: a formula in the same variables, as in x - 1 = x + 1, must be equal."""
    value = chain.sides[-1]
    names = symbols(value)
    if not names or is_name(value):
        return True
    for side in chain.sides[:-1]:
        if symbols(side) and symbols(side) <= names and isinstance(side, (Sym, Op)) and side != value:
            try:
                if not same_value(side, value):
                    return False
            except (Inexact, Undefined, Undecided, TooLarge):
                continue
    return True


def _rounded_decimal(side: Node, value: Node) -> bool:
    written = literal(value)
    return written is not None and bool(written.places) and approximates(side, value)


MAX_SIDES = 6  # of a chain whose sides are compared with each other
_EQUAL = frozenset("=~")
_INTERVALS = frozenset(("()", "[]", "[)", "(]", "union", "inter", "minus", "domain", "set", "list", "either", "both"))


def relations(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether gold and answer agree, at least one of which is a relation."""
    if (verdict := _points(gold, answer, rules)) is not None:
        return verdict
    if isinstance(gold, Rel) and isinstance(answer, Rel):
        gold, answer = _use_primes(gold, symbols(answer)), _use_primes(answer, symbols(gold))
        return _both_relations(gold, answer, rules)
    if isinstance(answer, Rel):
        if set(answer.ops) <= _EQUAL and _has_modulus(answer) and is_name(answer.sides[0]) and symbols(gold):
            family = rules.declared or PI in walk(gold)  # 2n + 1 alone is a formula
            return family and rules.shifted and same_class(gold, answer.sides[-1])
        if set(answer.ops) <= _EQUAL:
            written = literal(gold)
            value = chain_value(answer, rules, decimal=written is not None and bool(written.places))
            if value is not None and names_other_function(answer.sides[0], value):
                return False
            return value is not None and rules.matches(gold, value)
        if answer.ops == ("in",) and _is_unknown(answer):
            return rules.matches(gold, answer.sides[1])
        return is_op(gold, *_INTERVALS) and real_sets(gold, answer, rules)
    assert isinstance(gold, Rel)
    if set(gold.ops) <= _EQUAL:
        if _has_modulus(gold) and is_name(gold.sides[0]) and not _is_residue(answer):
            return rules.shifted and same_class(gold.sides[-1], answer)  # n = 1 (mod 7) is more than 1
        ends = gold.sides[0], gold.sides[-1]
        named = names_value(gold) or _has_modulus(gold) or any(_is_point(end) or is_unevaluated(end) for end in ends)
        if not (named or _holds(gold, rules)):
            return False
        value = chain_value(gold, rules)
        return value is not None and rules.matches(value, answer)
    if gold.ops == ("in",):
        return rules.matches(gold.sides[1], answer)
    return isinstance(answer, Op) and (real_sets(gold, answer, rules) or _same_solutions(gold, answer, rules))


def _points(gold: Node, answer: Node, rules: Rules) -> bool | None:
    """Whether both give one point: (x, y) = (2, 2), x = y = 2, or x = 2 and y = 2. None where neither gives one."""
    wanted, found = of_point(gold), of_point(answer)
    if wanted and found:
        alike = {item.sides[0] for item in wanted} == {item.sides[0] for item in found}
        return rules.matches(Op("list", wanted), Op("list", found)) if alike else None
    if wanted and is_labelled(answer):
        return rules.matches(Op("list", wanted), answer)
    if wanted and is_op(answer, "()"):
        return rules.matches(Op("()", tuple(item.sides[1] for item in by_names(wanted))), answer)
    return rules.matches(gold, Op("list", found)) if found and (is_op(gold, "()") or is_labelled(gold)) else None


def _is_unknown(relation: Rel) -> bool:
    r"""Whether what is said to be in a set is sought itself: x \in A, (x, y) \in A, f(x) \in A; not 2x \in A."""
    side = relation.sides[0]
    return relation.ops != ("in",) or isinstance(side, Sym) or is_op(side, "apply") or _is_point(side)


def _is_point(node: Node) -> bool:
    """(x, y), a point without coordinates."""
    return is_op(node, "()") and all(map(is_name, node.args))


def _holds(chain: Rel, rules: Rules) -> bool:
    """Whether all sides are equal: (-2a)^3 = -8a^3 is solved, whatever it is that it solves."""
    return all(rules.matches(left, right) for left, right in itertools.pairwise(chain.sides))


def _both_relations(gold: Rel, answer: Rel, rules: Rules) -> bool:
    if set(gold.ops) <= _EQUAL and set(answer.ops) <= _EQUAL:
        return _equations(gold, answer, rules)
    if gold.ops == ("in",) or answer.ops == ("in",):
        if gold.sides[0] != answer.sides[0] and not (_is_unknown(gold) and _is_unknown(answer)):
            return False
        left, right = (node.sides[1] if node.ops == ("in",) else node for node in (gold, answer))
        return rules.matches(left, right)
    if (
        gold.ops == answer.ops
        and any(symbols(side) for side in gold.sides)
        and matches_in_order(gold.sides, answer.sides, rules)
    ):
        return True
    turned = Rel(tuple(TURNED.get(op, op) for op in reversed(answer.ops)), answer.sides[::-1])
    if gold.ops == turned.ops and matches_in_order(gold.sides, turned.sides, rules):
        return True
    try:
        real_set(gold)
    except NotASet:
        if len(gold.ops) == 1 == len(answer.ops) and same_up_to_factor(gold, answer):
            return True
        return _same_solutions(gold, answer, rules)
    # A solved gold needs a solved answer, not the inequality to be solved.
    return real_sets(gold, answer, rules)


def _same_solutions(gold: Rel, answer: Node, rules: Rules) -> bool:
    """Whether an unsolved gold, |x - 2| < 3 or x^2 < 4, has the solutions that the answer gives."""
    try:
        wanted = solution_set(gold)
        found = solve_any(answer)
    except NotASet:
        return False
    names = symbols(gold), symbols(answer)
    if isinstance(answer, Rel) and answer.ops != ("in",) and names[0] != names[1]:
        return False
    return same_real_set(wanted, found, rules.matches_value)


def _equations(gold: Rel, answer: Rel, rules: Rules) -> bool:
    """Whether equations agree: x = 5 and x = 5, y = f(x) and its rearrangements."""
    if gold == answer:
        return True
    if _has_modulus(gold) != _has_modulus(answer):
        (name, *_, value), (label, *_, residue) = gold.sides, answer.sides
        if name != label or not rules.shifted or symbols(name) & (symbols(value) | symbols(residue)):
            return False
        return same_class(value, residue)
    # Arbitrary constants and parameters depend on the unknown: `same_solution` and `Rules.same` look for them.
    given = replace(rules.within, shifted=rules.declared and rules.shifted)
    two = len(gold.sides) == len(answer.sides) == 2
    named = two and is_label(gold.sides[0]) and distance(gold.sides[0]) == distance(answer.sides[0])
    if named and given.matches(gold.sides[1], answer.sides[1]):
        return not has_order(subtract(gold.sides[0], gold.sides[-1])) or _same_equation(
            subtract(gold.sides[0], gold.sides[-1]), subtract(answer.sides[0], answer.sides[-1]), rules
        )
    if _is_other_call(gold.sides[0], answer.sides[0]):
        return False
    if is_other_argument(gold.sides[0], answer.sides[0]) and not symbols(gold.sides[-1]):
        return False
    if (
        two
        and _name_without_hat(gold.sides[0]) == _name_without_hat(answer.sides[0]) != ""
        and given.matches(gold.sides[1], answer.sides[1])
    ):
        return True
    if two and is_function_value(gold.sides[0]) and gold.sides[0] == answer.sides[0]:
        return False
    if is_function_value(gold.sides[0]) and gold.sides[0] not in (answer.sides[0], answer.sides[-1]):
        return False
    if (other := rename_index(gold, answer)) is not None:
        return given.matches(gold, other)
    if same_definition(gold, answer, given):
        return True
    if rules.whole and same_solution(gold, answer, rules.matches):
        return True
    if max(len(gold.sides), len(answer.sides)) > 2 and {*gold.ops, *answer.ops} == {"="}:
        return _same_chain(gold, answer, rules)
    if _is_value(gold) and not _is_value(answer):
        return False
    if not _is_solved(gold) or not _is_solved(answer):
        if len(gold.sides) == len(answer.sides) == 2:
            return _same_equation(
                subtract(gold.sides[0], gold.sides[-1]), subtract(answer.sides[0], answer.sides[-1]), rules
            )
    elif gold.sides[0] != answer.sides[0]:
        return False
    left, right = chain_value(gold, rules), chain_value(answer, rules)
    return left is not None and right is not None and rules.matches(left, right)


def _is_other_call(gold: Node, answer: Node) -> bool:
    """Whether two sides are a function of a variable and of another expression in it: f(x) and f(-x)."""
    if not isinstance(gold, Op) or not isinstance(answer, Op) or not (gold.head == answer.head == "mul"):
        return False
    if len(gold.args) != 2 or len(answer.args) != 2 or gold.args[0] != answer.args[0] or not is_name(gold.args[0]):
        return False
    return is_name(gold.args[1]) and isinstance(answer.args[1], Op) and symbols(gold.args[1]) <= symbols(answer.args[1])


def _has_modulus(chain: Rel) -> bool:
    return any(is_op(side, "mod") for side in chain.sides)


def _is_residue(node: Node) -> bool:
    return isinstance(node, Op) and (node.head == "mod" or any(map(_is_residue, node.args)))


def _name_without_hat(side: Node) -> str:
    """The y of \\hat{y} = ... and of y = ..."""
    return side.name.removeprefix("hat ") if isinstance(side, Sym) and symbols(side) else ""


def _same_chain(gold: Rel, answer: Rel, rules: Rules) -> bool:
    """Whether chains of equalities say the same: the same names with one value, or the same expressions.

    A side may be left out that leads from a name to its value, A in A = bh/2 = 6k; not one of x/2 = y/3 = z/4.
    """
    if _same_line(gold, answer):
        return True
    if _names_in_chain(gold) != _names_in_chain(answer):
        return False
    value, other = gold.sides[-1], answer.sides[-1]
    if not symbols(value) or not symbols(other):
        left, right = chain_value(gold, rules), chain_value(answer, rules)
        if left is not None and right is not None:
            return rules.matches(left, right)
    if max(len(gold.sides), len(answer.sides)) > MAX_SIDES:
        return matches_in_order(gold.sides, answer.sides, rules)
    shown, wanted = _distinct(answer, rules), _distinct(gold, rules)
    steps = _steps(gold)
    return all(any(rules.matches(side, one) for one in wanted) for side in shown) and all(
        any(rules.matches(side, one) for one in shown) for side in wanted if side not in steps
    )


def _steps(chain: Rel) -> tuple[Node, ...]:
    """The sides between a name, which is no coordinate, and its value."""
    first, *between, _ = chain.sides
    if not is_label(first) or names_coordinates(first):
        return ()
    return tuple(side for side in between if not is_label(side))


def _same_line(gold: Rel, answer: Rel) -> bool:
    """Whether the sides of chains, with symbols each, differ by one constant factor: (x - 1)/2 = y and 1 - x = -2y."""
    if not 2 < len(gold.sides) == len(answer.sides) or not all(map(symbols, (*gold.sides, *answer.sides))):
        return False
    (first, *rest), (other, *others) = gold.sides, answer.sides
    try:
        return proportional(first, other) and all(
            same_value(Op("mul", (left, other)), Op("mul", (first, right)))
            for left, right in zip(rest, others, strict=True)
        )
    except (Inexact, Undefined, Undecided):
        return False


def _names_in_chain(chain: Rel) -> frozenset[str]:
    return frozenset(side.name for side in chain.sides if isinstance(side, Sym) and symbols(side))


def _distinct(chain: Rel, rules: Rules) -> list[Node]:
    """The sides of a chain without those that equal an earlier one."""
    kept: list[Node] = []
    for side in chain.sides:
        if not any(rules.matches(side, one) for one in kept):
            kept.append(side)
    return kept


def _is_value(chain: Rel) -> bool:
    """x = 5 or 5 = x, not 2x = 10: a variable at one end and nowhere else."""
    at_ends = is_name(chain.sides[0]) or is_name(chain.sides[-1])
    return at_ends and sum(isinstance(node, Sym) and bool(symbols(node)) for node in walk(chain)) == 1


def _is_solved(chain: Rel) -> bool:
    """x = 5: a variable and its value."""
    return is_name(chain.sides[0]) and len(symbols(chain)) == 1


def _same_equation(gold: Op, answer: Op, rules: Rules) -> bool:
    """Whether left minus right differ by a constant factor, or by the denominators that were cleared."""
    try:
        if not has_order(gold):
            return proportional(gold, answer)
    except (Inexact, Undefined):
        pass
    values = rules.within.matches_value  # whose letters are no arbitrary constants
    return not values(answer, number(0)) and (values(gold, answer) or values(gold, Op("neg", (answer,))))
