"""Proofs in Coq: reading a tactic script, compiling it, and comparing what is proved with the statement.

The prover gets text that is written here from what was read: no comments, plain spaces, one sentence on each line. So
the reader and the prover agree where a sentence ends. A sentence that is no tactic refuses the script. This is the
first of two defences. The second does not depend on it: a process that never sees the script compares the compiled
proof with the statement. The reader alone keeps out what errors in the prover's own kernel would let through
(`_REFUSED`).

1. `Rlvr.Given` (the author's definitions) and `Rlvr.Trusted` (the statement) are compiled without the completion.
2. `Rlvr.Solution`, a theorem of that statement with the completion's tactics, is compiled in a run of its own.
3. In a fresh directory with the compiled file only: `Definition check : Trusted.statement := Solution.goal.` and
   `Print Assumptions check.`; then `coqchk` checks Solution and Check with its own kernel.

`Compiled`, `compile_once` and `run_in_workplace` are used for Lean, too.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rlvr.core.files.tables import read_words
from rlvr.core.printable import in_one_line
from rlvr.core.types import Verdict, bad_reference, correct, error, incorrect, limit, timeout
from rlvr.sandbox.external import ExternalLimits, Finished, run_external, workplace

from ..cache import Cache
from .statement import Statement

# --- tactic scripts ---------------------------------------------------------------------------------------------------

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


# --- runs of the prover -----------------------------------------------------------------------------------------------

MAX_COMPILED = 16 << 20  # bytes of a compiled proof
_CLOSED = "Closed under the global context"
_ENVIRONMENT = {"OCAMLFIND_CONF": "/dev/null", "COQPATH": ""}
_CHECK = """From Rlvr Require Trusted Solution.
Definition check : Rlvr.Trusted.statement := Rlvr.Solution.goal.
Print Assumptions check.
"""
_SOURCES = ("Given", "Trusted")
_KEPT = 4096


class Compiled(NamedTuple):
    """The compiled modules of a statement {file name: bytes}, or the verdict that says why there are none."""

    files: dict[str, bytes]
    failure: Verdict | None = None


class Coq:
    """Coq's programs on this machine. path: the directory of coqc and coqchk, "" for PATH."""

    def __init__(self, path: str, limits: ExternalLimits, axioms: tuple[str, ...]) -> None:
        self._path, self._limits, self._axioms = path, limits, axioms
        self._compiled: Cache[Statement, Compiled] = Cache(_KEPT)

    def find_missing(self) -> str:
        for name in ("coqc", "coqchk"):
            if self._program(name) is None:
                where = f"in {self._path}" if self._path else "on PATH"
                return f"{name} is not {where}; install Coq (apt install coq)"
        return ""

    def _program(self, name: str) -> str | None:
        return shutil.which(name, path=self._path or None)

    def judge(self, statement: Statement, script: str) -> Verdict:
        trusted = self._compile_once(statement)
        if trusted.failure is not None:
            return trusted.failure
        source = f"{_heading(statement)}Theorem goal : {statement.statement}.\nProof.\n{script}Qed.\n"
        found, solution = self._coqc("Solution", source, trusted.files)
        if found.status != "ok":
            return _explain_failure(found, "Solution.v")
        if solution is None:
            return limit(f"a compiled proof of more than {MAX_COMPILED >> 20} MB")
        return self._check({**trusted.files, "Solution.vo": solution})

    def _compile_once(self, statement: Statement) -> Compiled:
        return compile_once(self._compiled, statement, self._compile)

    def _compile(self, statement: Statement) -> Compiled:
        files: dict[str, bytes] = {}
        sources = {
            "Given": _imports(statement) + statement.definitions + "\n",
            "Trusted": f"{_heading(statement)}Definition statement : Type := {statement.statement}.\n",
        }
        for name in _SOURCES:
            if name == "Given" and not statement.definitions:
                continue
            found, data = self._coqc(name, sources[name], files)
            if data is None:
                return Compiled({}, _explain_refusal(found, f"{name}.v"))
            files[f"{name}.vo"] = data
        return Compiled(files)

    def _coqc(self, name: str, source: str, library: dict[str, bytes]) -> tuple[Finished, bytes | None]:
        """Compile one module in a sandbox that can read `library`. Return the run, and the compiled file."""
        run = partial(self._run, "coqc", ["-w", "none", f"{name}.v"])
        return run_in_workplace(run, library, {f"{name}.v": source.encode()}, f"{name}.vo")

    def _run(self, program: str, arguments: list[str], place: str) -> Finished:
        path = os.path.realpath(self._program(program) or program)
        # The library of an installation that is not the system's, such as opam's.
        own = os.path.join(os.path.dirname(os.path.dirname(path)), "lib")
        library, out = os.path.join(place, "lib"), os.path.join(place, "out")
        options = ["-q"] if program == "coqc" else ["-silent", "-o"]
        command = [path, *options, "-Q", library, "Rlvr"]
        if program == "coqc":
            command += ["-Q", out, "Rlvr"]
        command += arguments
        return run_external(command, out, read=[library, own], limits=self._limits, environment=_ENVIRONMENT)

    def _check(self, files: dict[str, bytes]) -> Verdict:
        found, compiled = self._coqc("Check", _CHECK, files)
        if found.status != "ok":
            return _explain_failure(found, "Check.v", "what is proved is not the statement: ")
        if unproved := self._find_assumption(found.stdout):
            return incorrect(f"rests on {in_one_line(unproved)}")
        if compiled is None:
            return error("the comparison with the statement was not compiled")
        arguments = [part for name in ("Solution", "Check") for part in ("-norec", f"Rlvr.{name}")]
        found, _ = run_in_workplace(partial(self._run, "coqchk", arguments), {**files, "Check.vo": compiled}, {})
        if found.status != "ok":
            return _explain_failure(found, "", "coqchk: ")
        summary = found.stdout + found.stderr
        if "CONTEXT SUMMARY" not in summary:
            return error("coqchk has given no summary")
        if unsafe := _find_unsafe(summary):
            return incorrect(f"coqchk: rests on {unsafe}")
        return correct(reason="the prover and its checker accept the proof")

    def _find_assumption(self, printed: str) -> str:
        """Return the first assumption that `Print Assumptions` has printed and that is not allowed, or ""."""
        lines = printed.strip().splitlines()
        if lines == [_CLOSED]:
            return ""
        if not lines or lines[0] != "Axioms:":
            return lines[0] if lines else "assumptions that were not printed"
        for line in lines[1:]:
            # After the name of an axiom stands its type, also on more lines, which begin with spaces.
            if not line.startswith(" ") and line.split(" :")[0].strip() not in self._axioms:
                return line
        return ""


def _imports(statement: Statement) -> str:
    return "".join(f"Require Import {name}.\n" for name in statement.imports)


def _heading(statement: Statement) -> str:
    return _imports(statement) + ("From Rlvr Require Import Given.\n" if statement.definitions else "")


def compile_once(
    known: Cache[Statement, Compiled], statement: Statement, compile_statement: Callable[[Statement], Compiled]
) -> Compiled:
    """Return the compiled statement, from the cache if it was compiled before. An error may be none the next time."""
    found = known.get(statement)
    if found is None:
        found = compile_statement(statement)
        if found.failure is None or found.failure.status == "bad_reference":
            known.put(statement, found)
    return found


def run_in_workplace(
    run: Callable[[str], Finished], library: dict[str, bytes], files: dict[str, bytes], made: str = ""
) -> tuple[Finished, bytes | None]:
    """Return what `run` gives in a directory whose folder `lib` holds `library`, and `out` the `files`.

    The second value is the file `made` that a successful run has left in `out`.
    """
    with workplace() as place:
        for folder, contents in (("lib", library), ("out", files)):
            directory = os.path.join(place, folder)
            os.mkdir(directory, 0o755)
            for name, data in contents.items():
                with open(os.path.join(directory, name), "wb") as file:
                    file.write(data)
        found = run(place)
        return found, read_compiled(os.path.join(place, "out", made)) if made and found.status == "ok" else None


def read_compiled(path: str) -> bytes | None:
    """Return a file that a run has written; None if there is none, if it is no regular file, or if it is too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        data = file.read(MAX_COMPILED + 1)
    return data if len(data) <= MAX_COMPILED else None


_UNSAFE = re.compile(r"\* (Constants/Inductives relying on [^:]*|Inductives whose [^:]*): ?(.*)")


def _find_unsafe(summary: str) -> str:
    """Return what a summary of coqchk names besides axioms of the library, or ""."""
    sections = _UNSAFE.findall(summary)
    if len(sections) < 3:
        return "something that its summary does not tell"
    for title, content in sections:
        if content.strip() != "<none>":
            return str(title)
    own = re.search(r"^\s+Rlvr\.(?:Solution|Check)\.\S+", summary, re.MULTILINE)
    return own.group().strip() if own else ""


# What a prover prints if it has no memory or stack left, and if the machine cannot give it what it needs.
_OVER = re.compile(
    r"(?:Fatal error: )?(?:exception )?(?:Stdlib\.)?(?:Out.of.memory|not enough memory|Stack.overflow|ended by signal)",
    re.IGNORECASE,
)
_MACHINE = re.compile(
    r'System error: "(?:[^"]*: )?(?:No space left|Disk quota|Too many open files|Input/output|Cannot allocate)'
    r"|Anomaly .{0,80}Unix\.E(?:NOSPC|DQUOT|MFILE|NFILE|IO|NOMEM|AGAIN)\b"
)


def explain_ended_run(found: Finished) -> Verdict | None:
    """Return the verdict on a run that the sandbox has ended; None for a run that has ended by itself."""
    if found.status == "sandbox_error":
        return error(f"sandbox_error: {in_one_line(found.detail)}")
    if found.status == "timeout":
        return timeout(f"the prover took {found.detail}")
    return limit(f"the prover wrote {found.detail}") if found.status == "limit" else None


def _explain_failure(found: Finished, name: str, before: str = "") -> Verdict:
    if ended := explain_ended_run(found):
        return ended
    why = _read_first_error(found, name)
    if _MACHINE.match(why):
        return error(f"{before}{why}")
    return limit(f"{before}{why}") if _OVER.match(why) else incorrect(f"{before}{why}")


def _explain_refusal(found: Finished, name: str) -> Verdict:
    """Return the verdict on a statement that was not compiled: *error* if the statement is not to blame."""
    if found.status == "ok":
        return error(f"{name} was compiled to more than {MAX_COMPILED >> 20} MB, or to nothing")
    failure = _explain_failure(found, name)
    if failure.status == "incorrect":
        return bad_reference(f"the prover refuses the statement: {failure.reason}")
    return error(f"the statement was not compiled: {failure.reason}")


def _read_first_error(found: Finished, name: str) -> str:
    """Return the prover's first error in one line of at most 200 characters."""
    text = found.stderr.strip() or found.detail
    text = text[text.find("Error:") :].removeprefix("Error:") if "Error:" in text else text.splitlines()[-1]
    return in_one_line(" ".join(text.split()))[:200] or f"{name or 'the check'} failed: {found.detail}"
