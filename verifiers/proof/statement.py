"""The reference of a proof: the statement, and what comes before it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_MODULE = re.compile(r"[A-Za-z_][\w']*(?:\.[A-Za-z_][\w']*)*", re.ASCII)
_KEYS = frozenset({"statement", "imports", "definitions"})
_LEAN_KEYS = _KEYS | {"open"}
_THEOREM = re.compile(r"(?:theorem|lemma|example)\b(?: (?:\.\{|[^\s:({\[])+)?")
_LEAN_COMMAND = re.compile(r":=$|\b(?:theorem|lemma|axiom|def|sorry)\b")


@dataclass(frozen=True)
class Statement:
    """What is to be proved.

    imports: modules; definitions: text of the task's author that comes before the statement. For Lean only: opens are
    namespaces, and binders are such as "(n : ℕ) (h : 0 < n)".
    """

    statement: str
    imports: tuple[str, ...] = ()
    definitions: str = ""
    opens: tuple[str, ...] = ()
    binders: str = ""

    @property
    def header(self) -> str:
        """The binders and the statement, as they stand after a theorem's name."""
        return f"{self.binders} : {self.statement}"


def read_statement(reference: Any) -> Statement:
    reference = _read(reference, _KEYS)
    statement = " ".join(reference["statement"].split()).removesuffix(".")
    if not statement or ". " in statement or ":=" in statement:
        raise ValueError(f"the statement {statement!r:.80}: expected one proposition")
    imports, definitions = _names(reference, "imports"), reference.get("definitions", "")
    if re.search(r"\bLtac2\b", " ".join((*imports, definitions))):
        raise ValueError("the reference imports Ltac2; scripts are read as Coq's first tactic language")
    return _printable(Statement(statement, imports, definitions))


def read_lean_statement(reference: Any) -> Statement:
    """Return the Lean statement in a reference. Raises ValueError, in one line, if there is none.

    A statement is a proposition ("∀ n : ℕ, n + 0 = n") or a theorem ("theorem a (n : ℕ) : n + 0 = n := by sorry").
    """
    reference = _read(reference, _LEAN_KEYS)
    text = " ".join(reference["statement"].split())
    binders = ""
    if any(sign in text for sign in ("--", "/-", "-/")):
        raise ValueError(f"the statement {text!r:.80}: expected no comments")
    if theorem := _THEOREM.match(text):
        if ".{" in theorem.group() + text[theorem.end() :][:2]:
            raise ValueError("universes of a theorem: expected them in the definitions, as 'universe u'")
        text = re.sub(r"\s*:=\s*(?:by\b\s*)?(?:sorry)?$", "", text[theorem.end() :])
        binders, colon, text = _split_binders(text)
        if not colon:
            raise ValueError("the reference's theorem has no type")
    if not text or not _is_balanced(text) or not _is_balanced(binders) or _LEAN_COMMAND.search(text):
        raise ValueError(f"the statement {text!r:.80}: expected one proposition")
    imports, opens = _names(reference, "imports"), _names(reference, "open")
    return _printable(Statement(text, imports, reference.get("definitions", ""), opens, binders))


def _split_binders(text: str) -> tuple[str, str, str]:
    depth = 0
    for at, char in enumerate(text):
        depth += (char in "([{⦃⟨") - (char in ")]}⦄⟩")
        if char == ":" and not depth:
            return text[:at].strip(), ":", text[at + 1 :].strip()
    return text, "", ""


def _is_balanced(text: str) -> bool:
    opened: list[str] = []
    for char in text:
        if char in "([{":
            opened.append(char)
        elif char in ")]}" and (not opened or opened.pop() != "([{"[")]}".index(char)]):
            return False
    return not opened


def _read(reference: Any, keys: frozenset[str]) -> dict[str, Any]:
    if isinstance(reference, str):
        reference = {"statement": reference}
    if not isinstance(reference, dict) or not isinstance(reference.get("statement"), str):
        raise ValueError(f"the reference {reference!r:.80}: expected a statement, or {{'statement': ...}}")
    if unknown := sorted(map(str, set(reference) - keys)):
        raise ValueError(f"the reference has {unknown[0]!r}; expected {', '.join(sorted(keys))}")
    if not isinstance(reference.get("definitions", ""), str):
        raise ValueError("the reference's definitions: expected a text")
    return reference


def _names(reference: dict[str, Any], key: str) -> tuple[str, ...]:
    names = reference.get(key, ())
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and _MODULE.fullmatch(n) for n in names):
        raise ValueError(f"the reference's {key} {names!r:.80}: expected a list of names")
    return tuple(names)


def _printable(statement: Statement) -> Statement:
    text = statement.header + statement.definitions.replace("\n", " ").replace("\t", " ")
    if not text.isprintable():
        raise ValueError("the reference has characters that are not printable")
    return statement
