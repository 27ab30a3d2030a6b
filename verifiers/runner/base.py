"""Calling a verifier once; turning its exceptions into verdicts and log records; checks of options and references."""

from __future__ import annotations

import functools
import inspect
import logging
import time
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from rlvr.core.printable import printable
from rlvr.core.tracebacks import describe_raised, raised_at, raised_by_user, users_traceback
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Problem, RunError, Verdict, bad_reference, error, limit

logger = logging.getLogger("rlvr.verifiers")

T = TypeVar("T")
R = TypeVar("R")

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in a verifier.

    kind: the verifier, the exception's type and the line that raised it. text: the first line says what failed and
    where; the rest may hold a traceback.
    """

    kind: str
    text: str


_LOGGED: dict[str, Failure] = {}  # the first failure of each kind, whichever runner met it


def log_failure(failure: Failure) -> None:
    """Log the first failure of each kind in this process, with its traceback. May be called from any thread."""
    if _LOGGED.setdefault(failure.kind, failure) is failure:
        first, *rest = printable(failure.text).split("\n")  # an exception may quote what the model wrote
        logger.error("%s", "\n".join([f"{first}; further failures of this kind are counted, not shown", *rest]))


def verify_one(verifier: Callable[[Problem, str], Any], problem: Problem, completion: str) -> Verdict:
    """Return the timed verdict. An exception is logged once per kind and becomes a verdict of status error."""
    verdict, failure = attempt(verifier, problem, completion)
    if failure is not None:
        log_failure(failure)
    return verdict


def attempt(
    verifier: Callable[[Problem, str], Any], problem: Problem, completion: str
) -> tuple[Verdict, Failure | None]:
    """Return the timed verdict, and the failure behind it if the verifier raised."""
    start = time.perf_counter()
    verdict, failure = call_guarded(verifier, lambda: Verdict.of(verifier(problem, completion)))
    return verdict.with_seconds(time.perf_counter() - start), failure


def call_guarded(verifier: Any, call: Callable[[], T]) -> tuple[T | Verdict, Failure | None]:
    """Return what `call` returns, or the verdict on its exception and the failure record. verifier: for the messages.

    Every call of a verifier goes through this function. For an exception the verifier is to blame, not the model, so
    the verdict is an error without a score. Running out of memory is blamed on the completion: status limit, score 0.
    """
    try:
        return call(), None
    except MemoryError:
        return limit(OUT_OF_MEMORY), None
    # A verifier that calls sys.exit must not end the run either.
    except (Exception, SystemExit) as error:
        return make_failure(verifier, error)


def make_failure(verifier: Any, raised: BaseException) -> tuple[Verdict, Failure]:
    """Return the error verdict and the failure record of an exception that `verifier` raised."""
    place = place_of(raised, verifier)
    reason, name = describe_raised(raised, place), describe(verifier)
    text = f"{reason} (in the verifier {name})"
    if raised_by_user(raised) or _find_definition(verifier) is None:  # not for a value that our own check refuses
        text += f"\n{users_traceback(raised)}"
    return error(reason), Failure(f"{name}: {type(raised).__name__} at {place}", text)


def place_of(raised: BaseException, called: Any) -> tuple[str, int] | None:
    """Return file and line of the user's code that raised.

    If no user's code did: where `called` is defined, if a user defined it; otherwise the last line that was running.
    None for an exception that was never raised.
    """
    return (None if raised_by_user(raised) else _find_definition(called)) or raised_at(raised)


def _find_definition(called: Any) -> tuple[str, int] | None:
    """Return file and line where a user's function, or the `__call__` of a user's class, is defined; None for ours."""
    called = inspect.unwrap(called.func if isinstance(called, functools.partial) else called)
    called = called if inspect.isroutine(called) else inspect.getattr_static(type(called), "__call__", None)
    code = getattr(called, "__code__", None)
    ours = str(getattr(called, "__module__", "")).partition(".")[0] == "rlvr"
    return None if ours or code is None else (code.co_filename, code.co_firstlineno)


def describe(verifier: Any) -> str:
    """Return a verifier's name for messages: module and qualified name of the function or class."""
    if isinstance(verifier, functools.partial):
        return describe(verifier.func)
    named = verifier if hasattr(verifier, "__qualname__") else type(verifier)
    return f"{named.__module__}.{named.__qualname__}"


def check_choices(verifier: Any) -> None:
    """Raise ValueError if an option of a dataclass is not one of the choices of its type (a Literal)."""
    for name, choices in _choices(verifier.__class__).items():
        value = getattr(verifier, name)
        if value not in choices:
            raise ValueError(f"{name} {value!r}: expected {', '.join(choices[:-1])} or {choices[-1]}")


def allows(verifier: Any, name: str, value: object) -> bool:
    """Whether an option of a dataclass may have this value. Every value may be, unless the type is a Literal."""
    choices = _choices(verifier.__class__)
    return name not in choices or value in choices[name]


@functools.cache
def _choices(kind: type) -> dict[str, tuple[str, ...]]:
    hints = typing.get_type_hints(kind)
    return {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is typing.Literal}


class ReferenceVerifier(Generic[R]):
    """Base of a verifier, a dataclass, that first reads the reference and then judges the completion.

    Its work is bounded. A reference that cannot be read is refused when data is loaded, and else a `bad_reference`.
    """

    isolate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_choices(self)

    def read_reference(self, reference: Any) -> R:
        """Return what the reference holds. Raise ValueError if it cannot be used."""
        raise NotImplementedError

    def judge(self, wanted: R, completion: str) -> Verdict:
        """Return the verdict. wanted: what the reference holds."""
        raise NotImplementedError

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        try:
            wanted = self.read_reference(problem.reference)
        except ValueError as error:
            return bad_reference(str(error))
        return self.judge(wanted, completion)

    def check_reference(self, reference: Any) -> None:
        self.read_reference(reference)


def check_references(verifier: Any, problems: Iterable[Problem]) -> None:
    """Check all references. Raise ValueError with the first problem whose reference `check_reference` rejects.

    Raise RunError if the check itself fails: it raises another exception, or returns False instead of raising.
    """
    check = VerifierTraits.of(verifier).check_reference
    if check is None:
        return
    for problem in problems:
        try:
            run_check(check, problem.reference)
        except ValueError as error:
            raise ValueError(f"problem {problem.id!r}: {error}") from error
        # The check may be a user's code, which may raise anything.
        except Exception as error:
            file, line = place_of(error, check) or ("?", 0)
            what = describe_raised(error, None)
            raise RunError(
                f"{file}, line {line}: problem {problem.id!r}: check_reference of the verifier {describe(verifier)} "
                f"failed with {what}; expected ValueError for a reference that cannot be used, else None"
            ) from error


def accepts_many(self: Any, reference: Any) -> bool:
    """The trait `open_answers` of a verifier for which many different completions are right."""
    return True


def run_check(check: Callable[[Any], Any], reference: Any) -> None:
    """Call a verifier's `check_reference`. Raise what it raises, and TypeError if it returns False."""
    if check(reference) is False:
        raise TypeError("it returned False")
