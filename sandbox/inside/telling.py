"""Values and exceptions of a program as plain data, whatever their own methods do. This runs in its process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from rlvr.sandbox.inside import bounds, plain

_MAX_CAUSES, _MAX_PARTS = 5, 100
TOO_LARGE = ["o", bounds.TOO_LARGE, None, None]


def written(
    value: Any,
    keep: Callable[[Any], int | None] | None = None,
    other: Callable[..., Any] | None = None,
    *,
    whole: bool = False,
) -> Any:
    """Encode `value` as plain data. A value whose methods raise is encoded as opaque, whatever they raise.

    With `whole` one of which a part is too large is encoded as such.
    """
    try:
        return plain.encode(value, keep, other, whole=whole)
    except plain.TooLarge:
        return TOO_LARGE
    except Exception:
        return ["o", "unreadable", None, None]


def told(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """Return types, arguments, text and attributes of an exception, and those of its cause."""
    parts = {"m": lambda: list(error.args), "s": lambda: str(error), "d": lambda: dict(vars(error))}
    above = type(error).__mro__
    found: dict[str, Any] = {"x": [base.__name__ for base in above], "q": [base.__module__ for base in above]}
    for key, read in parts.items():
        with contextlib.suppress(Exception):
            found[key] = written(read())
    if isinstance(error, BaseExceptionGroup) and depth < _MAX_CAUSES:
        found["m"] = written([error.message])
        found["g"] = [told(part, depth + 1) for part in error.exceptions[:_MAX_PARTS]]
    if error.__cause__ is not None and depth < _MAX_CAUSES:
        found["e"] = told(error.__cause__, depth + 1)
    return found
