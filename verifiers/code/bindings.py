"""What test code binds to what, and which variables may have a container in common.

Variables are told apart by their names alone, wherever they are bound. What a function returns is bound to its name
with brackets, `f()`.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rlvr.core.files.tables import read_words
from rlvr.sandbox.testcode.instrument import called_name

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict)
_DEEP = 5  # containers in containers, from here on as deep as can be
_WORDS = read_words(Path(__file__).with_name("words.txt"))
_LOOPS = (ast.For, *COMPREHENSIONS, ast.Lambda)
_COMPUTING = (ast.Name, ast.BinOp, ast.Call)
# There is one node of each of these in a tree, however often it is used.
_SHARED = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)


class Binding(NamedTuple):
    """`node` binds `target` to `value`, or adds that to what it holds."""

    node: ast.AST
    target: ast.expr
    value: ast.AST
    adds: bool


class Bindings:
    """The bindings of test code. asked: names of the program, and of its objects; changing: methods that add."""

    def __init__(self, tree: ast.Module, asked: Collection[str], changing: Collection[str]) -> None:
        self.asked, self.changing = {*asked}, changing
        self.nodes = list(_walk_in_order(tree))
        self.order = {node: place for place, node in enumerate(self.nodes)}
        self.above = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.functions = {node.name: node for node in self.nodes if isinstance(node, ast.FunctionDef)}
        self.all = [binding for node in self.nodes for binding in self._find(node)]
        self._of = defaultdict[str, list[Binding]](list)
        for binding in self.all:
            for name in find_stored(binding.target):
                self._of[name].append(binding)
        self.sites = defaultdict[str, list[ast.expr]](list)
        for node in self.nodes:
            if isinstance(node, ast.expr) and self.is_own(node):
                self.sites[called_name(node)].append(node)
        self._tables = self._find_tables()
        self._depths: dict[str, int] = {}
        self._groups: dict[str, set[str]] = {}
        while self._measure():
            pass
        # For each variable: where it is bound to a container of another one.
        self.shared = {
            name: [
                each.node for each in found if self.refer(each.value) or (_takes_apart(each) and _repeats(each.value))
            ]
            for name, found in self._of.items()
        }

    def asks(self, node: ast.AST) -> bool:
        """Whether a node is a call of the program, or a read of one of its objects."""
        root = node
        while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
            root = root.func if isinstance(root, ast.Call) else root.value
        return root is not node and isinstance(root, ast.Name) and root.id in self.asked

    def find_above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node is in, from the inside."""
        while node in self.above:
            node = self.above[node]
            yield node

    def function_of(self, node: ast.AST) -> ast.FunctionDef | None:
        """Return the function that a node is in."""
        return next((each for each in self.find_above(node) if isinstance(each, ast.FunctionDef)), None)

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node is in."""
        return next(each for each in (node, *self.find_above(node)) if isinstance(each, ast.stmt))

    def block_of(self, node: ast.stmt) -> list[ast.stmt]:
        """Return the block that a statement is in."""
        fields = [value for _, value in ast.iter_fields(self.above[node]) if isinstance(value, list)]
        return next(block for block in fields if any(each is node for each in block))

    def is_own(self, node: ast.AST) -> bool:
        """Whether a node is a call of a function of the tests."""
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.functions

    def group(self, name: str) -> set[str]:
        """Return the variables that may hold a container that this one holds, or is."""
        return self._groups.get(name, {name})

    def find_of(self, name: str) -> list[Binding]:
        """Return the bindings of a variable."""
        return self._of.get(name, [])

    def _find(self, node: ast.AST) -> Iterator[Binding]:
        if isinstance(node, ast.Assign):
            yield from (Binding(node, each, node.value, isinstance(each, ast.Subscript)) for each in node.targets)
            same = [ast.Name(name, ast.Load()) for name in find_stored(node.targets[0])]
            yield from (Binding(node, each, name, False) for each in node.targets[1:] for name in same)
        elif isinstance(node, (ast.AugAssign, ast.NamedExpr)):
            yield Binding(node, node.target, node.value, isinstance(node, ast.AugAssign))
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield Binding(node, node.target, node.iter, False)
        elif isinstance(node, ast.Delete):
            parts = [each for each in node.targets if isinstance(each, ast.Subscript)]
            yield from (Binding(node, each, each.slice, True) for each in parts)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            body = self.above[node].body  # type: ignore[attr-defined]
            yield Binding(node, _name(node.name), ast.Tuple(body), False)
        elif isinstance(node, ast.Return) and node.value is not None and (function := self.function_of(node)):
            yield Binding(node, _name(f"{function.name}()"), node.value, False)
        elif isinstance(node, ast.Lambda):
            call = next(each for each in self.find_above(node) if isinstance(each, ast.Call))
            given = ast.Tuple(_operands_of(call))
            yield from (Binding(node, _name(each.arg), given, False) for each in node.args.args)
        elif self.is_own(node):
            yield from self._find_parameters(node)  # type: ignore[arg-type]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changes = node.func.attr in self.changing and not self.asks(node)
            yield from [Binding(node, node.func.value, ast.Tuple(arguments_of(node)), True)] if changes else []

    def _find_parameters(self, call: ast.Call) -> Iterator[Binding]:
        own = self.functions[called_name(call)].args
        pairs = [*zip([each.arg for each in (*own.posonlyargs, *own.args)], call.args)]
        pairs += [(keyword.arg or "", keyword.value) for keyword in call.keywords]
        starred = own.vararg or own.kwarg or any(isinstance(each, ast.Starred) for each in call.args)
        if starred or any(name == "" for name, _ in pairs):
            given = ast.Tuple(arguments_of(call))
            pairs = [(each.arg, given) for each in ast.walk(own) if isinstance(each, ast.arg)]
        yield from (Binding(call, _name(name), value, False) for name, value in pairs)

    # Which variables may have a container in common.

    def _measure(self) -> bool:
        """Find the groups of variables, and how deep each one is; return whether that is more than before."""
        before = dict(self._depths)
        self._groups = {}
        for binding in self.all:
            names = self.stored_in(binding.target)
            depth = self.depth(binding.value)
            held = self.refer(binding.value)
            if _takes_apart(binding):
                depth -= 1
                held = held | (names if depth and _repeats(binding.value) else set())
            if names and held:
                whole = set[str]().union(*map(self.group, names | held))
                self._groups.update(dict.fromkeys(whole, whole))
            if binding.adds:
                names = names.union(*map(self.group, names))
                depth += sum(isinstance(part, (ast.Subscript, ast.Call)) for part in ast.walk(binding.target))
            for name in names:
                self._depths[name] = min(_DEEP, max(depth, self._depths.get(name, 0)))
        return before != self._depths

    def name_of(self, node: ast.expr) -> str:
        """Return the name of what a node reads or changes a container of: a variable, or the result of a function."""
        if self.is_own(node):
            return f"{called_name(node)}()" if self.depth(node) else ""
        own = isinstance(node, ast.Name) and node.id not in self.asked and self.depth(node)
        return node.id if own and (isinstance(node.ctx, ast.Load) or self.changes(node)) else ""  # type: ignore[attr-defined]

    def changes(self, node: ast.expr) -> bool:
        """Whether the tests change the container that a variable holds."""
        while isinstance(above := self.above[node], ast.Subscript) and above.value is node:
            node = above
        if isinstance(above, ast.AugAssign) and above.target is node:
            return True
        method = isinstance(above, ast.Attribute) and isinstance(self.above[above], ast.Call)
        stored = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        return stored or (method and above.attr in self.changing)  # type: ignore[attr-defined]

    def last_of(self, node: ast.AST) -> int:
        """Return the place of the last node of the part of a statement that is executed at once."""
        statement = self.statement_of(node)
        simple = not isinstance(statement, (ast.For, ast.If, ast.Try, ast.With))
        return max(self.order.get(part, 0) for part in ast.walk(statement)) if simple else self.order[node]

    def find_loops(self, node: ast.AST) -> set[ast.AST]:
        """Return the loops of its function that a node is in."""
        found, below = set[ast.AST](), node
        for above in self.find_above(node):
            if isinstance(above, ast.FunctionDef):
                return found
            if isinstance(above, _LOOPS) and not (isinstance(above, ast.For) and below is above.iter):
                found.add(above)
            below = above
        return found

    def is_repeated(self, node: ast.AST) -> bool:
        """Whether a node may be executed more than once."""
        function = self.function_of(node)
        sites = self.sites[function.name] if function is not None else []
        return bool(self.find_loops(node)) or len(sites) > 1 or any(self.is_repeated(site) for site in sites)

    def _find_tables(self) -> set[str]:
        """Return the variables that hold a literal and are read once: as if it were written there."""
        names = [node for node in self.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        reads = Counter(node.id for node in names)
        once = {node.id for node in names if reads[node.id] == 1 and not self.is_repeated(node)}
        found = {name: self._of[name][0] for name in once if len(self._of[name]) == 1}
        plain = {
            name for name, each in found.items() if isinstance(each.node, ast.Assign) and not each.node.targets[1:]
        }
        return {n for n in plain if not any(isinstance(part, _COMPUTING) for part in ast.walk(found[n].value))}

    def stored_in(self, target: ast.expr) -> set[str]:
        """Return the variables that an assignment binds, or whose containers it changes."""
        return find_stored(target) | (self.refer(target) if isinstance(target, ast.Call) else set())

    def depth(self, node: ast.AST) -> int:
        """How deep containers are nested in a value: 0 for a number or a text, 1 for a list of such."""
        if isinstance(node, ast.Name):
            return self._depths.get(node.id, 0)
        if isinstance(node, ast.expr) and self.asks(node):
            return _DEEP
        if isinstance(node, (ast.stmt, ast.Constant, ast.Compare, ast.JoinedStr, ast.Lambda, ast.Attribute)):
            return 0
        if isinstance(node, ast.Call):
            return self._depth_of_call(node)
        if isinstance(node, (*DISPLAYS, *COMPREHENSIONS)):
            items = [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.comprehension)]
            return min(_DEEP, 1 + self._deepest(items))
        if isinstance(node, (ast.Subscript, ast.Starred)):
            whole = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
            return max(0, self.depth(node.value) - (not whole))
        return self._deepest(ast.iter_child_nodes(node))

    def _deepest(self, nodes: Iterable[ast.AST]) -> int:
        return max(map(self.depth, nodes), default=0)

    def _depth_of_call(self, node: ast.Call) -> int:
        name = called_name(node)
        if self.is_own(node):
            return self._depths.get(f"{name}()", 0)
        given = _operands_of(node)
        deepest = self._deepest(given)
        if name in _WORDS["numbers"] and not (name == "sum" and len(node.args) > 1):
            return 0
        if name in _WORDS["flat"]:
            return 1
        if name in _WORDS["copying"]:
            return max(1, deepest)
        if name in _WORDS["pairing"]:
            return min(_DEEP, max(1, deepest) + 1)
        return deepest if name in _WORDS["picking"] else _DEEP if given and deepest else 1

    def refer(self, value: ast.AST) -> set[str]:
        """Return the variables whose containers a value may be, or have in it."""
        if isinstance(value, ast.Name):
            own = value.id not in self.asked | self._tables and self.depth(value)
            return {value.id} if own and isinstance(value.ctx, ast.Load) else set()
        if not isinstance(value, (ast.expr, ast.comprehension)) or (isinstance(value, ast.expr) and self.asks(value)):
            return set()
        if self.is_own(value):
            return {f"{called_name(value)}()"} if self.depth(value) else set()
        new = isinstance(value, (ast.Call, ast.BinOp, *COMPREHENSIONS))
        new = new or (isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice))
        if called_name(value) == "deepcopy" or (isinstance(value, ast.expr) and self.depth(value) < 1 + new):
            return set()
        bound = {value.target.id} if isinstance(value, ast.NamedExpr) else set[str]()
        parts = _operands_of(value) if isinstance(value, ast.Call) else ast.iter_child_nodes(value)
        return bound.union(*map(self.refer, parts))


def _takes_apart(binding: Binding) -> bool:
    return isinstance(binding.node, (ast.For, ast.comprehension)) or isinstance(binding.target, ast.Tuple)


def _repeats(value: ast.AST) -> bool:
    """Whether a container may have the same item twice: `[[]] * 2`."""
    return any(isinstance(part, ast.Mult) for part in ast.walk(value))


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())


def _walk_in_order(node: ast.AST) -> Iterator[ast.AST]:
    nodes = [node]
    while nodes:
        node = nodes.pop()
        yield node
        parts = [*ast.iter_child_nodes(node)]
        nodes.extend(part for part in reversed(parts) if not isinstance(part, _SHARED))


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call, those with a name, too."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _operands_of(call: ast.Call) -> list[ast.expr]:
    return [*([call.func.value] if isinstance(call.func, ast.Attribute) else []), *arguments_of(call)]


def find_stored(target: ast.AST) -> set[str]:
    """Return the variables that an assignment binds, or whose container it changes."""
    if isinstance(target, (ast.Attribute, ast.Subscript)):
        return find_stored(target.value)
    if isinstance(target, ast.Name):
        return {target.id}
    return set().union(*map(find_stored, ast.iter_child_nodes(target)))


def split_condition(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a condition that `and` joins."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for value in node.values:
            yield from split_condition(value)
    else:
        yield node
