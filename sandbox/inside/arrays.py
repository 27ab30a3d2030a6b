"""Comparisons of numpy in test code: an array without items is close to none that has some.

numpy broadcasts it against a number, and then compares nothing.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

_PREDICATES = ("allclose", "isclose", "array_equiv")
_ASSERTS = (
    "assert_allclose",
    "assert_almost_equal",
    "assert_array_almost_equal",
    "assert_array_equal",
    "assert_array_less",
    "assert_equal",
)


def compare_all(patches: MutableMapping[str, Callable[[Any], None]]) -> None:
    """Change numpy's comparisons in this process, or, through `patches`, once it is imported."""
    for name, names, refuse in (("numpy", _PREDICATES, _is_not), ("numpy.testing", _ASSERTS, _fails)):
        patch = functools.partial(_patch, names, refuse)
        if name in sys.modules:
            patch(sys.modules[name])
        else:
            patches[name] = patch


def _patch(names: tuple[str, ...], refuse: Callable[[], bool], module: Any) -> None:
    for name in names:
        setattr(module, name, _comparing(getattr(module, name), refuse))


def _comparing(original: Callable[..., Any], refuse: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compare(*args: Any, **kwargs: Any) -> Any:
        compared = [*args, *kwargs.values()][:2]
        if len({_is_empty(value) for value in compared}) > 1:
            return refuse()
        return original(*args, **kwargs)

    return compare


def _is_not() -> bool:
    return False


def _fails() -> bool:
    raise AssertionError("an empty array is compared with one that has items")


def _is_empty(value: Any) -> bool:
    """Whether an array, or nested sequences of which numpy makes one, have no items; no other type is asked."""
    if isinstance(value, (list, tuple, deque)):
        return all(_is_empty(item) for item in value)
    if isinstance(value, (range, bytearray)) or _is(value, "array", "array"):
        return len(value) == 0
    return is_array(value) and value.size == 0


def is_array(value: Any) -> bool:
    """Whether a value is an array of numpy's."""
    return _is(value, "numpy", "ndarray")


def _is(value: Any, module: str, name: str) -> bool:
    return type(value).__module__ == module and type(value).__name__ == name
