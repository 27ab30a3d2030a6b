"""Calls of tools in what a model said, by format, and how results are written. Nothing of it is evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlvr.core.printable import printable
from rlvr.environments.tools.tool import Tool
from rlvr.verifiers.extract import after_thinking

Format = Literal["fenced", "hermes", "llama"]
MAX_READ = 200_000  # characters of a turn
_TAG = "<|python_tag|>"
_OPENING = re.compile(r"[ \t]{0,3}```[ \t]*(\w+)[ \t]*")
_CLOSING = re.compile(r"[ \t]{0,3}```[ \t]*")
# Of each format the marks that a model may write as one special token, which decoding leaves out.
MARKS: Mapping[str, Sequence[str]] = {
    "fenced": (),
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama": (_TAG,),
}
# What would end the block or the message that a result is in, or begin another one.
_MARKS = re.compile(r"`{3}|</?(?:tool_call|tool_response|think|start_of_turn|end_of_turn|s)>|<\|\w{1,40}\|>")


@dataclass(frozen=True)
class Call:
    """A call as the model wrote it; `wrong` says in one line why it cannot be made, "" where it can."""

    name: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    wrong: str = ""


def read_calls(said: str, form: Format, tools: Sequence[Tool]) -> list[Call]:
    """Return the calls in what the model said, in order; what it thought is not read.

    fenced: blocks with a tool's name as their tag. hermes: <tool_call>{"name", "arguments"}</tool_call>. llama: a turn
    that is {"name", "parameters"}, several of them with ";" between, or code after <|python_tag|>.
    """
    thought = after_thinking(said[-MAX_READ:])
    return list(_READERS[form](thought, tools)) if thought is not None else []


def _fenced(said: str, tools: Sequence[Tool]) -> Iterator[Call]:
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
                yield _of_block(by_tag[inside], "\n".join(lines))
            inside = None
        else:
            lines.append(line)
    if inside in by_tag:
        yield Call(wrong="the block of the call has no end; close it with ```")


def _of_block(tool: Tool, text: str) -> Call:
    """Return the call of a fenced block: its text is the only parameter, or a JSON object of all."""
    if list(tool.parameters.values()) == [str]:
        return Call(tool.name, {next(iter(tool.parameters)): text})
    try:
        given = _object(text)
    except ValueError as error:
        return Call(wrong=f"a call of {tool.name} is a JSON object with {', '.join(tool.parameters)}: {error}")
    return Call(tool.name, given)


def _hermes(said: str, tools: Sequence[Tool]) -> Iterator[Call]:
    place = 0
    while (start := said.find("<tool_call>", place)) >= 0:
        end = said.find("</tool_call>", start)
        if end < 0:
            yield Call(wrong="the call has no end; close it with </tool_call>")
            return
        yield _of_json(said[start + len("<tool_call>") : end], "arguments")
        place = end


def _llama(said: str, tools: Sequence[Tool]) -> Iterator[Call]:
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
            yield Call(wrong=f"the call is no JSON object: {_short(error)}")
            return
        yield _of_object(given, "parameters")
        text = text[end:].lstrip("; \n\r\t")
        if text and not text.startswith("{"):
            return


_READERS: Mapping[Format, Callable[[str, Sequence[Tool]], Iterator[Call]]] = {
    "fenced": _fenced,
    "hermes": _hermes,
    "llama": _llama,
}


def _of_json(text: str, key: str) -> Call:
    try:
        return _of_object(_object(text), key)
    except ValueError as error:
        return Call(wrong=f"the call is no JSON object: {error}")


def _of_object(given: Any, key: str) -> Call:
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
        raise ValueError(_short(error)) from error
    if not isinstance(found, dict):
        raise ValueError("it is another value")
    return found


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:80]


def written(results: Sequence[str], form: Format) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return results as the text of a reply, and where each begins and ends in it.

    They are fenced blocks, or each after its number where there are several.
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


def shown(text: str, most: int) -> str:
    """Return a result as the model reads it: at most `most` characters, from both ends, and nothing that forges.

    Fences of code and the marks of chat templates get a backslash; control characters are escapes.
    """
    if len(text) > most:
        left_out = len(text) - most
        text = f"{text[: most - most // 2]}\n[{left_out} characters left out]\n{text[len(text) - most // 2 :]}"
    return _MARKS.sub(lambda match: f"{match.group()[0]}\\{match.group()[1:]}", printable(text)).rstrip("\n")


def announcement(tools: Sequence[Tool], form: Format) -> str:
    """Return what tells a model in plain text which tools there are and how to call one."""
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
