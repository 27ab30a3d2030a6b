"""The reference of a proof: the statement, and what it needs before it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_MODULE = re.compile(r"[A-Za-z_][\w']*(?:\.[A-Za-z_][\w']*)*", re.ASCII)
_KEYS = {"statement", "imports", "definitions"}


@dataclass(frozen=True)
class Statement:
    """What is to be proved. `imports`: modules; `definitions`: text of the task's author that comes before it."""

    statement: str
    imports: tuple[str, ...] = ()
    definitions: str = ""


def read_statement(reference: Any) -> Statement:
    """Return the statement that a reference holds. Raises ValueError, in one line, where it holds none."""
    if isinstance(reference, str):
        reference = {"statement": reference}
    if not isinstance(reference, dict) or not isinstance(reference.get("statement"), str):
        raise ValueError(f"the reference {reference!r:.80}: expected a statement, or {{'statement': ...}}")
    if unknown := sorted(map(str, set(reference) - _KEYS)):
        raise ValueError(f"the reference has {unknown[0]!r}; expected statement, imports, definitions")
    imports, definitions = reference.get("imports", ()), reference.get("definitions", "")
    if not isinstance(imports, list | tuple) or not all(isinstance(n, str) and _MODULE.fullmatch(n) for n in imports):
        raise ValueError(f"the reference's imports {imports!r:.80}: expected a list of names of modules")
    if not isinstance(definitions, str):
        raise ValueError("the reference's definitions: expected a text")
    statement = " ".join(reference["statement"].split()).removesuffix(".")
    if not statement or ". " in statement or ":=" in statement:
        raise ValueError(f"the statement {statement!r:.80}: expected one proposition")
    if not (statement + definitions.replace("\n", " ").replace("\t", " ")).isprintable():
        raise ValueError("the reference has characters that are not printable")
    return Statement(statement, tuple(imports), definitions)
