"""Whether test code demands anything: values that no constant and no argument of the call is.

Only asserts that are executed in any case count. An exception demands nothing, nor does the size or type of an answer.
"""

from __future__ import annotations

import ast

from rlvr.verifiers.code.containers import Value

_TRIVIAL = frozenset(("None", "True", "False", "0", "0.0", "''", "b''", "[]", "()", "{}", "set()"))


class Demands:
    """The values that asserts demand of each function or method, as text, and which arguments have that value too."""

    def __init__(self) -> None:
        self._wanted: dict[str, list[tuple[str, set[int]]]] = {}

    def add(self, theirs: Value, ours: Value) -> None:
        """Note that an answer must be equal to a value of the tests."""
        if not theirs.origin and ours.origin:
            theirs, ours = ours, theirs
        if theirs.origin and not ours.answer:
            echoed = {
                number for number, texts in enumerate(theirs.given) if any(_same(text, ours.text) for text in texts)
            }
            self._wanted.setdefault(theirs.origin, []).append((ours.text, echoed))

    def firm(self) -> bool:
        """Whether a program that solves nothing fails: neither one value fits all asserts, nor one argument."""
        for rows in self._wanted.values():
            texts = {text for text, _ in rows}
            varied = len(texts) > 1 or (len(rows) == 1 and not texts & _TRIVIAL)
            if varied and not set.intersection(*(echoed for _, echoed in rows)):
                return True
        return False


def _same(one: str, other: str) -> bool:
    """Whether two texts are of equal values: dicts may have another order."""
    if one == other or one[:1] != "{":
        return one == other
    try:
        return bool(ast.literal_eval(one) == ast.literal_eval(other))
    except (ValueError, SyntaxError, TypeError):
        return False
