"""What a tool is: a function with a name, a description and typed parameters."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

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
