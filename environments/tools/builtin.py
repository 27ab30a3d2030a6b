"""The built-in tools: `calculator`, exact arithmetic, and `python`, programs in the sandbox.

A program's failure is text for the model, the sandbox's own failure is not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rlvr.sandbox import Limits, Result, RunStatus, Session, run
from rlvr.verifiers.math.grammar.parse import parse
from rlvr.verifiers.math.values.exact import Inexact, Undefined, exact
from rlvr.verifiers.math.values.tree import ParseError, TooLarge

from .tool import SandboxFailure, Tool, ToolError, tool

DIGITS = 12  # of the decimal that is shown beside a fraction
MAX_DIGITS = 2_000  # of a result


def evaluate(expression: str) -> Fraction:
    """Return the value of an expression. Raises ToolError, in one line, if that is no rational number."""
    try:
        return exact(parse(expression))
    except Undefined as error:
        raise ToolError(f"error: {error}") from error
    except TooLarge as error:
        raise ToolError(f"error: too large: {error}") from error
    except Inexact as error:
        raise ToolError("error: the value is no rational number") from error
    except ParseError as error:
        raise ToolError(f"error: {error}"[:200]) from error


def text_of(number: Fraction) -> str:
    """Return a number as a model reads it: an integer, a finite decimal, or a fraction with its decimal."""
    if number.numerator.bit_length() + number.denominator.bit_length() > MAX_DIGITS * 3:
        raise ToolError(f"error: too large: a number of more than {MAX_DIGITS} digits")
    if number.denominator == 1:
        return str(number.numerator)
    scaled = number * 10**DIGITS
    digits = f"{abs(round(scaled)):0{DIGITS + 1}d}"
    decimal = f"{'-' if number < 0 else ''}{digits[:-DIGITS]}.{digits[-DIGITS:]}".rstrip("0").rstrip(".")
    return decimal if scaled.denominator == 1 else f"{number} = {decimal}..."


@tool
def calculator(expression: str) -> str:
    """Compute an expression of numbers exactly: + - * / ^ ! brackets, sqrt, gcd, binomials."""
    return text_of(evaluate(expression.strip()))


DESCRIPTION = "Run a Python 3 program and return what it prints."
FRESH, KEPT = "Each call is a program of its own.", "Names are kept between calls."
_ENDED: Mapping[RunStatus, str] = {
    RunStatus.TIMEOUT: "stopped: time limit",
    RunStatus.MEMORY: "stopped: memory limit",
    RunStatus.OUTPUT_LIMIT: "stopped: too much output",
}


# The sandbox's own frame in a traceback.
_OURS = re.compile(r'^  File "[^"\n]*/sandbox/(?:jail|wire|testcode)/\w+\.py", line \d+, in \w+\n', re.MULTILINE)


def result_text(result: Result) -> str:
    """Return what a run printed. Raises ToolError, with that and the reason, if the program failed, and SandboxFailure
    if it could not be run.
    """
    if result.status is RunStatus.SANDBOX_ERROR:
        raise SandboxFailure(f"sandbox: {result.detail}")
    printed = result.stdout
    if result.status is RunStatus.OK:
        return printed or "(no output)"
    reason = _ENDED.get(result.status) or _OURS.sub("", result.stderr).strip() or result.detail
    lost = result.detail.partition("; ")[2] if result.detail.endswith("is lost") else ""
    raise ToolError("\n".join(part for part in (printed.rstrip("\n"), reason, lost) if part))


class KeptPython:
    """Runs the programs of one rollout in one process of the sandbox, which starts with the first call."""

    def __init__(self, limits: Limits) -> None:
        self._session = Session(limits)

    def __call__(self, **parameters: Any) -> str:
        return result_text(self._session.run(parameters["code"]))

    def close(self) -> None:
        """End the process."""
        self._session.close()


def python_tool(seconds: float = 5.0, memory_mb: int = 1024, *, keep: bool = False) -> Tool:
    """Return the tool with these limits of a program. Raises ValueError for one that is not positive.

    keep: the programs of a rollout run one after the other in one process, and the limits hold for all together.
    """
    limits = Limits(seconds=seconds, memory_mb=memory_mb)

    def python(code: str) -> str:
        return result_text(run(code, limits=limits))

    return Tool(
        "python",
        f"{DESCRIPTION} {KEPT if keep else FRESH}",
        python,
        {"code": str},
        ("code",),
        languages=("py", "python3"),
        start=functools.partial(KeptPython, limits) if keep else None,
    )
