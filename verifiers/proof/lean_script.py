"""Reading a block of Lean tactics: no comments, no command of Lean, nothing that runs programs at compile time.

Lean gets text that is written here from what was read. Comments are removed, but columns stay, since Lean reads the
layout. `lean` puts the block into brackets, so that a block that ends early is an error. The checks in `lean` do not
depend on this reader.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import NamedTuple

from rlvr.core.files.tables import read_words

from .coq_script import MAX_NESTING, ScriptError, ScriptTooLarge

_WORDS = read_words(Path(__file__).with_name("words.txt"))
COMMANDS, TACTICS, REFUSED, NAMESPACES = (
    _WORDS[f"Lean {name}"] for name in ("commands", "tactics", "terms", "namespaces")
)

MAX_SCRIPT = 100_000  # characters
_INDENT = "  "
_CLOSING = {")": "(", "]": "[", "}": "{", "⟩": "⟨"}
# The letters of names, as Lean's own reader has them. With more letters here, a refused word beside one would be
# missed.
_FIRST = "A-Za-z_\u0391-\u039f\u03a1\u03a4-\u03a9\u03b1-\u03ba\u03bc-\u03fb\u2100-\u214f\U0001d49c-\U0001d59f"
_REST = _FIRST + "0-9'!?\u2080-\u2089\u2090-\u209c\u1d62-\u1d6a\u2c7c"
_NAME = re.compile(rf"[{_FIRST}][{_REST}]*(?:\.[{_FIRST}][{_REST}]*)*")
_NUMBER = re.compile(rf"(?:0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?)(?![{_FIRST}])")
_STRING = re.compile(r'"[^"\\\n{}]*"')
_CHARACTER = re.compile(r"'(?:[A-Za-z0-9 ]|\\[nt])'")
_COMMENT = re.compile("/-|-/")
_OPTION = re.compile(r"set_option[ ]+(?:maxHeartbeats|maxRecDepth)[ ]+\d{1,9}[ \n]+in\b")
# The number of elements (#s) and arrays (#[1, 2]). Commands such as #eval have longer names.
_COUNT = re.compile(rf"#(?:[\[(]|[A-Za-z]['₀-₉]*(?![{_REST}.]))")
# Blocks of letters and signs beyond ASCII that Lean and Mathlib use. Others are refused, since they may look like
# these.
_BLOCKS = (
    (0x00AC, 0x00AC), (0x00AF, 0x00B9), (0x00D7, 0x00D7), (0x00F7, 0x00F7), (0x02B0, 0x02B8), (0x02E0, 0x02E4),
    (0x0370, 0x03FF), (0x15EE, 0x15EE), (0x1D2C, 0x1D6A), (0x1D9C, 0x1DBF),
    (0x2016, 0x2016), (0x2020, 0x2022), (0x2026, 0x2026), (0x2032, 0x2037), (0x2039, 0x203A), (0x2045, 0x2046),
    (0x2070, 0x209C), (0x2100, 0x214F), (0x2190, 0x23FF), (0x25A0, 0x25FF), (0x2605, 0x2606), (0x266D, 0x266F),
    (0x2713, 0x2713), (0x271D, 0x271D), (0x27C0, 0x27FF), (0x2900, 0x2AFF), (0x2C7C, 0x2C7C), (0x1D400, 0x1D7FF),
)  # fmt: skip
# A line that ends like _OPENER goes on in the next, deeper line. A line that begins like _TACTIC is a tactic of its
# own.
_OPENER = re.compile(r"(?:\b(?:with|by|calc|do|at|then|from|fun)|=>|:=|[↦,(\[{⟨←|=+*<≤-])$")
_TACTIC = re.compile(
    r"\s*(?:[·.<]|(?:aesop|apply|assumption|by_cases|by_contra|calc|cases|change|classical|congr|constructor|contrapose|"
    r"conv|convert|decide|dsimp|exact|exists|ext|field_simp|first|funext|gcongr|have|induction|interval_cases|intro|intros|"
    r"left|let|linarith|match|nlinarith|norm_cast|norm_num|nth_rewrite|nth_rw|obtain|omega|positivity|push_cast|push_neg|"
    r"rcases|refine|repeat|replace|rfl|right|ring|ring_nf|rintro|rw|set|show|simp|simp_all|simpa|specialize|split|subst|"
    r"suffices|symm|tauto|trivial|unfold|use)['?!]?(?![\w.]))"
)


class _Token(NamedTuple):
    kind: str  # "space", "name", "option" or "other"
    text: str


def tactic_block(text: str, header: str = "") -> str:
    """Return the tactics, indented by two columns, without comments and without "by" before them.

    header: the theorem as the author wrote it, without its name ("(n : ℕ) : n + 0 = n"). If the text repeats it as
    "theorem NAME HEADER := by", the block starts after that; another theorem is refused. Raises ScriptError if the text
    is no block of tactics, and ScriptTooLarge.
    """
    if len(text) > MAX_SCRIPT:
        raise ScriptTooLarge(f"a script of {len(text):,} characters; at most {MAX_SCRIPT:,} are read")
    plain = _without_header(_without_comments(text.replace("\r\n", "\n")), header)
    if not plain.strip():
        raise ScriptError("no tactics")
    tokens = _tokens(plain)
    for token in tokens:
        if token.kind == "name":
            _check_name(token.text)
    return _laid_out("".join(token.text for token in tokens))


def _without_comments(text: str) -> str:
    """Return the text with spaces in place of comments, so that columns stay. ScriptError if a comment does not end."""
    found: list[str] = []
    at = 0
    while at < len(text):
        if match := _STRING.match(text, at):
            found.append(match.group())
            at = match.end()
        elif text.startswith("--", at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif text.startswith("/-", at):
            if text.startswith(("/--", "/-!"), at) and not text.startswith("/--/", at):
                raise ScriptError("a documentation comment has no place in a proof")
            end = _after_comment(text, at)
            found.append("".join("\n" if char == "\n" else " " for char in text[at:end]))
            at = end
        else:
            found.append(text[at])
            at += 1
    return "".join(found)


def _after_comment(text: str, at: int) -> int:
    depth = 0
    for match in _COMMENT.finditer(text, at):
        depth += 1 if match.group() == "/-" else -1
        if not depth:
            return match.end()
        if depth > MAX_NESTING:
            raise ScriptTooLarge(f"comments nested more than {MAX_NESTING} deep")
    raise ScriptError("a comment does not end")


def _without_header(text: str, header: str) -> str:
    """Return the text after "by", or after the repeated theorem."""
    start = text.lstrip()
    if match := re.match(r"(?:theorem|lemma)\s+\S+\s|example\s", start):
        parts = re.split(r":=\s*by\b", start[match.end() :], maxsplit=1)
        if len(parts) < 2 or not header or "".join(parts[0].split()) != "".join(header.split()):
            raise ScriptError("a theorem that is not the one to be proved")
        return parts[1]
    if match := re.match(r"(?::=\s*)?by\b", start):
        return start[match.end() :]
    return text


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    opened: list[str] = []
    at = 0
    while at < len(text):
        here = text[at]
        if here in " \n":
            token = _Token("space", here)
        elif match := _OPTION.match(text, at):
            token = _Token("option", match.group())
        elif match := _NAME.match(text, at):
            for char in match.group():
                _check_character(char)
            token = _Token("name", match.group())
        elif match := _NUMBER.match(text, at):
            token = _Token("other", match.group())
        elif here == "'":
            token = _quote(text, at)
        elif here == '"':
            token = _string(text, at, found[-1] if found else _Token("space", ""))
        else:
            _check_sign(text, at)
            _follow(here, opened)
            token = _Token("other", here)
        found.append(token)
        at += len(token.text)
    if opened:
        raise ScriptError(f"{opened[-1]} is not closed")
    return found


def _quote(text: str, at: int) -> _Token:
    """Return the token that "'" begins or ends: a character such as 'a', the sign '', or a sign such as ⁻¹'.

    After a space Lean reads '(' as a character; after a sign that can end with "'" it reads "(" as a bracket. A text
    that could be either is refused: its bracket would count for only one of the two readers.
    """
    before = text[at - 1 : at]
    if before in (*_CLOSING.values(), "", ",", ";") or before.isspace() or (before.isascii() and before.isalnum()):
        if match := _CHARACTER.match(text, at):
            return _Token("other", match.group())
        if text.startswith("''", at) and text[at + 2 : at + 3] != "'":
            return _Token("other", "''")
    elif before not in "'\"" and text[at + 1 : at + 2] not in ("'", "\\") and text[at + 2 : at + 3] != "'":
        return _Token("other", "'")
    raise ScriptError(f"{text[at : at + 4]!r} has no place in a proof")


def _string(text: str, at: int, before: _Token) -> _Token:
    match = _STRING.match(text, at)
    if match is None or before.kind == "name" or before.text in ("'", "!", "#"):
        raise ScriptError("a string of this form has no place in a proof")
    return _Token("other", match.group())


def _check_character(char: str) -> None:
    if not (char.isascii() or any(first <= ord(char) <= last for first, last in _BLOCKS)):
        raise ScriptError(f"the character U+{ord(char):04X} {unicodedata.name(char, '')} has no place in a proof")


def _check_sign(text: str, at: int) -> None:
    here = text[at]
    if here == "\t":
        raise ScriptError("a tab has no place in a proof")
    _check_character(here)
    if not here.isprintable() or here in "`«»" or (here.isdigit() and here.isascii()):
        raise ScriptError(f"{text[at : at + 12]!r} has no place in a proof")
    if text.startswith("@[", at):
        raise ScriptError("an attribute has no place in a proof")
    if here == "#" and not _COUNT.match(text, at):
        raise ScriptError("a command that begins with # has no place in a proof")


def _follow(here: str, opened: list[str]) -> None:
    """Follow brackets: the block may close only what it has opened."""
    if here in _CLOSING.values():
        opened.append(here)
        if len(opened) > MAX_NESTING:
            raise ScriptTooLarge(f"brackets nested more than {MAX_NESTING} deep")
    elif here in _CLOSING and (not opened or opened.pop() != _CLOSING[here]):
        raise ScriptError(f"{here} closes nothing")


def _check_name(name: str) -> None:
    parts = name.split(".")
    if len(parts) == 1 and name in COMMANDS:  # with a point in it, it is a name
        raise ScriptError(f"the command {name} has no place in a proof")
    for part in parts:
        if part in REFUSED or (len(parts) == 1 and part in TACTICS):
            raise ScriptError(f"{part} is not allowed")
    if next((part for part in parts if part != "_root_"), "") in NAMESPACES:
        raise ScriptError(f"{name} belongs to Lean's implementation")


def _laid_out(text: str) -> str:
    """Return the block with its first column at two. A first line that lost its indentation gets that of the next."""
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[0]:
        del lines[0]
    while lines and not lines[-1]:
        del lines[-1]
    indents = [len(line) - len(line.lstrip()) for line in lines if line]
    rest = min(indents[1:], default=0)
    second = next((line for line in lines[1:] if line), "")
    if indents[0] < rest and _TACTIC.match(second) and not _OPENER.search(lines[0]):
        lines[0] = " " * rest + lines[0].lstrip()
        indents[0] = rest
    common = min(indents)
    return "".join(f"{_INDENT}{line[common:]}\n" if line else "\n" for line in lines)
