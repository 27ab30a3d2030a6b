"""What tests ask of a program's objects, told from the tests alone: comparisons, exceptions, its module by name."""

from __future__ import annotations

import ast
from collections import deque
from decimal import Decimal
from fractions import Fraction

# Names by which tests import the program.
_MODULES = ("solution", "candidate", "main", "your_module", "your_solution")
_KINDS = (str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset, deque, Fraction, Decimal)
_METHODS_OF_VALUES = frozenset(name for kind in _KINDS for name in dir(kind))
# Builtins that return one of the objects in their arguments, or put them into a container.
_PASSING_ON = frozenset("sorted list tuple set frozenset max min reversed dict next iter copy deepcopy".split())
_ORDERING = frozenset("sorted max min set frozenset hash sort index count remove".split())
_RAISES = frozenset("raises assertRaises assertRaisesRegex suppress".split())


def of_program(code: str) -> str:
    """Return test code in which what it imports from the program's module is named as the program names it."""
    if not any(name in code for name in _MODULES):
        return code
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    imports = _Imports()
    changed = imports.visit(tree)
    return ast.unparse(ast.fix_missing_locations(changed)) + "\n" if imports.found else code


class _Imports(ast.NodeTransformer):
    """Remove imports of the program's module, and name its attributes directly."""

    def __init__(self) -> None:
        self.found = False
        self.modules: set[str] = set()
        self.renamed: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> ast.AST:
        kept = [alias for alias in node.names if alias.name not in _MODULES]
        self.modules |= {alias.asname or alias.name for alias in node.names if alias not in kept}
        self.found = self.found or len(kept) < len(node.names)
        return ast.Import(kept) if kept else ast.Pass()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module not in _MODULES:
            return node
        self.found = True
        self.renamed |= {alias.asname: alias.name for alias in node.names if alias.asname}
        return ast.Pass()

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self.modules:
            return ast.Name(node.attr, node.ctx)
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.renamed.get(node.id, node.id), node.ctx)


def caught(tree: ast.AST, names: set[str]) -> tuple[str, ...]:
    """Return those of the program's names that the tests catch as exceptions."""
    found: set[str] = set()
    for node in ast.walk(tree):
        kinds: list[ast.AST] = []
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            kinds = [node.type]
        elif isinstance(node, ast.Call) and _name_of(node.func) in _RAISES:
            kinds = list(node.args[:1]) if _name_of(node.func) != "suppress" else list(node.args)
        found |= {name for kind in kinds for name in _paths(kind)}
    return tuple(sorted(name for name in found if name.partition(".")[0] in names))


def _paths(node: ast.AST) -> set[str]:
    """Return the names in an expression, dotted ones as a whole."""
    if isinstance(node, (ast.Name, ast.Attribute)) and all(
        part.isidentifier() for part in ast.unparse(node).split(".")
    ):
        return {ast.unparse(node)}
    return {name for part in ast.iter_child_nodes(node) for name in _paths(part)}


def refuse_classes(tree: ast.AST, names: set[str], classes: set[str], known: set[str]) -> None:
    """Raise ValueError for tests that need the program's classes, or objects, themselves: they stay in its process.

    `names` are those of the program, `classes` those of its classes, `known` those of exceptions that the tests catch.
    """
    has_classes = bool(classes) or any(name[:1].isupper() for name in names)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            above = [*node.bases, *(keyword.value for keyword in node.keywords if keyword.arg == "metaclass")]
            found = sorted({part for base in above for part in _paths(base)} & names - known)
            if found:
                raise ValueError(f"the tests make a class of the program's {found[0]}, which stays in its process")
        if has_classes and isinstance(node, ast.Call) and ast.unparse(node.func) in ("pickle.dumps", "pickle.loads"):
            raise ValueError("the tests pickle objects of the program, which stay in its process")


def asks_objects(tree: ast.AST, names: set[str], classes: set[str]) -> bool:
    """Whether the program's own code decides what the tests compare: its objects' order, equality, hash or type.

    Or calls methods of what its functions return, where no value has such a method; or leaves its contexts.
    """
    finder = _Finder(tree, names, classes)
    return any(finder.asks(node) for node in ast.walk(tree))


class _Finder:
    def __init__(self, tree: ast.AST, names: set[str], classes: set[str]) -> None:
        self.names = names
        self.classes = classes
        self.returned: set[str] = set()
        self.objects: set[str] = set()
        # Objects may pass through several variables.
        for _ in range(3):
            for node in ast.walk(tree):
                self._bind(node)

    def _bind(self, node: ast.AST) -> None:
        pairs: list[tuple[ast.AST, ast.AST]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            pairs = [(node.target, node.value)]
        elif isinstance(node, (ast.For, ast.comprehension)):
            pairs = [(node.target, node.iter)]
        elif isinstance(node, ast.With):
            pairs = [(item.optional_vars, item.context_expr) for item in node.items if item.optional_vars]
        for target, value in pairs:
            bound = {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
            if self.holds(value):
                self.objects |= bound
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
                self.returned |= bound if value.func.id in self.names - self.classes else set()

    def holds(self, node: ast.AST) -> bool:
        """Whether a value may be, or hold, an object of the program's classes."""
        if isinstance(node, ast.Name):
            return node.id in self.objects
        if isinstance(node, ast.Call):
            name = _name_of(node.func)
            if isinstance(node.func, ast.Name) and name in self.classes:
                return True
            return name in _PASSING_ON and any(self.holds(part) for part in node.args)
        if isinstance(node, (ast.Attribute, ast.Constant, ast.Lambda, ast.Compare)):
            return (
                isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.classes
            )
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, (ast.expr, ast.comprehension))]
        return any(map(self.holds, parts))

    def asks(self, node: ast.AST) -> bool:
        """Whether a node has the program's code decide."""
        if isinstance(node, ast.Compare):
            return any(self.holds(part) for part in (node.left, *node.comparators))
        if isinstance(node, (ast.With, ast.AsyncWith)):
            return any(self.holds(item.context_expr) or self._calls(item.context_expr) for item in node.items)
        if isinstance(node, (ast.Set, ast.SetComp, ast.DictComp)):
            return self.holds(node)
        if isinstance(node, ast.Dict):
            return any(key is not None and self.holds(key) for key in node.keys)
        if not isinstance(node, ast.Call):
            return False
        name = _name_of(node.func)
        if name.startswith("assert") and any(self.holds(part) for part in node.args[:2]):
            return True
        if name in ("isinstance", "issubclass"):
            kinds = {part.id for a in node.args[1:] for part in ast.walk(a) if isinstance(part, ast.Name)}
            return bool(kinds & self.names)
        if name in _ORDERING and any(self.holds(part) for part in (*node.args, node.func)):
            return True
        return self._asks_returned(node)

    def _asks_returned(self, node: ast.Call) -> bool:
        if not isinstance(node.func, ast.Attribute) or node.func.attr in _METHODS_OF_VALUES:
            return False
        inner = node.func.value
        return self._calls(inner) or (isinstance(inner, ast.Name) and inner.id in self.returned)

    def _calls(self, node: ast.AST) -> bool:
        """Whether a node is a call of a function of the program, or of one of its attributes."""
        if not isinstance(node, ast.Call):
            return False
        return any(isinstance(part, ast.Name) and part.id in self.names - self.classes for part in ast.walk(node.func))


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
