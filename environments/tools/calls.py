"""Calls of tools in a model's turn, by format, and how results are written. Nothing is evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlvr.core.printable import printable
from rlvr.verifiers.extract import after_thinking

from .tool import Tool

Format = Literal["fenced", "hermes", "llama"]
MAX_READ = 200_000  # characters of a turn
_TAG = "<|python_tag|>"
_OPENING = re.compile(r"[ \t]{0,3}```[ \t]*(\w+)[ \t]*")
_CLOSING = re.compile(r"[ \t]{0,3}```[ \t]*")
# Marks of each format that may be special tokens, which decoding leaves out.
MARKS: Mapping[str, Sequence[str]] = {
    "fenced": (),
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama": (_TAG,),
}
# What would end the block or message of a result, or begin another one.
_MARKS = re.compile(r"`{3}|</?(?:tool_call|tool_response|think|start_of_turn|end_of_turn|s)>|<\|\w{1,40}\|>")


@dataclass(frozen=True)
class Call:
    """A call as the model wrote it. `wrong` says in one line why it cannot be made, or is ""."""

    name: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    wrong: str = ""


def read_calls(said: str, form: Format, tools: Sequence[Tool]) -> list[Call]:
    """Return the calls in a turn of the model, in order. Thinking is not read.

    fenced: blocks with a tool's name as their tag. hermes: <tool_call>{"name", "arguments"}</tool_call>. llama: a turn
    that is {"name", "parameters"}, or several with ";" between, or code after <|python_tag|>.
    """
    thought = after_thinking(said[-MAX_READ:])
    return list(_READERS[form](thought, tools)) if thought is not None else []


def _read_fenced(said: str, tools: Sequence[Tool]) -> Iterator[Call]:
    by_tag = {tag: tool for tool in tools for tag in (tool.name, *tool.languages)}
    inside: str | None = None
    lines: list[str] = []
    for line in said.split("\n"):
        if inside is None:
            opened = _OPENING.fullmatch(line.rstrip("\r"))
            if opened or _CLOSING.fullmatch(line.rstrip("\r")):
                inside, lines = opened[1].lower() if opened else "", []
        elif _CLOSING.fullmatch(line.rstrip("\r")):
            if inside in by_tag:
                yield _read_block(by_tag[inside], "\n".join(lines))
            inside = None
        else:
            lines.append(line)
    if inside in by_tag:
        yield Call(wrong="the block of the call has no end; close it with ```")


def _read_block(tool: Tool, text: str) -> Call:
    """Return the call of a fenced block. Its text is the only parameter, or a JSON object of all."""
    if list(tool.parameters.values()) == [str]:
        return Call(tool.name, {next(iter(tool.parameters)): text})
    try:
        given = _object(text)
    except ValueError as error:
        return Call(wrong=f"a call of {tool.name} is a JSON object with {', '.join(tool.parameters)}: {error}")
    return Call(tool.name, given)


def _read_hermes(said: str, tools: Sequence[Tool]) -> Iterator[Call]:
    place = 0
    while (start := said.find("<tool_call>", place)) >= 0:
        end = said.find("</tool_call>", start)
        if end < 0:
            yield Call(wrong="the call has no end; close it with </tool_call>")
            return
        yield _read_json(said[start + len("<tool_call>") : end], "arguments")
        place = end


def _read_llama(said: str, tools: Sequence[Tool]) -> Iterator[Call]:
    text = said.strip()
    tagged = text.startswith(_TAG)
    text = text.removeprefix(_TAG).strip()
    if not text.startswith("{"):
        if tagged:
            yield Call("python", {"code": text})
        return
    if not tagged and '"name"' not in text:
        return
    decoder = json.JSONDecoder()
    while text:
        try:
            given, end = decoder.raw_decode(text)
        except (ValueError, RecursionError) as error:
            yield Call(wrong=f"the call is no JSON object: {_one_line(error)}")
            return
        yield _read_call(given, "parameters")
        text = text[end:].lstrip("; \n\r\t")
        if text and not text.startswith("{"):
            return


_READERS: Mapping[Format, Callable[[str, Sequence[Tool]], Iterator[Call]]] = {
    "fenced": _read_fenced,
    "hermes": _read_hermes,
    "llama": _read_llama,
}


def _read_json(text: str, key: str) -> Call:
    try:
        return _read_call(_object(text), key)
    except ValueError as error:
        return Call(wrong=f"the call is no JSON object: {error}")


def _read_call(given: Any, key: str) -> Call:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return Call(wrong=f'a call is {{"name": ..., "{key}": {{...}}}}; this one has no name')
    parameters = given.get(key, {})
    if not isinstance(parameters, dict):
        return Call(wrong=f'a call is {{"name": ..., "{key}": {{...}}}}; its {key} are no object')
    return Call(given["name"], parameters)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(_one_line(error)) from error
    if not isinstance(found, dict):
        raise ValueError("it is another value")
    return found


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:80]


def join_results(results: Sequence[str], form: Format) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the text of a reply with these results, and (start, end) of each in it.

    Results are fenced blocks; in other formats several are numbered.
    """
    text, places = "", []
    for number, result in enumerate(results, 1):
        if form == "fenced":
            text += "```output\n"
        elif len(results) > 1:
            text += f"[{number}] " if number == 1 else f"\n[{number}] "
        places.append((len(text), len(text) + len(result)))
        text += result + ("\n```\n" if form == "fenced" else "")
    return text, tuple(places)


def escape_result(text: str, most: int) -> str:
    """Return a result as the model reads it: at most `most` characters, with the middle left out.

    So that a result forges nothing, fences and marks of chat templates get a backslash, control characters are escaped.
    """
    if len(text) > most:
        left_out = len(text) - most
        text = f"{text[: most - most // 2]}\n[{left_out} characters left out]\n{text[len(text) - most // 2 :]}"
    return _MARKS.sub(lambda match: f"{match.group()[0]}\\{match.group()[1:]}", printable(text)).rstrip("\n")


def announcement(tools: Sequence[Tool], form: Format) -> str:
    """Return a text that lists the tools and says how to call one."""
    lines = ["You can use these tools:"]
    for tool in tools:
        kinds = ", ".join(f"{name}: {kind.__name__}" for name, kind in tool.parameters.items())
        lines.append(f"- {tool.name}({kinds}): {tool.description}")
    if form == "fenced":
        tags = " or ".join(f"```{tool.name}" for tool in tools)
        lines.append(f"To call one, write a block that begins with {tags} on a line of its own and ends with ```.")
        lines.append("What follows the line with the name is the parameter (of several, a JSON object).")
        lines.append("The result comes in a block that begins with ```output.")
    elif form == "hermes":
        lines.append('To call one, write <tool_call>{"name": ..., "arguments": {...}}</tool_call>.')
    else:
        lines.append('To call one, answer with {"name": ..., "parameters": {...}} and nothing else.')
    lines.append("A turn without a call is your answer.")
    return "\n".join(lines)
