"""Text for a terminal: what a model or a file wrote must not move the cursor, clear the screen or turn text around.

Standard library only.
"""

from __future__ import annotations

import unicodedata

# Cc: control characters, the escape among them; Cs: half of a surrogate pair, which UTF-8 cannot hold; the others of
# Cf that turn the direction of text, so that it reads otherwise than it is stored.
HIDDEN = frozenset({"Cc", "Cs"})
TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str, *, keep: str = "\n\t") -> str:
    """`text` with control characters (but those of `keep`) written as escapes such as \\x1b. The rest is unchanged."""
    if text.isprintable():
        return text
    return "".join(_escaped(character) if _is_hidden(character, keep) else character for character in text)


def in_one_line(text: str) -> str:
    """`text` on one line: runs of whitespace as one space, control characters as escapes."""
    return printable(" ".join(text.split()), keep="")


def _is_hidden(character: str, keep: str) -> bool:
    if character in keep:
        return False
    return unicodedata.category(character) in HIDDEN or character in TURNING


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
