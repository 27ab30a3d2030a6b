"""Lists, dicts and sets that test code has read from objects of the program, and changes there: `p.items.append(2)`."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from typing import Any

from rlvr.sandbox.inside.originals import Originals, same

_KINDS = (list, dict, set, bytearray, deque)
_MAX_HELD = 64
_CHANGING = frozenset(name for kind in _KINDS for name in dir(kind) if name[0] != "_") - frozenset(
    "copy count index get items keys values isalnum isalpha isascii isdigit islower isspace istitle isupper issubset "
    "issuperset isdisjoint union intersection difference symmetric_difference".split()
)


def changes(tree: ast.AST) -> bool:
    """Whether test code changes what it has read from an attribute or an item of something."""
    for node in ast.walk(tree):
        changed: ast.AST | None = None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            func = node.value.func
            changed = func.value if isinstance(func, ast.Attribute) and func.attr in _CHANGING else None
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed = node.value
        if isinstance(changed, (ast.Attribute, ast.Subscript)):
            return True
    return False


class Held:
    """Containers that were read from objects of the program, with the operation that reads them there."""

    def __init__(self) -> None:
        self._held: deque[tuple[dict[str, Any], str, Any, Any, Any]] = deque(maxlen=_MAX_HELD)

    def keep(self, on: dict[str, Any], do: str, key: Any, value: Any) -> Any:
        """Take note of a value that was read, and return it."""
        if type(value) in _KINDS:
            self._held.append((on, do, key, value, Originals().copy(value)))
        return value

    def changed(self) -> Iterator[tuple[dict[str, Any], str, Any, Any]]:
        """Yield what the tests have changed since: the object, the operation, its argument and the value."""
        for place, (on, do, key, value, before) in enumerate(self._held):
            if not same(value, before):
                self._held[place] = (on, do, key, value, Originals().copy(value))
                yield on, do, key, value
