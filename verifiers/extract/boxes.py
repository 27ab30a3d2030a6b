r"""Boxes: `\boxed{...}` and its relatives; several boxes that make one answer; boxes that are a part of a formula."""

from __future__ import annotations

import re
from typing import NamedTuple

_BRACES = re.compile(r"\\\\|\\[{}]|\\(?:boxed|fbox|framebox|bbox)(?![A-Za-z])\s*(?:\[[^\[\]]{0,40}\])?\s*|[{}]")
_BARE = re.compile(
    r"-?(?:\\?\$)?\s*(?:\\d?frac\s*(?:\{[^{}]{1,200}\}|\d)\s*(?:\{[^{}]{1,200}\}|\d)|\d[\d,./:]*\d|\w)%?"
)


class Box(NamedTuple):
    """A complete box: where it starts and ends in the text, and its contents."""

    start: int
    end: int
    text: str


def boxes(text: str) -> list[Box]:
    """Return the complete outermost boxes, in order. A box that is never closed is skipped; boxes in it count."""
    stack: list[tuple[int, int] | None] = []  # of each open brace: (start of the command, start of the contents)
    found: list[tuple[int, int, int, int]] = []  # (start, end, start and end of the contents)
    position = max(text.find("box") - 6, 0)
    while match := _BRACES.search(text, position):
        sign = match.group()
        position = match.end()
        if sign == "{":
            stack.append(None)
        elif sign == "}":
            opened = stack.pop() if stack else None
            if opened is not None:
                start, inside = opened
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start, position, inside, position - 1))
        elif len(sign) > 2:
            if text[position : position + 1] == "{":
                position += 1
                stack.append((match.start(), position))
            elif bare := _BARE.match(text, position):
                found.append((match.start(), bare.end(), bare.start(), bare.end()))
                position = bare.end()
    # Contents are cut out at the end, since cutting those of nested boxes would take quadratic time.
    return [Box(start, end, text[first:last]) for start, end, first, last in found]


# Text before a box that makes it a part of a formula: -\boxed{42}, \frac{\boxed{42}}{2}. A dash after words, a bullet
# and emphasis do not.
_OPERATED = re.compile(
    r"(?:[$=({&\[\d)}][ \t]*[-−+]|(?:^|\n)[-−+]|(?:\$|\\[(\[]|=)[^$\n=]{0,60}[\d)}]\s*[-−+]\s*|[\d)}]\s*/\s*|√"
    r"|\\(?:cdot|times|div|pm|mp)\s*|\^\s*\{?\s*"
    r"|\\(?:[dt]?frac(?:\s*\{[^{}]{0,80}\})?|sqrt(?:\s*\[[^\[\]]{0,9}\])?|[bx]?cancel|sout|xout|st)\s*\{\s*"
    r"|(?:\$|\\[(\[])[^$<>\n]{0,60}[\w)}]\s*(?:[<>]|\\[lg]t(?![a-z]))\s*"
    r"|(?:\\neq?|≠|!=)\s*|\b(?:is|are|be|equals?|to|get|obtain|gives?)\s+[-−]|\\(?:neg|lnot)\s*|\d)\Z"
)
# The signs with which _OPERATED can end.
_SIGNS_BEFORE = ("-", "−", "+", "/", "√", "^", "{", "\\cdot", "\\times", "\\div", "\\pm", "\\mp",
                 "\\neg", "\\lnot", "\\ne", "\\neq", "≠", "!=", "<", ">", "\\lt", "\\gt", *"0123456789")  # fmt: skip
_OPERATES = re.compile(
    r"\s*(?:\}\s*\{\s*[\d\\]|\^(?!\s*\{?\s*(?:\\circ|°|\\text|\\prime))|\\(?:cdot|times|div)(?![A-Za-z])(?!\s*\\(?:text|boxed))"
    r"|[-−+*/]\s*(?:\d|\\(?:sqrt|[dt]?frac|pi)(?![A-Za-z]))"
    r"|\s*(?:\\text\s*\{\s*)?(?:hundred|thousand|million|billion|trillion)\b)|\d|[knpqrxyz](?![A-Za-z])"
    r"|!+\s*(?:\$|\\[)\]]|[-−+*/^=])|[.,]\d"
)


_ENDS = ("", "$", ")")  # _OPERATES does not begin with these


def is_operand(text: str, box: Box) -> bool:
    """Whether a box is a part of a formula, so that the answer has another value: -\\boxed{42}."""
    sign, following = text[box.end : box.end + 1], text[box.end + 1 : box.end + 2]
    stops = sign in _ENDS or (sign in ".," and not following.isdigit())
    if not stops and _OPERATES.match(text, box.end, box.end + 24):
        return True
    before = text[max(box.start - 100, 0) : box.start]
    return before.rstrip(" \t\n").endswith(_SIGNS_BEFORE) and _OPERATED.search(before) is not None


# The text between boxes that make one answer together: \boxed{1} and \boxed{2}, \boxed{1} (or maybe \boxed{2}).
_NAME = r"[A-Za-z](?:_(?:\d|\{\d\}))?\s*=\s*"
_LABEL = re.compile(rf"(?<![A-Za-z\\])({_NAME})\Z")
OR = r"(?:or|oder|ou|oppure|или|або|lub|veya|atau|eller|maybe|perhaps|possibly|vielleicht|quiz[áa]s?|alternatively)"
_OR = re.compile(rf"\b{OR}\b|\b[eo]\s|或|または|또는", re.IGNORECASE)
_JOINT = re.compile(
    r"(?:\s|[$,;&*()]|\\[()\[\],;:! ]|[/|]|\bvs\b\.?|\\(?:q?quad|text|mbox|mathrm)(?![A-Za-z])|[{}]"
    rf"|\b(?:and|und|et|y|e|o|{OR})\b|和|或者?|可能是?|もしくは|または|또는)*\Z",
    re.IGNORECASE,
)


def _read_between(text: str, left: Box, right: Box) -> str:
    """Return the text between two boxes, without the second label in `x = \\boxed{1} or x = \\boxed{2}`."""
    between = text[left.end : right.start]
    label = _LABEL.search(between[-16:])
    before = label and _LABEL.search(text[max(left.start - 16, 0) : left.start])
    return between[: -len(label[1])] if label and before and label[1][0] == before[1][0] else between


def join_last_boxes(text: str, found: list[Box]) -> tuple[list[Box], str]:
    """Return the last run of boxes with only separators between them, and the word that joins them."""
    run = [found[-1]]
    word = ", "
    for box in reversed(found[:-1]):
        if run[0].start - box.end > 60:
            break
        between = _read_between(text, box, run[0])
        if len(between) > 40 or not _JOINT.match(between):
            break
        if _OR.search(between):
            word = " or "
        run.insert(0, box)
        if len(run) > 64:
            break
    return run, word
