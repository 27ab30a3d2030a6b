"""Reading a tactic script for Coq: its sentences without comments. A sentence that is no tactic refuses the script.

The prover gets text that is written here from what was read: no comments, plain spaces, one sentence on each line. So
the reader and the prover agree where a sentence ends. This is the first of two defences. The second (`coq`) does not
depend on it: a process that never sees the script compares the compiled proof with the statement. This reader alone
keeps out what errors in the prover's own kernel would let through (`_REFUSED`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from rlvr.core.files.tables import read_words

MAX_SCRIPT = 20_000  # characters
MAX_NESTING = 200  # of brackets, and of comments


class ScriptError(ValueError):
    """The completion is no tactic script; one line says why."""


class ScriptTooLarge(ScriptError):
    """The script exceeds a bound."""


class _Token(NamedTuple):
    kind: str  # "space", "string", "word", "end" or "other"
    text: str


# A word is ASCII. The prover may end a word at another letter or sign (x\u00b2fix), so a new word begins there.
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_']*")
# A letter right after a number is refused: the prover reads 2fix as 2 and fix, and 1e5fix as 1e5 and fix.
_NUMBER = re.compile(r"(?:0x[0-9a-fA-F]+|[0-9][0-9_]*(?:\.[0-9]+)?)(?![A-Za-z_])")
_DOTS = re.compile(r"\.+(?:\s|\Z)?")
# Marks between sentences: bullets, braces, and the goals that a brace or a tactic applies to.
_MARK = re.compile(r"(?:[-+*]+|\{|\}|(?:\d+|\[\w+\])\s*:\s*\{)\s*")
_SELECTOR = re.compile(r"(?:all|par|!|\d+(?:\s*-\s*\d+)?(?:\s*,\s*\d+(?:\s*-\s*\d+)?)*)\s*:(?!=)\s*")
_ENDS = frozenset({"Qed.", "Defined."})
_THEOREM = re.compile(
    r"(?:(?:Theorem|Lemma|Corollary|Proposition|Fact|Remark|Example)\s+[\w']+\s*:|Goal\b)(.*)\.", re.DOTALL
)
_WORDS = read_words(Path(__file__).with_name("words.txt"))
_REFUSED, _COMMANDS = _WORDS["Coq tactics"], _WORDS["Coq commands"]


def tactic_script(text: str, statement: str = "") -> str:
    """Return the script, one sentence on each line, without comments, "Proof." and "Qed.".

    statement: what is to be proved. If the text repeats it as "Theorem NAME : STATEMENT.", the script starts after
    that; another theorem is refused. Raises ScriptError if the text is no list of tactics, and ScriptTooLarge.
    """
    if len(text) > MAX_SCRIPT:
        raise ScriptTooLarge(f"a script of {len(text):,} characters; at most {MAX_SCRIPT:,} are read")
    sentences = _sentences(_tokens(_without_comments(text)))
    if sentences and (repeated := _THEOREM.fullmatch(_text(sentences[0]))):
        if not statement or "".join(repeated[1].split()) != "".join(statement.split()):
            raise ScriptError("a theorem that is not the one to be proved")
        sentences = sentences[1:]
    if sentences and _text(sentences[0]) == "Proof.":
        sentences = sentences[1:]
    if sentences:
        sentences[-1:] = _without_end(sentences[-1])
    if not any(_behind_marks(_text(sentence)) for sentence in sentences):
        raise ScriptError("no tactics")
    names = frozenset(_WORD.findall(statement))
    for sentence in sentences:
        _check(sentence, names)
    return "".join(f"{_text(sentence)}\n" for sentence in sentences)


def _without_comments(text: str) -> str:
    """Return the text with a space in place of each comment.

    The ends of sentences are looked for in the result: a period before a comment and a space ends a sentence.
    """
    found: list[str] = []
    at = 0
    while at < len(text):
        end = at + 1
        if text.startswith("(*", at):
            end = _after_comment(text, at)
            found.append(" ")
        else:
            if text[at] == '"':
                end = _after_string(text, at)
            found.append(text[at:end])
        at = end
    return "".join(found)


def _after_comment(text: str, at: int) -> int:
    """Return the position after a comment. Comments nest, and a string in a comment may hold the marks of one."""
    depth = 0
    while at < len(text):
        if text.startswith("(*", at):
            depth, at = depth + 1, at + 2
        elif text.startswith("*)", at):
            depth, at = depth - 1, at + 2
            if not depth:
                return at
        elif text[at] == '"':
            at = _after_string(text, at)
        else:
            at += 1
    raise ScriptError("a comment does not end")


def _after_string(text: str, at: int) -> int:
    end = text.find('"', at + 1)
    while end >= 0 and text.startswith('""', end):
        end = text.find('"', end + 2)
    if end < 0:
        raise ScriptError("a string does not end")
    return end + 1


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = depth = 0
    while at < len(text):
        here = text[at]
        if here == '"':
            token = _Token("string", text[at : _after_string(text, at)])
        elif here in " \n\t\r":
            token = _Token("space", " ")
        elif match := _WORD.match(text, at):
            token = _Token("word", match.group())
        elif here == ".":
            token = _period(text, at)
        elif here.isascii() and here.isdigit():
            token = _number(text, at)
        else:
            depth += (here in "([") - (here in ")]")
            token = _Token("other", here)
        if depth > MAX_NESTING:
            raise ScriptTooLarge(f"brackets nested more than {MAX_NESTING} deep")
        for char in "" if token.kind == "space" else token.text:
            if not char.isprintable() and not (char in "\n\t\r" and token.kind == "string"):
                raise ScriptError(f"the character U+{ord(char):04X} has no place in a script")
        found.append(token)
        at += len(token.text)
    return found


def _period(text: str, at: int) -> _Token:
    """Return the end of a sentence ("." or "..." before a space), or a period within a sentence."""
    match = _DOTS.match(text, at)
    dots = match.group() if match else "."
    if dots == dots.rstrip(" \n\t\r") and at + len(dots) < len(text):
        return _Token("other", dots)
    if len(dots.rstrip()) not in (1, 3):
        raise ScriptError(f"{dots.rstrip()[:10]} does not end a sentence")
    return _Token("end", dots.rstrip())


def _number(text: str, at: int) -> _Token:
    match = _NUMBER.match(text, at)
    if match is None:
        raise ScriptError(f"{text[at : at + 12]!r} has no place in a script")
    return _Token("other", match.group())


def _sentences(tokens: list[_Token]) -> list[list[_Token]]:
    """Return the sentences. Marks, such as a closing brace, may follow the last one."""
    found: list[list[_Token]] = [[]]
    for token in tokens:
        if token.kind != "space" or (found[-1] and found[-1][-1].kind != "space"):
            found[-1].append(token)
        if token.kind == "end":
            found.append([])
    return [sentence for sentence in found if _text(sentence)]


def _text(sentence: list[_Token]) -> str:
    return "".join(token.text for token in sentence).strip()


def _behind_marks(text: str) -> str:
    at = 0
    while match := _MARK.match(text, at):
        at = match.end()
    return text[at:]


def _without_end(sentence: list[_Token]) -> list[list[_Token]]:
    """Return the last sentence without "Qed." or "Defined."; closing braces before it stay."""
    if _behind_marks(_text(sentence)) not in _ENDS:
        return [sentence]
    return [sentence[:-2]] if len(sentence) > 2 else []


def _check(sentence: list[_Token], names: frozenset[str]) -> None:
    """Raise ScriptError unless the sentence is a tactic, perhaps after marks, or brings back shelved goals.

    names: words of the statement, which may stand in a tactic even if they are commands elsewhere.
    """
    if _text(sentence) == "Unshelve.":
        return
    for kind, word in sentence:
        if kind == "word" and word in _COMMANDS and word not in names:
            raise ScriptError(f"the command {word} has no place in a proof")
        if kind == "word" and word in _REFUSED:
            raise ScriptError(f"{word} is not allowed")
    rest = _behind_marks(_text(sentence))
    if not rest:
        return
    if sentence[-1].kind != "end":
        raise ScriptError("the last sentence does not end with a period")
    if match := _SELECTOR.match(rest):
        rest = rest[match.end() :]
    if not re.match(r"[a-z_(\[]", rest):
        raise ScriptError(f"a sentence that is no tactic: {rest[:60]!r}")
