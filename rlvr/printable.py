"""Text for a terminal: what a model or a file wrote must not move the cursor, clear the screen or turn text around.

Standard library only.
"""

from __future__ import annotations

import re
from functools import cache

# Cc: control characters, the escape among them; Cs: half of a surrogate pair, which UTF-8 cannot hold; the others of
# Cf that turn the direction of text, so that it reads otherwise than it is stored.
HIDDEN = "\x00-\x1f\x7f-\x9f\ud800-\udfff"
TURNING = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"


def printable(text: str, *, keep: str = "\n\t") -> str:
    """`text` with control characters (but those of `keep`) written as escapes such as \\x1b. The rest is unchanged."""
    if text.isprintable():
        return text
    return _hidden(keep).sub(lambda found: _escaped(found[0]), text)


def in_one_line(text: str) -> str:
    """`text` on one line: runs of whitespace as one space, control characters as escapes."""
    return printable(" ".join(text.split()), keep="")


# Of values that were read from a file or given by a user's code.
KINDS = {
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def kind_of(value: object) -> str:
    """Return in words what a value is: `a list`, `text`, `a Path`."""
    name = type(value).__name__
    return KINDS.get(type(value), f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}")


@cache
def _hidden(keep: str) -> re.Pattern[str]:
    """Return what matches a character to escape."""
    kept = f"(?![{re.escape(keep)}])" if keep else ""
    return re.compile(f"{kept}[{HIDDEN}{TURNING}]")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
