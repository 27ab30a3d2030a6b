"""The parts of a completion: the answer after what was thought, and fenced blocks of Markdown, read in linear time."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

BYTE_ORDER_MARK = "\ufeff"  # some editors put it before a text

_TAGS = ("think", "thinking", "thought", "reasoning")
_OPENERS = (*(f"<{tag}>" for tag in _TAGS), "<|begin_of_thought|>")
_CLOSERS = (*(f"</{tag}>" for tag in _TAGS), "<|end_of_thought|>")
THINKING = (*_OPENERS, *_CLOSERS)


def after_thinking(text: str) -> str | None:
    """Return the text after the last closing think tag; None if a think tag is opened and never closed."""
    text = text.removeprefix(BYTE_ORDER_MARK)
    if "<" not in text:
        return text
    end, closer = max((text.rfind(closer), closer) for closer in _CLOSERS)
    if end >= 0:
        text = text[end + len(closer) :]
    return None if any(opener in text for opener in _OPENERS) else text


MAX_FENCES = 10_000  # a text with more of them is no Markdown: none is read
_RUN = re.compile("```|~~~")
_LANGUAGE = re.compile(r"[ \t]*([\w+#.-]*)")
# A closing fence may be indented by so many columns more than the opening one, as in CommonMark.
_DEEPER = 3


class Fence(NamedTuple):
    """A line that opens or closes a block: its place in the text, its run of ` or ~, and the language after it.

    before: the text before the run: white space, marks of quotes and lists, or a tag such as <answer>. indent: the
    number of columns of that text, 0 for a tag.
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
    """Whether a fence may stand after this text on its line: nothing, a mark of a quote or a list, or a tag."""
    found = before.strip(" \t>")
    item = found in ("-", "*", "+") or (found[:-1].isdecimal() and found[-1:] in (".", ")"))
    return not found or item or (before.rstrip().endswith(">") and "<" in found)


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, content) of the fenced blocks of a Markdown text. The last block may be unclosed.

    A block ends at a fence that is indented by at most _DEEPER columns more than its first one. Deeper fences, such as
    those in a docstring, are part of the block; but if no other fence follows, a deeper one closes it. A text with more
    than MAX_FENCES fences has no blocks.
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
    """Return, for each fence, the least indentation of the closing fences from there on: of ``` and of ~~~."""
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
    """Return the lines of a block, without the indentation and the quote marks of its first fence."""
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
    """Return a line without the part of a prefix that it begins with: white space, and quote marks if it has any."""
    most = 0
    while most < min(len(line), len(prefix)) and line[most] in (" \t>" if ">" in prefix else " \t"):
        most += 1
    return line[most:]


def fenced_answer(completion: str) -> str:
    """Return the last fenced block after the thinking, or all of that text if it has no block. Lines end in "\\n".

    Returns "" if a think tag is never closed.
    """
    answer = (after_thinking(completion) or "").replace("\r\n", "\n")
    blocks = fenced_blocks(answer)
    return blocks[-1][1] if blocks else answer
