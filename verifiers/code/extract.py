"""Reading a program out of a completion."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlvr.verifiers.code.bounds import parse_bounded
from rlvr.verifiers.extract import BYTE_ORDER_MARK

MAX_COMPLETION = 1 << 20  # characters; a longer one is not searched for a program
MAX_FENCES = 10_000  # a text with more of them is no Markdown: none is read
_RUN = re.compile("```|~~~")
_LANGUAGE = re.compile(r"[ \t]*([\w+#.-]*)")
# The first words of lines that make a program of a text.
_STATEMENT = re.compile(
    r"^[ \t]*(?:def|class|import|from|for|while|if|with|try|return|print|async|@\w+)\b|^[\w., \t]*[-+*/]?=[^=]|\w\(",
    re.MULTILINE,
)
# Columns by which the closing fence of a block may be indented more than its first one, as in CommonMark.
_DEEPER = 3
_PYTHON = frozenset(("", "python", "py", "python3", "python2"))


class Fence(NamedTuple):
    """A line that opens or closes a block: its place in the text, its run of ` or ~, the language after it.

    `before` is what stands before the run: white space, marks of quotes and lists, or a tag such as <answer>; `indent`
    is the number of its columns, 0 for a tag.
    """

    start: int
    end: int
    marker: str
    language: str
    before: str
    indent: int


def fences(text: str) -> Iterator[Fence]:
    """Yield the fences of a Markdown text, in one pass over its lines."""
    end = -1
    while (run := _RUN.search(text, end + 1)) is not None:
        at = run.start()
        start = at if at == end + 1 else text.rfind("\n", end + 1, at) + 1 or end + 1
        end = text.find("\n", at + 3)
        end = end if end >= 0 else len(text)
        line = text[at:end]
        rest = line.lstrip(line[0])
        if "`" in rest:
            continue
        marker, language = line[: len(line) - len(rest)], ""
        if rest and (named := _LANGUAGE.match(rest)) is not None:
            language = named[1]
        if start == at:
            yield Fence(start, end, marker, language, "", 0)
        elif _opens(before := text[start:at]):
            yield Fence(start, end, marker, language, before, _columns(before))


def _columns(before: str) -> int:
    if not before.strip(" "):
        return len(before)
    return 0 if before.endswith(">") and "<" in before else len(before.expandtabs(4))


def _opens(before: str) -> bool:
    """Whether a fence may stand after this on its line: nothing, a mark of a quote or a list, or a tag."""
    found = before.strip(" \t>")
    item = found in ("-", "*", "+") or (found[:-1].isdecimal() and found[-1:] in (".", ")"))
    return not found or item or (before.rstrip().endswith(">") and "<" in found)


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, content) of the fenced blocks of a Markdown text; the last one may be unclosed.

    A block ends at a fence that is indented by at most _DEEPER columns more than its first one: deeper ones are part of
    it, such as those in a docstring. Only where there is no such fence in all that follows, any closes it. A text with
    more than MAX_FENCES has no blocks.
    """
    if text.count("```") + text.count("~~~") > MAX_FENCES:
        return []
    found = list(fences(text))
    deep = any(fence.indent > _DEEPER for fence in found)
    least = _least_indents(found) if deep else itertools.repeat((0, 0))
    blocks = []
    opened: Fence | None = None
    for fence, later in zip(found, least):
        if opened is None:
            opened = fence
        elif not fence.language and fence.marker.startswith(opened.marker):
            deepest = opened.indent + _DEEPER
            if fence.indent <= deepest or later[fence.marker[0] == "~"] > deepest:
                blocks.append((opened.language.lower(), _content(text, opened, fence.start)))
                opened = None
    if opened is not None:
        blocks.append((opened.language.lower(), _content(text, opened, len(text))))
    return blocks


def _least_indents(found: list[Fence]) -> list[tuple[float, float]]:
    """Return the least indentation of the closing fences from each place on, of ``` and of ~~~."""
    least = []
    ticks = tildes = math.inf
    for fence in reversed(found):
        if not fence.language and not fence.before.strip(" \t>"):
            if fence.marker[0] == "`":
                ticks = min(ticks, fence.indent)
            else:
                tildes = min(tildes, fence.indent)
        least.append((ticks, tildes))
    least.reverse()
    return least


def _content(text: str, opened: Fence, end: int) -> str:
    """Return the lines of a block without the indentation and the marks of quotes of its first fence."""
    content = text[opened.end + 1 : end]
    if not opened.indent:
        return content
    prefix = opened.before
    if not prefix.strip(" \t>"):
        lines = [
            line.removeprefix(prefix) if line.startswith(prefix) else _without(line, prefix)
            for line in content.split("\n")
        ]
    else:
        lines = [_without(line, " " * len(prefix)) for line in content.split("\n")]
    return "\n".join(lines)


def _without(line: str, prefix: str) -> str:
    """Return a line without what it begins with of a prefix: its white space, and marks of quotes where it has them."""
    most = 0
    while most < min(len(line), len(prefix)) and line[most] in (" \t>" if ">" in prefix else " \t"):
        most += 1
    return line[most:]


def program_of(completion: str, names: Sequence[str] = ()) -> str:
    """Return the last python fence of a completion, else the whole text.

    Text before a closing </think> is ignored. A fence without a language counts where it looks like a program, or where
    there is no other. Of several, the last that binds one of `names`, which the tests use, is preferred: the ones after
    it show how to call it, or what it prints.
    """
    answer = completion.rpartition("</think>")[2].removeprefix(BYTE_ORDER_MARK)
    blocks = [(language, content) for language, content in fenced_blocks(answer) if language in _PYTHON]
    programs = [content for language, content in blocks if language or (content and _STATEMENT.search(content))]
    contents = programs or [content for _, content in blocks]
    if not contents:
        return answer
    name = f"(?:{'|'.join(map(re.escape, names))})"
    bound = re.compile(rf"^(?:(?:async +)?(?:def|class) +{name}\b|{name} *(?::[^=\n]*)?=[^=])", re.MULTILINE)
    return next((content for content in reversed(contents) if names and bound.search(content)), contents[-1])


def defines(program: str, name: str) -> bool:
    """Whether a program binds `name`. One that does not parse, or is too costly to parse, is searched as text."""
    tree = parse_bounded(program)
    if tree is None:
        return re.search(rf"^(async )?(def|class) {re.escape(name)}\b", program, re.MULTILINE) is not None
    bound = set()
    for statement in tree.body:
        for node in ast.walk(statement):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                bound.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            elif isinstance(node, ast.alias):
                bound.add(node.asname or node.name)
    return name in bound


def imports(program: str, package: str) -> bool:
    """Whether a line of a program imports a package."""
    return re.search(rf"^[ \t]*(?:import|from) +{re.escape(package)}\b", program, re.MULTILINE) is not None


def completed(program: str, prefix: str, entry: str) -> str:
    """Return `program`, after `prefix` where it does not define `entry`: a body without its `def` line."""
    if not prefix or not entry or defines(program, entry):
        return program
    return prefix + program


def prompt_prelude(prompt: str, entry: str) -> str:
    """Return the imports and helper functions of a HumanEval prompt, without the function to write."""
    try:
        tree = ast.parse(prompt + "\n    pass\n")
    except SyntaxError as error:
        raise ValueError(f"the prompt is not Python that ends with a function: {error}") from error
    kept = [s for s in tree.body if not (isinstance(s, ast.FunctionDef) and s.name == entry)]
    return "\n".join(ast.unparse(statement) for statement in kept)
