"""What a tool is: a function with a name, a description and typed parameters.

Built in are `calculator`, exact arithmetic, and `python`, programs in the sandbox. A program's failure is text for the
model, the sandbox's own failure is not.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from rlvr.sandbox import Limits, Result, RunStatus, Session, run
from rlvr.verifiers.math.grammar.parse import parse
from rlvr.verifiers.math.values.exact import Inexact, Undefined, exact
from rlvr.verifiers.math.values.tree import ParseError, TooLarge

_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


class ToolError(Exception):
    """A call that failed because of the model. Its text is the result that the model reads."""


class SandboxFailure(Exception):
    """A call that failed for another reason. The rollout is not scored."""


class Running(Protocol):
    """A tool in one rollout: called with the parameters of a call, closed when the rollout has ended."""

    def __call__(self, **parameters: Any) -> str: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Tool:
    """A tool. parameters: maps name to type. required: those without a default.

    languages: further tags of a fenced block that calls it. start: makes the object that answers the calls of one
    rollout; by default `function` answers them.
    """

    name: str
    description: str
    function: Callable[..., str]
    parameters: Mapping[str, type] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    start: Callable[[], Running] | None = None

    def schema(self) -> dict[str, Any]:
        """Return the tool as chat templates take it: a function with a JSON schema of its parameters."""
        properties = {name: {"type": _JSON_TYPES[kind]} for name, kind in self.parameters.items()}
        schema = {"type": "object", "properties": properties, "required": list(self.required)}
        described = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": described}

    def check_parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a call. Raises ToolError for an unknown or missing one, and for a wrong type."""
        unknown = sorted(set(given) - set(self.parameters))
        if unknown:
            raise ToolError(f"{self.name} has no parameter {unknown[0]!r:.60}; it takes {', '.join(self.parameters)}")
        missing = [name for name in self.required if name not in given]
        if missing:
            raise ToolError(f"{self.name} needs the parameter {missing[0]}")
        for name, value in given.items():
            kind = self.parameters[name]
            fits = type(value) is kind or (kind is float and type(value) is int)
            if not fits:
                raise ToolError(f"{self.name}: {name} is not of the type {_JSON_TYPES[kind]}")
        return dict(given)


def tool(function: Callable[..., str]) -> Tool:
    """Decorator: make a tool of a function with annotated parameters that returns text.

    The model is told its name and docstring. It may raise ToolError with a text for the model; another exception leaves
    the rollout without a score. Raises ValueError for a parameter of a type that JSON does not have.
    """
    hints = typing.get_type_hints(function)
    parameters, required = {}, []
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints.get(name, str)
        kind = typing.get_origin(kind) or kind
        if kind not in _JSON_TYPES or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            known = ", ".join(known.__name__ for known in _JSON_TYPES)
            raise ValueError(f"tool {function.__name__}, parameter {name}: expected one of the types {known}")
        parameters[name] = kind
        if parameter.default is parameter.empty:
            required.append(name)
    description = " ".join((inspect.getdoc(function) or "").split())
    return Tool(function.__name__, description, function, parameters, tuple(required))


@dataclass
class Stateless:
    """A tool that keeps nothing between calls."""

    function: Callable[..., str]

    def __call__(self, **parameters: Any) -> str:
        return self.function(**parameters)

    def close(self) -> None:
        """Do nothing."""


def start_tool(made: Tool) -> Running:
    """Return the object that answers the calls of one rollout."""
    return made.start() if made.start is not None else Stateless(made.function)


# --- built-in tools ---------------------------------------------------------------------------------------------------

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
