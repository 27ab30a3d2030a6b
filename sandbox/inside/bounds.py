"""Bounds of plain data: of its size, and of keys whose hashes a program can choose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 160
# More than fit into the bytes that a value may have (Limits.result_kb, MAX_LINE): those bound time and memory.
MAX_ITEMS = 4_000_000
MAX_LINE = 16 << 20  # bytes of a message between tests and program
# Iterators are read to their end only up to here, and beyond the first number only for so long.
MAX_YIELDED, ALWAYS_YIELDED, YIELD_SECONDS = 200_000, 100, 1.0
MAX_YIELDED_BYTES = 1 << 20
# The type in the place of what is beyond these bounds.
TOO_LARGE = "too large"
SMALL = 1 << 62
MAX_INT_BITS = 1 << 21
# Totals over all fractions and all decimal numbers of a value.
MAX_FRACTION_BITS = 1 << 16
MAX_DECIMAL_DIGITS = 1 << 20
# Keys of dicts and sets: small integers cannot collide often; limits for all others, in total and with equal hash.
_SMALL_KEY = 1 << 24
MAX_CHOSEN = 40_000
_MAX_EQUAL = 100
_NONE = type(None)
SELF = frozenset((bool, int, float, str, _NONE))


class PlainError(ValueError):
    """Data that is malformed or too large."""


class TooLarge(PlainError):
    """Data beyond the bounds of this module."""


def stand_for_themselves(items: list[Any]) -> bool:
    """Whether all items are written as JSON has them."""
    kinds = set(map(type, items))
    if not kinds <= SELF:
        return False
    numbers = items if kinds == {int} else [item for item in items if type(item) is int] if int in kinds else ()
    return not numbers or (min(numbers) > -SMALL and max(numbers) < SMALL)


def refuse_collisions(keys: Iterable[Any]) -> int:
    """Count the keys whose hashes a program can choose. Raises PlainError if a dict of them could be slow to fill.

    With many equal hashes, or hashes whose probe sequences meet, a dict degrades to a list, and filling it can take
    hours. Hashes of text are salted, and small integers are too few to do harm. Raises TypeError for an unhashable key.
    """
    chosen = [key for key in keys if not _is_harmless(key)]
    if len(chosen) > MAX_CHOSEN:
        raise TooLarge("too many keys that are neither text nor small integers")
    if len(chosen) > _MAX_EQUAL:
        alike: dict[int, list[Any]] = {}
        for key in chosen:
            known = alike.setdefault(hash(key), [])
            if key not in known:
                known.append(key)
            if len(known) > _MAX_EQUAL:
                raise PlainError("keys with colliding hashes")
    return len(chosen)


def _is_harmless(key: Any) -> bool:
    kind = type(key)
    return kind in (str, bytes, bool, _NONE) or (kind is int and -_SMALL_KEY < key < _SMALL_KEY)
