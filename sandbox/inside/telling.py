"""Values and exceptions of a program as plain data, whatever their own methods do. This runs in its process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from rlvr.sandbox.inside import bounds, plain

TOO_LARGE = ["o", bounds.TOO_LARGE, None, None]


def written(value: Any, *, whole: bool = False, other: Callable[..., Any] | None = None) -> Any:
    """Encode `value` as plain data. A value whose methods raise is encoded as opaque, whatever they raise.

    With `whole` one of which a part is too large is encoded as such; `other` as in `plain.encode`.
    """
    try:
        return plain.encode(value, other, whole=whole)
    except plain.TooLarge:
        return TOO_LARGE
    except Exception:
        return ["o", "unreadable", None, None]


def told(error: BaseException) -> dict[str, Any]:
    """Return the names of an exception's types, its arguments and its text."""
    parts: dict[str, Callable[[], Any]] = {"m": lambda: list(error.args), "s": lambda: str(error)}
    found: dict[str, Any] = {"x": [base.__name__ for base in type(error).__mro__]}
    for key, read in parts.items():
        with contextlib.suppress(Exception):
            found[key] = written(read())
    return found
