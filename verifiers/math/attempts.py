"""Which evaluations ended a worker process, or its time: they are not tried again, by no worker of the pool.

The workers share this table, as they are forked from a process that has imported it. A place holds the number of the
process that evaluates there, GIVEN_UP, or 0. Two expressions may share a place: then one of them may not be evaluated.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from collections.abc import Iterator

from rlvr.verifiers.math.tree import Node

PLACES = 16_384
GIVEN_UP = -1
_ENTRY = struct.Struct("i")

_table = mmap.mmap(-1, PLACES * _ENTRY.size)


@contextlib.contextmanager
def attempt(node: Node, seconds: float | None) -> Iterator[bool]:
    """Note that a node is being evaluated, for so long; yields whether it should be: no process has died of it."""
    place = _place(node, seconds)
    (before,) = _ENTRY.unpack_from(_table, place)
    if before == GIVEN_UP or (before and before != os.getpid() and not _is_alive(before)):
        yield False
        return
    _ENTRY.pack_into(_table, place, os.getpid())
    try:
        yield True
    finally:
        if _ENTRY.unpack_from(_table, place) == (os.getpid(),):
            _ENTRY.pack_into(_table, place, 0)


def give_up(node: Node, seconds: float | None) -> None:
    """Note that a node took longer than that."""
    _ENTRY.pack_into(_table, _place(node, seconds), GIVEN_UP)


def _place(node: Node, seconds: float | None) -> int:
    return zlib.crc32(f"{node} {seconds}".encode()) % PLACES * _ENTRY.size


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
