"""Calling a verifier, and what happens when it fails."""

from __future__ import annotations

import functools
import logging
import threading
import time
import traceback
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from rlvr.printable import printable
from rlvr.sandbox import forks
from rlvr.types import Problem, Verdict, VerifierTraits, error, limit

logger = logging.getLogger("rlvr.verifiers")

T = TypeVar("T")

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in a verifier. Failures of one `kind` have the verifier, the type and the raising line in common."""

    kind: str
    text: str


class FailureLog:
    """Logs the first failure of each kind with its traceback. May be called from any thread."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        forks.register(self)

    def after_fork(self) -> None:
        """In the child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def __call__(self, failure: Failure) -> None:
        """Log `failure` unless one of its kind has been logged."""
        with self._lock:
            if failure.kind in self._seen:
                return
            self._seen.add(failure.kind)
        text = printable(failure.text)  # an exception may quote what the model wrote
        logger.error("verifier failed (%s); more of this kind are counted only\n%s", failure.kind, text)


# One for the process, like the registry of `warnings`: a kind is news once, whichever runner met it.
log_failure = FailureLog()


def verify_one(verifier: Callable[[Problem, str], Any], problem: Problem, completion: str) -> Verdict:
    """The verdict of `verifier`, timed. Never raises: an exception is logged once per kind and becomes status error."""
    verdict, failure = attempt(verifier, problem, completion)
    if failure is not None:
        log_failure(failure)
    return verdict


def attempt(
    verifier: Callable[[Problem, str], Any], problem: Problem, completion: str
) -> tuple[Verdict, Failure | None]:
    """The timed verdict, and the failure behind it if the verifier raised."""
    start = time.perf_counter()
    verdict, failure = guarded(verifier, lambda: Verdict.of(verifier(problem, completion)))
    return verdict.timed(time.perf_counter() - start), failure


def guarded(verifier: Any, call: Callable[[], T]) -> tuple[T | Verdict, Failure | None]:
    """What `call` returns; or the verdict that its exception becomes, and the failure record. `verifier` is for names.

    The one place where an exception becomes a verdict. It is the verifier's fault, not the model's: the verdict is an
    error, which has no score. Only running out of memory is the completion's doing, and scores 0 with status limit.
    """
    try:
        return call(), None
    except MemoryError:
        return limit(OUT_OF_MEMORY), None
    # A verifier that calls sys.exit must not end the run any more than one that raises.
    except (Exception, SystemExit) as error:
        return failed(verifier, error)


def failed(verifier: Any, raised: BaseException) -> tuple[Verdict, Failure]:
    """The error verdict and the failure record of an exception that `verifier` raised."""
    frames = traceback.extract_tb(raised.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
    kind = f"{describe(verifier)}: {type(raised).__name__} at {place}"
    text = "".join(traceback.format_exception(raised)).rstrip()
    message = str(raised).strip().split("\n")[0][:200]
    return error(f"{type(raised).__name__}: {message}" if message else type(raised).__name__), Failure(kind, text)


def describe(verifier: Any) -> str:
    """A verifier's name for messages: module and qualified name of the function or class."""
    if isinstance(verifier, functools.partial):
        return describe(verifier.func)
    named = verifier if hasattr(verifier, "__qualname__") else type(verifier)
    return f"{named.__module__}.{named.__qualname__}"


def check_choices(verifier: Any) -> None:
    """Raises ValueError where an option of a dataclass is none of the choices that its type (a Literal) names."""
    for name, choices in _choices(verifier.__class__).items():
        value = getattr(verifier, name)
        if value not in choices:
            raise ValueError(f"{name} {value!r}: expected {', '.join(choices[:-1])} or {choices[-1]}")


def allows(verifier: Any, name: str, value: object) -> bool:
    """Whether an option of a dataclass may have this value: one of the choices that its type names, if it names any."""
    choices = _choices(verifier.__class__)
    return name not in choices or value in choices[name]


@functools.cache
def _choices(kind: type) -> dict[str, tuple[str, ...]]:
    hints = typing.get_type_hints(kind)
    return {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is typing.Literal}


def check_references(verifier: Any, problems: Iterable[Problem]) -> None:
    """Raises ValueError that names the first problem whose reference the verifier's `check_reference` rejects."""
    check = VerifierTraits.of(verifier).check_reference
    if check is None:
        return
    for problem in problems:
        try:
            check(problem.reference)
        except ValueError as error:
            raise ValueError(f"problem {problem.id!r}: {error}") from error
