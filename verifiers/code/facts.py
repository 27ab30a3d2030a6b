"""What the proof of strength knows: of values (containers, who made them, who holds them) and of Python.

Of Python it knows which functions, methods and modules only compute, and which change their first argument.
"""

from __future__ import annotations

import ast
import builtins
import cmath
import itertools
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from rlvr.sandbox.testcode.instrument import called_name

LITERAL = "[]"
Key = tuple[int, str]  # a variable: the number of its scope, its name
Kind = Literal["own", "answer", "object", "lazy"]


class NotProved(Exception):
    """The reason why test code is not proved to be strong."""


@dataclass(frozen=True)
class Value:
    """A value of the test code, as far as it is known.

    places: the numbers of the containers that it may be. A value without places cannot be changed: a number, a text, a
    tuple of these. answer: it was computed from an answer of the program. text: the literal of a number or text,
    LITERAL of a container; if it is not known "?", or "?n" for a number or text; "?r" and "?rn" if it was drawn at
    random.
    """

    places: frozenset[int] = frozenset()
    answer: bool = False
    text: str = ""


@dataclass(frozen=True)
class Container:
    """One container.

    kind: "own": made by the tests; "lazy": an iterator of the tests; "answer": whatever the program has
    returned; "object": it stays with the program. made: how many calls of the program there were before. parts: the
    containers in it. passed: the number of the call to which an own one was last passed. literal: nothing else can hold
    its parts. exact: its items are its parts, and other values without containers. items: the containers in each item,
    if they are known one by one. reads: what an iterator will read. delayed: it computes when it is read.
    """

    kind: Kind
    made: int
    parts: frozenset[int] = frozenset()
    passed: int = 0
    literal: bool = False
    exact: bool = False
    items: tuple[frozenset[int], ...] = ()
    reads: frozenset[int] = frozenset()
    delayed: bool = False


@dataclass
class State:
    """The variables and containers at one place in the code, and how often the program was called so far."""

    variables: dict[Key, Value] = field(default_factory=dict)
    containers: dict[int, Container] = field(default_factory=dict)
    calls: int = 0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def copy(self) -> State:
        """Return an independent copy. It shares the numbering, so no number of a container is used twice."""
        return State(dict(self.variables), dict(self.containers), self.calls, self.numbers)

    def join(self, other: State) -> None:
        """Merge the other state into this one: what holds at a place that is reached in either state."""
        for key, value in other.variables.items():
            mine = self.variables.get(key)
            self.variables[key] = value if mine is None else either(mine, value)
        for number, theirs in other.containers.items():
            ours = self.containers.get(number, theirs)
            self.containers[number] = replace(
                ours,
                parts=ours.parts | theirs.parts,
                passed=max(ours.passed, theirs.passed),
                literal=ours.literal and theirs.literal,
                exact=ours.exact and theirs.exact,
                items=ours.items if ours.items == theirs.items else (),
            )
        self.calls = max(self.calls, other.calls)

    def make(self, kind: Kind, parts: Iterable[int] = (), **more: Any) -> frozenset[int]:
        """Make a container and return its place."""
        number = next(self.numbers)
        self.containers[number] = Container(kind, self.calls, frozenset(parts), **more)
        return frozenset((number,))

    def make_unknown(self, parts: Iterable[int] = ()) -> frozenset[int]:
        """Make a container whose depth is not known: what is taken out of it may be it, or any of its parts."""
        (number,) = found = self.make("own", parts)
        self.containers[number] = replace(self.containers[number], parts=self.containers[number].parts | found)
        return found

    def reach(self, places: Iterable[int]) -> set[int]:
        """Return containers together with all that they hold, directly or through others."""
        found: set[int] = set()
        left = list(places)
        while left:
            place = left.pop()
            if place not in found:
                found.add(place)
                left += self.containers[place].parts | self.containers[place].reads
        return found

    def parts(self, value: Value) -> frozenset[int]:
        """Return the containers that may be taken out of a value. A part of an answer counts as the answer."""
        found: set[int] = set()
        for place in value.places:
            container = self.containers[place]
            found |= {place} if container.kind == "answer" else container.parts
        return frozenset(found)

    def parts_at(self, value: Value, number: int, count: int = 0) -> frozenset[int]:
        """Return the containers that may be taken out of a value as its item of this number, of `count` (0: of any)."""
        items = [self.containers[place].items for place in value.places]
        known = all(0 <= number < len(each) and count in (0, len(each)) for each in items)
        return frozenset().union(*(each[number] for each in items)) if known else self.parts(value)

    def kinds(self, places: Iterable[int]) -> set[Kind]:
        """Return the kinds of containers."""
        return {self.containers[place].kind for place in places}

    def forget(self, others: Iterable[Value]) -> None:
        """Drop the containers that neither variables nor the other values hold."""
        held = self.reach(place for value in (*self.variables.values(), *others) for place in value.places)
        self.containers = {place: self.containers[place] for place in held}

    def holders(self, place: int) -> int:
        """Return how many variables and containers hold a container."""
        held = [value.places for value in self.variables.values()]
        return sum(place in places for places in (*held, *(each.parts for each in self.containers.values())))


def is_scalar(value: Value) -> bool:
    """Whether a value is known to be a number, text or None."""
    return not value.places and (value.text[:1] not in "?({[" or value.text.startswith(("?n", "?rn")))


def unknown(*parts: Value) -> str:
    """Return the text of what is made of values, and not known."""
    return "?r" if any("?r" in part.text for part in parts) else "?"


def either(one: Value, other: Value) -> Value:
    """Return the value that may be either of two."""
    text = unknown(one, other) + "n" * (is_scalar(one) and is_scalar(other))
    text = one.text if one.text == other.text else text
    return Value(one.places | other.places, one.answer or other.answer, text)


# What tests may use of modules. Whatever else they use makes them weak: it may take functions, keep its arguments, or
# change what the program shares.
MODULES = {
    "cmath": frozenset(name for name in dir(cmath) if name[0] != "_") - {"nan", "nanj"},
    "collections": frozenset(("Counter", "deque")),
    "copy": frozenset(("copy", "deepcopy")),
    "datetime": frozenset(("date", "datetime", "timedelta")),
    "decimal": frozenset(("Decimal",)),
    "fractions": frozenset(("Fraction",)),
    "math": frozenset(name for name in dir(math) if name[0] != "_") - {"nan"},
    "pytest": frozenset(("approx", "raises")),
    "random": frozenset("choice choices gauss getrandbits randint random randrange sample shuffle uniform".split()),
    "string": frozenset("ascii_letters ascii_lowercase ascii_uppercase digits hexdigits punctuation".split()),
    "sys": frozenset(("maxsize",)),
    "typing": frozenset[str](),
}
CHANGING = frozenset(
    "add append appendleft clear difference_update discard extend extendleft insert intersection_update move_to_end "
    "pop popitem popleft remove reverse rotate setdefault sort subtract symmetric_difference_update update".split()
)
_KINDS: tuple[Any, ...] = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, deque, Counter, range)
_KINDS += (Fraction, Decimal, date, datetime, timedelta)
METHODS = frozenset(name for kind in _KINDS for name in dir(kind) if name[0] != "_") - CHANGING
# A time of the program has the offset of its zone, but not its name and rules.
# Those of the second line change an array, or put their result into one.
METHODS -= frozenset("astimezone dst tzname".split())
METHODS -= frozenset("conjugate partition rpartition".split())
# Methods of arrays, which are answers; their arguments could be places for the result.
ARRAY_METHODS = frozenset("all any sum tolist".split())
ATTRIBUTES = frozenset(
    "real imag numerator denominator shape size ndim dtype year month day hour minute second days seconds args".split()
)
TYPES = frozenset("bool int float complex str bytes list tuple dict set frozenset range".split())
FUNCTIONS = TYPES | frozenset(
    "abs all any ascii bin chr divmod enumerate filter format hash hex isinstance len map max min oct ord pow print "
    "repr reversed round sorted sum type zip".split()
)
EXCEPTIONS = frozenset(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
) - {"StopIteration", "StopAsyncIteration"}
# These return what cannot be passed to the program.
ITERATORS = frozenset("map filter zip enumerate reversed".split())
# What tests may use as a value. Functions are only called.
CONSTANTS = TYPES | MODULES["string"] | frozenset("__name__ pi e inf tau maxsize".split())
# These return a number, a text or a truth value for all arguments; so do the functions of math.
SCALAR = frozenset(
    "len str repr print isinstance hash int float bool ord chr bin hex oct complex format ascii index count startswith "
    "endswith isdigit isalpha random randint randrange uniform gauss getrandbits".split()
)
# These do for numbers and texts; given an array or a bytearray they may return another one.
SCALAR_OF_SCALARS = frozenset("round join lower upper strip abs".split())
# These return a new container, of which nothing is part of their arguments but items of items.
FRESH = frozenset(
    "list tuple dict set frozenset sorted deque Counter sample choices split splitlines tolist most_common deepcopy "
    "range".split()
)
# These return a container whose items are numbers, texts, or items of their arguments. Of others the depth is unknown.
FLAT = FRESH - {"dict", "tolist", "deepcopy"} | {"copy", "keys", "values"}
# These return views: what changes the dict changes them.
VIEWS = frozenset("keys values items".split())
# These return containers of any depth that hold nothing of their arguments.
DEEP_COPIES = frozenset("deepcopy tolist".split())
# These may read an object of the program, by calling an operation of it.
READING = frozenset("len str repr list tuple sorted set sum max min enumerate any all dict".split())
_CONVERTING = frozenset("int float complex bool abs round hash isinstance".split())
# These show an object by its own methods.
SHOWING = frozenset("str repr format ascii format_map".split())
# These add to a container and do not read it.
ADDING = frozenset("append appendleft extend extendleft insert".split())
# These do not look into the items of their arguments. KEEPS_ITEMS: these give containers of just these items.
SHALLOW = frozenset("len list tuple zip enumerate reversed".split())
KEEPS_ITEMS = SHALLOW | frozenset("sorted range set frozenset deque filter sample choices".split())
EXPRESSIONS = (ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.Slice, ast.JoinedStr, ast.FormattedValue)


def read_imports(tree: ast.Module) -> dict[str, str]:
    """Return the imports of test code, as {name: dotted name}. Raise NotProved if their names are not plain."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            pairs = [(alias.asname or alias.name.split(".")[0], alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            pairs = [(alias.name, f"{node.module}.{alias.name}") for alias in node.names]
            if node.module == "__future__" or any(alias.asname or alias.name == "*" for alias in node.names):
                raise NotProved(f"the tests have {ast.unparse(node)}")
        else:
            continue
        for name, path in pairs:
            if found.setdefault(name, path) != path:
                raise NotProved(f"{name} is imported twice, from different modules")
    return found


def read_dotted_name(node: ast.AST, modules: dict[str, str]) -> str:
    """Return the dotted name of something imported, "" for other expressions."""
    if isinstance(node, ast.Attribute):
        above = read_dotted_name(node.value, modules)
        return f"{above}.{node.attr}" if above else ""
    return modules.get(node.id, "") if isinstance(node, ast.Name) else ""


def is_allowed(dotted: str) -> bool:
    """Whether something in a module only computes, and changes nothing except its arguments."""
    module, *names = dotted.split(".")
    return names[:1] != [] and names[0] in MODULES.get(module, ()) and METHODS.issuperset(names[1:])


def find_bound_names(node: ast.AST) -> set[str]:
    """Return the names that a statement binds, without those in functions that it defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Lambda, ast.Import, ast.ImportFrom)):
        return set()
    found = {node.id} if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) else set()
    if isinstance(node, ast.ExceptHandler) and node.name:
        found.add(node.name)
    return found.union(*map(find_bound_names, ast.iter_child_nodes(node)))


def leaves(node: ast.AST, kinds: tuple[type[ast.AST], ...] = (ast.Break, ast.Continue, ast.Return)) -> bool:
    """Whether a statement may leave a loop or a function early."""
    return any(isinstance(part, kinds) for part in ast.walk(node))


def is_type(node: ast.expr) -> bool:
    """Whether an expression names a builtin type, or is a tuple of such names."""
    if isinstance(node, ast.Tuple):
        return all(map(is_type, node.elts))
    return isinstance(node, ast.Name) and node.id in TYPES


def split_condition(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a condition that `and` joins."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for value in node.values:
            yield from split_condition(value)
    else:
        yield node


def find_classes(tree: ast.Module, names: frozenset[str]) -> frozenset[str]:
    """Return the program's names that tests use as classes: capitalised names whose objects the tests look into."""
    capital = {name for name in names if name[:1].isupper()}
    made: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and called_name(node.value) in capital and isinstance(node.value, ast.Call):
            for name in set().union(*map(find_bound_names, node.targets)):
                made.setdefault(name, set()).add(called_name(node.value))
    found: set[str] = set()
    for node in ast.walk(tree):
        looked: list[ast.expr] = []
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            looked = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READING | _CONVERTING:
            looked = node.args
        elif isinstance(node, ast.Compare) and isinstance(node.ops[-1], (ast.In, ast.NotIn)):
            looked = node.comparators
        for part in looked:
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                found |= {part.func.id} & capital
            elif isinstance(part, ast.Name):
                found |= made.get(part.id, set())
    return frozenset(found)
