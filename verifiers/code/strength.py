"""Which test code is strong: in a sandbox of its own it means the same as in one process with the program.

Containers that both have change together (`sandbox/wire/shared.py`), and an object of a class of the program stays
there. So tests may compute with answers, but not hold one against another (`interpretation.py`). And they use of Python
only what is listed here, since the rest may look at what a copy does not have, or take what cannot cross.

If a program changes a container of the tests, it may change what it is compared with: `assert f(xs) == max(xs)`. Then
the tests must pass a second time, with their own containers as they were (`Link.after`). What the program has made of
one is an answer, too, which is seen where it is held against the tests' own values (`mark_arguments`): `sort(xs)`,
`assert xs == [1, 2]`.

- Names of the program, and functions of the tests, are only called.
- Attributes and methods are those of builtin types. Objects of a class of the program have others, too; they are
  read, called and passed back, and neither compared nor copied.
- Iterators and views are read where they are made: `list(map(str, xs))`, `for key, value in d.items()`.
- Nothing asks for identity (but of None, True and False), or for the type of a value.
- Of an exception only the text and the arguments are read.
"""

from __future__ import annotations

import ast
import cmath
import contextlib
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from rlvr.core.files.tables import read_words
from rlvr.sandbox.testcode.instrument import AFTER, PREFIX, called_name, find_names

from .interpretation import CHANGING, EXCEPTIONS, Interpretation, WeakTests

_WORDS = read_words(Path(__file__).with_name("words.txt"))
# What tests may use of modules.
MODULES = {
    "cmath": frozenset(name for name in dir(cmath) if name[0] != "_") - {"nan", "nanj"},
    "collections": frozenset(("Counter", "OrderedDict", "deque")),
    "copy": frozenset(("copy", "deepcopy")),
    "datetime": frozenset(("date", "datetime", "timedelta")),
    "decimal": frozenset(("Decimal",)),
    "fractions": frozenset(("Fraction",)),
    "math": frozenset(name for name in dir(math) if name[0] != "_") - {"nan"},
    "pytest": frozenset(("approx", "raises")),
    "random": _WORDS["random"],
    "string": _WORDS["string"],
    "sys": frozenset(("maxsize",)),
}
CONSTANTS = MODULES["string"] | frozenset("pi e inf tau maxsize".split())
TYPES, ITERATORS = _WORDS["types"], _WORDS["iterators"]
FUNCTIONS = TYPES | ITERATORS | _WORDS["functions"]
_DATA: tuple[Any, ...] = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, deque, Counter, range)
_DATA += (Fraction, Decimal, date, datetime, timedelta)
# Attributes and methods of plain values.
ATTRIBUTES = frozenset(name for kind in _DATA for name in dir(kind) if name[0] != "_")
ATTRIBUTES = (ATTRIBUTES | CHANGING | _WORDS["of arrays"]) - _WORDS["refused"]
_READING = _WORDS["reading"]
FIELDS, READERS, VIEWS = (_WORDS[name] for name in ("fields", "readers", "views"))


def check_strong(tree: ast.Module, names: Iterable[str], shared: Iterable[str] = ()) -> set[ast.Name]:
    """Raise WeakTests, with the reason in words, unless test code is strong. Return the variables to mark.

    names: names of the program. shared: names that the tests define and the program has, too.
    """
    return _Check(tree, frozenset(names), frozenset(shared)).compared


@contextlib.contextmanager
def shorten_literals(tree: ast.Module) -> Iterator[None]:
    """Leave only the deepest items in long literals, since what is asked of test code is asked of each node."""
    whole: list[tuple[ast.List | ast.Tuple | ast.Set, list[ast.expr]]] = []
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)) and len(node.elts) > _SHORT:
            depths = dict(zip(node.elts, map(_find_depth, node.elts)))
            if max(depths.values()) < math.inf:
                whole.append((node, node.elts))
                node.elts = sorted(node.elts, key=depths.__getitem__)[-_SHORT:]
        nodes.extend(ast.iter_child_nodes(node))
    yield
    for display, items in whole:
        display.elts = items


_SHORT = 2


def _find_depth(node: ast.expr) -> float:
    """Return how deep lists, tuples and sets of constants are nested: 0 for a constant, infinity for anything else."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return 1 + max(map(_find_depth, node.elts), default=0)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return _find_depth(node.operand)
    return 0 if isinstance(node, ast.Constant) and node.value is not ... else math.inf


class _Check:
    def __init__(self, tree: ast.Module, names: frozenset[str], shared: frozenset[str]) -> None:
        self.names, self.shared = names, shared
        self.above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.modules = read_imports(tree)
        _, self.bound, imported = find_names(tree)
        self.classes = find_classes(tree, names)
        self.objects = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and called_name(node.value) in self.classes
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Call)
        }
        self.handled = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)}
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self.functions = {node.name for node in functions}
        if imported & (self.bound | EXCEPTIONS):
            raise WeakTests("a name that is imported means something else, too")
        for node in ast.walk(tree):
            check = getattr(self, f"_check_{type(node).__name__.lower()}", None)
            if check is not None:
                check(node)
        self._refuse_unused(tree, functions)
        self._refuse_changing(tree)
        self.compared = Interpretation(tree, names, self.classes).marked

    def _refuse_unused(self, tree: ast.Module, functions: list[ast.FunctionDef]) -> None:
        """Refuse functions that only the program could call: it finds only those of prelude and setup."""
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        unused = {node.name for node in functions if not node.name.startswith("test")} - used - self.shared
        if unused:
            raise WeakTests(f"the tests do not call {min(unused)}, which the program may")

    def _refuse_changing(self, tree: ast.Module) -> None:
        """Refuse variables that both sides have and that may change on one of them."""
        read, _, _ = find_names(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in self.shared & read:
                statement = self.above[node]
                if not (isinstance(statement, ast.Assign) and _is_constant(statement.value)):
                    raise WeakTests(f"the program has a {node.id} of its own, which may become another one")

    def _is_of_program(self, node: ast.Call) -> bool:
        return isinstance(node.func, ast.Name) and node.func.id in self.names

    # Names, and what is called.

    def _check_name(self, node: ast.Name) -> None:
        if node.id.startswith(PREFIX):
            raise WeakTests("names that are the judge's own")
        if not isinstance(node.ctx, ast.Load):
            return
        whole, called = self._find_dotted(node)
        path = ast.unparse(whole)
        if node.id in self.names:
            if not called:
                raise WeakTests(f"the program's {path} is used, and not called")
        elif node.id in self.functions:
            if not called or whole is not node:
                raise WeakTests(f"the function {node.id} is used as a value")
        elif node.id in self.bound:
            if called and whole is node:
                raise WeakTests(f"the variable {node.id} is called")
        elif node.id in self.modules:
            self._check_path(".".join([self.modules[node.id], *path.split(".")[1:]]), called=called)
        elif node.id in EXCEPTIONS:
            self._check_exception_name(node)
        elif not (node.id in FUNCTIONS and called) and node.id not in TYPES | {"__name__"}:
            raise WeakTests(f"{node.id} is not known" if called else f"{node.id} is not known, or is used as a value")
        elif whole is not node and not called:
            raise WeakTests(f"{path} is used as a value")

    def _find_dotted(self, node: ast.expr) -> tuple[ast.expr, bool]:
        """Return the dotted name that a name begins, and whether it is called."""
        while isinstance(above := self.above[node], ast.Attribute):
            node = above
        return node, isinstance(above, ast.Call) and above.func is node

    def _check_path(self, path: str, *, called: bool) -> None:
        module, *names = path.split(".")
        if not names or names[0] not in MODULES.get(module, ()) or not (called or names[-1] in CONSTANTS):
            raise WeakTests(f"{path} is not known" if called else f"{path} is not known, or is used as a value")

    def _check_exception_name(self, node: ast.Name) -> None:
        above = self.above[node]
        place = self.above[above] if isinstance(above, (ast.Tuple, ast.Call)) else above
        raised = isinstance(place, ast.Raise) and (place.exc is node or called_name(above) == node.id)
        expected = isinstance(above, ast.Call) and called_name(above) == "raises" and node in above.args
        if not (raised or expected or isinstance(place, ast.ExceptHandler)):
            raise WeakTests(f"{node.id} is used as a value")

    def _check_call(self, node: ast.Call) -> None:
        name = called_name(node)
        if isinstance(node.func, ast.Attribute) and name == "format":
            raise WeakTests("the method format")
        if name in ("all", "any", "max", "min", "sum", "tolist") and isinstance(node.func, ast.Attribute) and node.args:
            raise WeakTests(f"the method {name} with arguments")
        if not isinstance(node.func, (ast.Name, ast.Attribute)):
            raise WeakTests("the value of an expression is called")
        if (
            isinstance(node.func, ast.Name)
            and name in ("str", "repr", "ascii")
            and any(map(self._is_answer, node.args))
        ):
            raise WeakTests("the text of what may be an object")
        method = isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Constant)
        if (name in ITERATORS and not method) or (name in VIEWS and method):
            self._check_read(node)

    def _check_formattedvalue(self, node: ast.FormattedValue) -> None:
        if self._is_answer(node.value):
            raise WeakTests("the text of what may be an object")

    def _is_answer(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and self._is_of_program(node) and called_name(node) not in self.classes

    def _check_subscript(self, node: ast.Subscript) -> None:
        if self._is_object(node.value) and any(isinstance(part, ast.Slice) for part in ast.walk(node.slice)):
            raise WeakTests("a slice is passed to the program")

    def _check_generatorexp(self, node: ast.GeneratorExp) -> None:
        self._check_read(node)

    def _check_read(self, node: ast.expr) -> None:
        """Refuse an iterator or a view that is not read where it is made: it could not be passed to the program."""
        above = self.above[node]
        reads = isinstance(above, (ast.For, ast.comprehension)) and above.iter is node
        called = isinstance(above, ast.Call) and node in above.args and called_name(above) in READERS
        called = called and self._is_known(above)
        if not (reads or called or isinstance(above, (ast.Compare, ast.Starred))):
            raise WeakTests("an iterator or a view that is not read where it is made")

    def _is_known(self, node: ast.AST) -> bool:
        """Whether a call is one of a builtin function or method, not of the program or the tests."""
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute):
            return not self._is_object(node.func.value)
        return isinstance(node.func, ast.Name) and node.func.id not in self.names | self.bound

    def _check_attribute(self, node: ast.Attribute) -> None:
        if node.attr[0] == "_":
            raise WeakTests(f"the attribute {node.attr}")
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            base = base.value
        known = isinstance(base, ast.Name) and base.id not in self.bound
        set_at = isinstance(node.ctx, ast.Store) and not known and self._is_object(node.value)
        if not (set_at or isinstance(node.ctx, ast.Load)):
            raise WeakTests(f"{ast.unparse(node)} is set")
        of_exception = node.attr == "args" and isinstance(node.value, ast.Name) and node.value.id in self.handled
        if not (known or of_exception or node.attr in ATTRIBUTES or self._is_object(node.value)):
            raise WeakTests(f"the attribute {node.attr}")
        above = self.above[node]
        called = isinstance(above, ast.Call) and above.func is node
        if not (known or of_exception or called or node.attr in FIELDS or self._is_object(node.value)):
            raise WeakTests(f"the method {node.attr} is used as a value")

    def _is_object(self, node: ast.expr) -> bool:
        """Whether an expression is an object of a class of the program, or an attribute of one, such as `root.left`."""
        while isinstance(node, ast.Attribute):
            node = node.value
        if isinstance(node, ast.Name):
            return node.id in self.objects
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.classes

    # Statements.

    def _check_functiondef(self, node: ast.FunctionDef) -> None:
        if node.decorator_list:
            raise WeakTests(f"the function {node.name} has decorators")
        if not all(map(_is_constant, filter(None, (*node.args.defaults, *node.args.kw_defaults)))):
            raise WeakTests(f"the function {node.name} has defaults that are no constants")
        required = len(node.args.args) + len(node.args.posonlyargs) > len(node.args.defaults)
        if node.name.startswith("test") and isinstance(self.above[node], ast.Module) and required:
            raise WeakTests(f"{node.name} takes arguments")
        # The same name may stand for a function and for something else.
        others = [n for n in ast.walk(_module_of(self.above, node)) if isinstance(n, ast.Name) and n.id == node.name]
        if any(not isinstance(other.ctx, ast.Load) for other in others):
            raise WeakTests(f"the function {node.name} is bound otherwise, too")

    def _check_excepthandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._check_handled(node)

    def _check_handled(self, handler: ast.ExceptHandler) -> None:
        """Refuse a handler that uses its exception otherwise than in `str(e)` and `e.args`."""
        parts = [part for statement in handler.body for part in ast.walk(statement)]
        read = [part for part in parts if isinstance(part, ast.Name) and part.id == handler.name]
        known = [part.value for part in parts if isinstance(part, ast.Attribute) and part.attr == "args"]
        shown = [part for part in parts if isinstance(part, ast.Call) and ast.unparse(part.func) == "str"]
        known += [part.value for part in parts if isinstance(part, ast.FormattedValue) and part.conversion == -1]
        known += [part.args[0] for part in shown if part.args]
        if not all(any(name is part for part in known) for name in read):
            raise WeakTests("an exception is used otherwise than by its text and arguments")

    def _check_assert(self, node: ast.Assert) -> None:
        always = (ast.Tuple, ast.List, ast.ListComp, ast.Set, ast.SetComp, ast.Dict, ast.DictComp, ast.GeneratorExp)
        parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        either = isinstance(node.test, ast.BoolOp) and any(isinstance(part, ast.Constant) for part in parts)
        if either or isinstance(node.test, always):
            raise WeakTests("an assert that always holds")

    # Expressions.

    def _check_compare(self, node: ast.Compare) -> None:
        constants = [isinstance(part, ast.Constant) and part.value in (None, True, False) for part in node.comparators]
        if any(isinstance(op, (ast.Is, ast.IsNot)) and not fine for op, fine in zip(node.ops, constants)):
            raise WeakTests("identities are compared")
        sides = (node.left, *node.comparators)
        none = any(isinstance(side, ast.Constant) and side.value is None for side in sides)
        held = any(isinstance(side, ast.Attribute) and self._is_object(side) for side in sides)
        if none and held and any(isinstance(op, (ast.Eq, ast.NotEq)) for op in node.ops):
            raise WeakTests("an object of the program is compared, or used as a value")

    def _check_constant(self, node: ast.Constant) -> None:
        if node.value is ...:
            raise WeakTests("an ellipsis")


def mark_arguments(tree: ast.Module, compared: Collection[ast.AST]) -> None:
    """Wrap variables whose contents are held against others: `assert after(xs) == [1]`. So a change is seen."""
    _Mark(compared).visit(tree)


class _Mark(ast.NodeTransformer):
    def __init__(self, marked: Collection[ast.AST]) -> None:
        self.marked = marked

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Call(ast.Name(AFTER, ast.Load()), [node], []) if node in self.marked else node


def _module_of(above: dict[ast.AST, ast.AST], node: ast.AST) -> ast.AST:
    while node in above:
        node = above[node]
    return node


def _is_constant(node: ast.expr) -> bool:
    """Whether an expression is a number or a text, or a tuple of these."""
    if isinstance(node, ast.Tuple):
        return all(map(_is_constant, node.elts))
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def read_imports(tree: ast.Module) -> dict[str, str]:
    """Return the imports of test code, as {name: dotted name}. Raise WeakTests if their names are not plain."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            pairs = [(alias.asname or alias.name.split(".")[0], alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            pairs = [(alias.name, f"{node.module}.{alias.name}") for alias in node.names]
            if node.module == "__future__" or any(alias.asname or alias.name == "*" for alias in node.names):
                raise WeakTests(f"the tests have {ast.unparse(node)}")
        else:
            continue
        for name, path in pairs:
            if found.setdefault(name, path) != path:
                raise WeakTests(f"{name} is imported twice, from different modules")
    return found


class WithoutNotes(ast.NodeTransformer):
    """Takes out of a tree what decides nothing: annotations, and what asserts say where they fail.

    Raises WeakTests for an annotation that does more than name types, or asks one of the names for something.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._refuse_computed(node.returns)
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        self._refuse_computed(node.annotation)
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self._refuse_computed(node.annotation)
        return ast.Pass() if node.value is None else ast.Assign([node.target], self.visit(node.value))

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if isinstance(node.msg, ast.Constant) and not isinstance(node.msg.value, str):
            raise WeakTests("the message of an assert is no text")
        node.msg = None
        return node

    def _refuse_computed(self, annotation: ast.expr | None) -> None:
        for part in ast.walk(annotation) if annotation is not None else ():
            asks = isinstance(part, (ast.Attribute, ast.Subscript)) and find_names(part.value)[0] & {*self._names}
            if asks or isinstance(part, (ast.Call, ast.NamedExpr)):
                raise WeakTests("an annotation that computes something")


def find_classes(tree: ast.Module, names: Iterable[str]) -> frozenset[str]:
    """Return the program's names that tests use as classes: capitalised names whose objects the tests look into."""
    capital = {name for name in names if name[:1].isupper()}
    made: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and called_name(node.value) in capital:
            for target in node.targets:
                made.setdefault(ast.unparse(target), set()).add(called_name(node.value))
    found: set[str] = set()
    for node in ast.walk(tree):
        looked: list[ast.expr] = []
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            looked = [node.value]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _READING | _WORDS["converting"]
        ):
            looked = node.args
        elif isinstance(node, ast.Compare) and isinstance(node.ops[-1], (ast.In, ast.NotIn)):
            looked = node.comparators
        for part in looked:
            found |= {called_name(part)} & capital if isinstance(part, ast.Call) else made.get(ast.unparse(part), set())
    return frozenset(found)
