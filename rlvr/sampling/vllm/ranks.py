"""The processes of a training run, as samplers on servers need them: the first talks to the servers for all.

One process: no-ops. Every process must make the same calls in the same order, in one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed

from rlvr.core.types import RunError

T = TypeVar("T")


def count_processes() -> int:
    """Return how many processes the run has."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def is_first() -> bool:
    """Return whether this is the process that talks to the servers."""
    return count_processes() == 1 or distributed.get_rank() == 0


def on_first(action: Callable[[], T]) -> T:
    """Return on every process what `action` returns on the first; what it raises there is raised everywhere.

    ValueError stays one; what else is expected of a server is a RunError.
    """
    if count_processes() == 1:
        return action()
    told: list[Any] = [None, None, None]
    if is_first():
        try:
            told[0] = action()
        except (ValueError, RunError) as error:
            told[1:] = [ValueError if isinstance(error, ValueError) else type(error), str(error)]
            failed: Exception | None = error
        else:
            failed = None
    distributed.broadcast_object_list(told)
    result, kind, message = told
    if kind is not None:
        raise failed if is_first() and failed is not None else kind(message)
    return result


def from_all(value: T) -> list[T]:
    """Return the values of all processes, in their order."""
    if count_processes() == 1:
        return [value]
    values: list[Any] = [None] * count_processes()
    distributed.all_gather_object(values, value)
    return values
