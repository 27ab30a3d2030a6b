"""Reading a tactic script: its sentences, without comments; refused where one of them is no tactic.

The text that the prover gets is made here from what was read: no comments, plain spaces, one sentence a line. What ends
a sentence for this reader and for the prover is then the same. That is the first of two defences; the second does not
depend on it (`coq`): the compiled proof is compared with the statement by a process that never sees the script.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_SCRIPT = 20_000  # characters
MAX_NESTING = 200  # of brackets, and of comments


class ScriptError(ValueError):
    """The completion is no tactic script; one line says why."""


class ScriptTooLarge(ScriptError):
    """The script exceeds a bound."""


class _Token(NamedTuple):
    kind: str  # "space", "string", "word", "end" or "other"
    text: str


_WORD = re.compile(r"[^\W\d][\w']*")
_END = re.compile(r"\.+(?=\s|$)")
# Marks between sentences: bullets, braces, and goals that a brace or a tactic is for.
_MARK = re.compile(r"(?:[-+*]+|\{|\}|(?:\d+|\[\w+\])\s*:\s*\{)")
_SELECTOR = re.compile(r"(?:all|par|!|\d+(?:\s*-\s*\d+)?(?:\s*,\s*\d+(?:\s*-\s*\d+)?)*)\s*:(?!=)\s*")
# No tactic begins with these, or a tactic whose result the kernel does not check, or that starts programs or hides
# what is left open.
_REFUSED = frozenset({"admit", "give_up", "native_compute", "native_cast_no_check", "external", "timeout", "time"})
# Commands of the prover. A script has no use for these words, wherever they stand.
_COMMANDS = frozenset(
    """Abort About Admit Admitted Arguments Axiom Axioms Back BackTo Backtrack Bind Canonical Cd Check Class
    CoFixpoint CoInductive Coercion Combined Compute Conjecture Conjectures Context Corollary Create Debug Declare
    Defined Definition Delimit Derive Drop End Eval Example Existing Export Extract Extraction Fail Fixpoint
    Focus From Functional Generalizable Global Goal Hint Hypothesis Hypotheses Implicit Import Include
    Inductive Infix Info Inspect Instance Lemma Load Local Locate Ltac Ltac2 ML Module Monomorphic Next
    Notation NonCumulative Numeral Obligation Obligations Opaque Open Optimize Parameter Parameters
    Polymorphic Preterm Primitive Print Private Proof Program Proposition Pwd Qed Quit Record Redirect Register
    Remark Remove Require Reserved Reset Restart Save Scheme Search SearchPattern SearchRewrite Section Separate Set
    Show Solve Strategy Structure SubClass Succeed Tactic Test Theorem Timeout Transparent Type_of Typeclasses
    Undelimit Undo Unfocus Unfocused Universe Universes Unset Unshelve Variable Variables Variant Vernac""".split()
)


def tactic_script(text: str) -> str:
    """Return the script, one sentence a line, without comments; "Proof." before and "Qed." behind are left out.

    Raises ScriptError for what is no list of tactics, and ScriptTooLarge.
    """
    if len(text) > MAX_SCRIPT:
        raise ScriptTooLarge(f"a script of {len(text):,} characters; at most {MAX_SCRIPT:,} are read")
    sentences = _sentences(_tokens(text))
    if sentences and sentences[0] == "Proof.":
        sentences = sentences[1:]
    if sentences and sentences[-1] == "Qed.":
        sentences = sentences[:-1]
    if not sentences:
        raise ScriptError("no tactics")
    for sentence in sentences:
        _check(sentence)
    return "\n".join(sentences) + "\n"


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = depth = 0
    while at < len(text):
        here = text[at]
        if text.startswith("(*", at):
            at = _after_comment(text, at)
            found.append(_Token("space", " "))
        elif here == '"':
            at, string = _string(text, at)
            found.append(_Token("string", string))
        elif here in " \n\t\r":
            found.append(_Token("space", " "))
            at += 1
        elif not here.isprintable() or here.isspace():
            raise ScriptError(f"the character U+{ord(here):04X} has no place in a script")
        elif match := _WORD.match(text, at):
            found.append(_Token("word", match.group()))
            at = match.end()
        elif match := _END.match(text, at):
            found.append(_Token("end", match.group()))
            at = match.end()
        else:
            depth += (here in "([") - (here in ")]")
            if depth > MAX_NESTING:
                raise ScriptTooLarge(f"brackets nested more than {MAX_NESTING} deep")
            found.append(_Token("other", here))
            at += 1
    return found


def _after_comment(text: str, at: int) -> int:
    """Return the position behind a comment. Comments nest, and a string in one may hold its marks."""
    depth = 0
    while at < len(text):
        if text.startswith("(*", at):
            depth, at = depth + 1, at + 2
        elif text.startswith("*)", at):
            depth, at = depth - 1, at + 2
            if not depth:
                return at
        elif text[at] == '"':
            at = _string(text, at)[0]
        else:
            at += 1
    raise ScriptError("a comment does not end")


def _string(text: str, at: int) -> tuple[int, str]:
    end = text.find('"', at + 1)
    while end >= 0 and text.startswith('""', end):
        end = text.find('"', end + 2)
    if end < 0:
        raise ScriptError("a string does not end")
    return end + 1, text[at : end + 1]


def _sentences(tokens: list[_Token]) -> list[str]:
    found, current = [], ""
    for token in tokens:
        if token.kind == "word" and token.text in _COMMANDS and token.text not in ("Proof", "Qed"):
            raise ScriptError(f"the command {token.text} has no place in a proof")
        if token.kind == "word" and token.text in _REFUSED:
            raise ScriptError(f"{token.text} is not allowed")
        if token.kind != "space" or (current and not current.endswith(" ")):
            current += token.text
        if token.kind == "end":
            found.append(current)
            current = ""
    if current.strip():
        # Marks may follow the last sentence: a closing brace.
        found.append(current.strip())
    return found


def _check(sentence: str) -> None:
    """Raise ScriptError unless the sentence is marks, and a tactic behind them."""
    at = 0
    while match := _MARK.match(sentence, at):
        at = match.end()
        while sentence.startswith(" ", at):
            at += 1
    rest = sentence[at:]
    if not rest:
        return
    if not _END.search(rest):
        raise ScriptError("the last sentence does not end with a period")
    if match := _SELECTOR.match(rest):
        rest = rest[match.end() :]
    if {"Proof", "Qed"} & set(_WORD.findall(_without_strings(rest))):
        raise ScriptError("Proof and Qed have no place within a proof")
    if not re.match(r"[a-z_(\[]", rest):
        raise ScriptError(f"a sentence that is no tactic: {rest[:60]!r}")


def _without_strings(text: str) -> str:
    return re.sub(r'"[^"]*"', '""', text)
