"""Where one formula ends and another begins: dollar signs, \\quad, lines of equations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlvr.verifiers.math.lex import Token

FORMULA_SIGNS = frozenset(("\\quad", "\\qquad", "\\(", "\\)", "\\[", "\\]"))
_EQUATION = re.compile(r"\$?[A-Za-z\\(][^\n=<>]{0,60}(?<![\\&])=")


class Formulas:
    """Where formulas in dollar signs (or `\\(`, `\\[`) begin and end, and where `\\quad` separates them."""

    def __init__(self) -> None:
        self._open = False
        self._closed_at = 0

    def sign(self, text: str, tokens: list[Token], spaced: bool, apart: set[int]) -> None:
        """Take notice of a sign; `apart` gets the place of the token that comes next, if it begins another formula."""
        place = len(tokens)
        if text in ("\\quad", "\\qquad"):
            apart.add(place)
            return
        opens = not self._open if text == "$" else text in ("\\(", "\\[")
        self._open = opens
        if not opens:
            self._closed_at = place
        elif place and self._closed_at == place and spaced:
            apart.add(place)


def new_equation(text: str, position: int, tokens: list[Token]) -> bool:
    """Whether the line that begins here is an equation, below a line that is one."""
    if not tokens or (tokens[-1].kind == "op" and tokens[-1].text not in (")", "}", "]", "|", "!", "deg", "%")):
        return False
    return any(token.text in ("=", "~") for token in tokens[-60:]) and bool(_EQUATION.match(text, position))
