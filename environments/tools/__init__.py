"""The environment `tools`: the model calls tools in its turns, and a turn without a call is its answer."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from rlvr.core.registry import did_you_mean, load, register_environment
from rlvr.core.types import Problem, Reply, Verdict, error
from rlvr.verifiers.extract import THINKING

from .calls import MARKS, Call, Format, announcement, escape_result, join_results, read_calls
from .tool import Running, SandboxFailure, Tool, ToolError, calculator, python_tool, start_tool, tool

__all__ = ["SandboxFailure", "Tool", "ToolError", "Tools", "calculator", "python_tool", "tool", "tools"]

BUILT_IN: Mapping[str, Callable[..., Tool]] = {"python": python_tool, "calculator": lambda: calculator}


@register_environment("tools")
@dataclass(frozen=True, kw_only=True)
class Tools:
    """Tools that the model calls: python (programs in the sandbox), calculator, or your own as module:attribute.

    A turn without a call is the answer, which the task's verifier judges. calls: the format of a call; fenced: a block
    with the tool's name as its tag; hermes: <tool_call> (Qwen, Hermes); llama: JSON (Llama 3.1). state: of python; with
    keep, the programs of a rollout share one process of the sandbox and its limits. seconds, memory_mb: limits of a
    program. output_chars: longer results lose their middle. calls_per_turn: further calls are refused.
    """

    tools: tuple[Any, ...] = ("python",)
    calls: Format = "fenced"
    state: Literal["fresh", "keep"] = "fresh"
    seconds: float = 5.0
    memory_mb: int = 1024
    output_chars: int = 2000
    calls_per_turn: int = 4

    def __post_init__(self) -> None:
        if not self.tools:
            raise ValueError("environment 'tools' without a tool; name one, such as tools=python")
        for name in ("output_chars", "calls_per_turn"):
            if getattr(self, name) < 1:
                raise ValueError(f"environment 'tools', {name} {getattr(self, name)}: expected at least 1")
        object.__setattr__(self, "_made", tuple(self._tool(item) for item in self.tools))
        names = [made.name for made in self.prepared_tools]
        if len({*names}) < len(names):
            raise ValueError(f"environment 'tools': two tools of one name among {', '.join(names)}")

    @property
    def prepared_tools(self) -> Sequence[Tool]:
        """The tools."""
        return self._made  # type: ignore[attr-defined]

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as chat templates take them; none for fenced blocks, which templates do not know."""
        return [] if self.calls == "fenced" else [made.schema() for made in self.prepared_tools]

    @property
    def marks(self) -> Sequence[str]:
        """Marks of calls and of thinking, which stay in the text of a turn even if they are special tokens."""
        return (*MARKS[self.calls], *THINKING)

    @property
    def announcement(self) -> str:
        """A text about the tools, for prompts whose chat template does not describe them."""
        return announcement(self.prepared_tools, self.calls)

    def __call__(self, problem: Problem, rng: Random) -> Generator[Reply | None, str, Verdict | None]:
        running: dict[str, Running] = {}
        try:
            said = yield None
            while calls := read_calls(said, self.calls, self.prepared_tools):
                results, failed = [], 0
                for number, call in enumerate(calls[: self.calls_per_turn + 1]):
                    try:
                        if number == self.calls_per_turn:
                            raise ToolError(f"error: at most {number} calls in a turn; the others were not made")
                        results.append(self._result(call, running))
                    except ToolError as wrong:
                        results.append(str(wrong))
                        failed += 1
                    except Exception as broken:  # a tool that does not work is no answer of the model
                        return error(f"tool {call.name}: {type(broken).__name__}: {broken}"[:300])
                void = all(call.wrong for call in calls)
                texts = [escape_result(text, self.output_chars) for text in results]
                role = "user" if self.calls == "fenced" else "tool"
                text, payload = join_results(texts, self.calls)
                said = yield Reply(text, role, void=void, calls=len(results), failed=failed, payload=payload)
            return None
        finally:
            for one in running.values():
                one.close()

    def _result(self, call: Call, running: dict[str, Running]) -> str:
        """Return the result of a call. Raises ToolError if the model is to blame."""
        if call.wrong:
            raise ToolError(f"error: {call.wrong}")
        made = next((made for made in self.prepared_tools if made.name == call.name), None)
        if made is None:
            raise ToolError(
                f"error: no tool {call.name!r:.60}; there is {', '.join(made.name for made in self.prepared_tools)}"
            )
        parameters = made.check_parameters(call.parameters)
        if made.name not in running:
            running[made.name] = start_tool(made)
        result = running[made.name](**parameters)
        if not isinstance(result, str):
            raise TypeError(f"it returned {result!r:.60}; expected text")
        return result

    def _tool(self, item: Any) -> Tool:
        if isinstance(item, Tool):
            return item
        if not isinstance(item, str):
            raise ValueError(f"environment 'tools': {item!r:.60} is no tool; expected a name, or @tool on a function")
        if item == "python":
            return python_tool(self.seconds, self.memory_mb, keep=self.state == "keep")
        if item in BUILT_IN:
            return BUILT_IN[item]()
        if ":" not in item:
            raise LookupError(f"no tool {item!r}; {did_you_mean(item, BUILT_IN)} (or module:attribute)")
        return _import_tool(item)


def _import_tool(spec: str) -> Tool:
    module, _, attribute = spec.partition(":")
    found = getattr(load(functools.partial(importlib.import_module, module), f"tool {spec!r}"), attribute, None)
    if not isinstance(found, Tool):
        raise LookupError(f"tool {spec!r}: {module} has no tool {attribute!r}; put @tool on the function")
    return found


def tools(*made: Tool | str, **settings: Any) -> Tools:
    """Return the environment with these tools, by name or made by `tool`; settings as of Tools."""
    return Tools(tools=made or ("python",), **settings)
