"""Proofs in Lean 4: reading a block of tactics, the files that Lean gets, what its answers mean; a toolchain, a server.

The reader refuses a block that holds a command of Lean or anything that runs programs at compile time. It removes
comments, without moving columns, since Lean reads the layout. Lean then gets a text that this module writes from what
was read. The block stands in brackets there, so that a block that ends early is an error. The checks below do not
depend on the reader.

The statement is a definition, `RlvrTrusted.statement`, which Lean elaborates before it sees the completion. After the
theorem with the completion's tactics stand `theorem RlvrCheck.CODE : RlvrTrusted.statement := @RlvrSolution.goal` and
`#print axioms RlvrCheck.CODE`. CODE is random for each check, and a pass needs an answer that names it.

With a toolchain (`Lean`), each step is a run of its own in the sandbox:

1. `RlvrTrusted` (definitions and statement) is compiled without the completion, once for all of its completions.
2. `RlvrSolution`, the theorem with the completion's tactics, is compiled.
3. `RlvrCheck` is compiled, where only the compiled file of step 2 is: it compares, and prints the axioms.
4. `lean --run` of `REPLAY` reads the declarations of step 2 as data. Lean's kernel checks each of them again beside the
   statement. Nothing of the completion is elaborated or imported there.

A server (`LeanServer`) has the HTTP interface of the Kimina Lean server (`POST /verify`). It gets one text with the
statement, the theorem and the comparison, and one process elaborates it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import threading
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rlvr.core.files.tables import read_words
from rlvr.core.http import JSONClient, RequestRefused, ServerLost, UnexpectedResponse
from rlvr.core.printable import in_one_line
from rlvr.core.types import Verdict, bad_reference, correct, error, incorrect, limit, timeout
from rlvr.sandbox.external import ExternalLimits, Finished, run_external

from ..cache import Cache
from .coq import (
    MAX_COMPILED,
    MAX_NESTING,
    Compiled,
    ScriptError,
    ScriptTooLarge,
    compile_once,
    explain_ended_run,
    run_in_workplace,
)
from .statement import Statement

# --- blocks of tactics ------------------------------------------------------------------------------------------------

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


# --- files and answers ------------------------------------------------------------------------------------------------

AXIOMS = ("propext", "Classical.choice", "Quot.sound")
TRUSTED, SOLUTION, CHECK = "RlvrTrusted", "RlvrSolution", "RlvrCheck"
# Known proofs, which show whether a Lean really checks: the first is right, the others are wrong.
PROBES = ((True, "  exact fun _ _ h => h.1\n"), (False, "  sorry\n"), (False, "  exact fun _ _ h => h.2\n"))
PROBE = Statement("∀ p q : Prop, p ∧ q → p")
REPLAY = Path(__file__).with_name("replay.lean").read_text("utf-8")


class Message(NamedTuple):
    """One message of Lean. severity: "error", "warning" or "information"; data: its text."""

    severity: str
    data: str


def new_code() -> str:
    """Return a name that no completion can guess."""
    return f"n{secrets.token_hex(12)}"


def trusted_file(statement: Statement) -> str:
    """Return the module that holds the definitions and the statement."""
    given = f"∀ {statement.binders}, {statement.statement}" if statement.binders else statement.statement
    imports = "".join(f"import {name}\n" for name in statement.imports)
    body = f"def {TRUSTED}.statement : Prop := {given}\n"
    return f"{imports}set_option autoImplicit false\n{statement.definitions}\n{_opens(statement)}{body}"


def theorem(statement: Statement, block: str) -> str:
    """Return the theorem with a block of tactics. Because of the bracket, a block that ends early is an error."""
    return f"theorem {SOLUTION}.goal {statement.header} := (by\n{block})\n"


def solution_file(statement: Statement, block: str) -> str:
    """Return the module with the completion's tactics."""
    universes = "".join(f"{line}\n" for line in re.findall(r"^universe .*$", statement.definitions, re.MULTILINE))
    opens = universes + _opens(statement)
    return f"import {TRUSTED}\nset_option autoImplicit false\n{opens}{theorem(statement, block)}"


def comparison(code: str) -> str:
    """Return the commands that compare the proof with the statement and print what it rests on."""
    return f"theorem {CHECK}.{code} : {TRUSTED}.statement := @{SOLUTION}.goal\n#print axioms {CHECK}.{code}\n"


def check_file(code: str) -> str:
    """Return the module that compares; it does not hold the completion."""
    return f"import {SOLUTION}\n{comparison(code)}"


def whole_file(statement: Statement, block: str, code: str) -> str:
    """Return everything in one text, for a server."""
    return f"{trusted_file(statement)}{theorem(statement, block)}{comparison(code)}"


def _opens(statement: Statement) -> str:
    return f"open {' '.join(statement.opens)}\n" if statement.opens else ""


def first_error(messages: Iterable[Message]) -> str:
    """Return the first error, or the first warning of an unproved goal, in one line; "" if there is none."""
    for message in messages:
        text = in_one_line(" ".join(message.data.split()))[:200]
        if message.severity not in ("warning", "information", "info", "trace"):
            return text or "an error without a text"
        if re.search(r"\buses\W{1,3}(?:sorry|admit)\b", text):
            return f"the proof {text}"
    return ""


def judge(messages: Sequence[Message], code: str, allowed: Sequence[str]) -> Verdict:
    """Return the verdict on what Lean says about `comparison(code)` and the text before it."""
    if why := first_error(messages):
        return incorrect(why)
    answers = [message.data for message in messages if code in message.data]
    name = rf"'?{CHECK}\.{code}'?"
    if len(answers) != 1 or not (
        match := re.fullmatch(rf"{name} (?:(does not)|depends) .*?(?:\[(.*)\])?", answers[0].strip(), re.DOTALL)
    ):
        return incorrect("Lean has not said what the proof rests on")
    if bool(match[1]) == (match[2] is not None):
        return incorrect("Lean has not said what the proof rests on")
    return judge_axioms((match[2] or "").split(","), allowed)


def judge_axioms(names: Iterable[str], allowed: Sequence[str]) -> Verdict:
    """Return *correct* if all names are allowed."""
    for name in filter(None, (name.strip() for name in names)):
        if name not in allowed:
            return incorrect(f"rests on {in_one_line(name)[:100]}")
    return correct(reason="Lean accepts the proof")


_ASKED = 120.0  # seconds that lake and lean may take to say where they are
_THREADS = 2
_MAPPED_MB = 16384  # address space for the compiled libraries, which Lean maps
_KEPT = 4096


def probe(judge: Callable[[Statement, str], Verdict], name: str) -> str:
    """Return why a Lean of this name cannot be trusted, or "" if it judges the known proofs rightly."""
    for right, block in PROBES:
        verdict = judge(PROBE, block)
        if verdict.correct != right or verdict.score is None:
            done = "not refused a wrong proof" if verdict.correct else "not accepted a right proof"
            return f"{name} has {done}: {in_one_line(verdict.reason)}"
    return ""


class Place(NamedTuple):
    """Where Lean is. program: the executable; prefix: its installation; library: folders of compiled modules."""

    program: str
    prefix: str
    library: tuple[str, ...]


class Lean:
    """A Lean toolchain.

    path: the folder of the program `lean`, "" for PATH. project: a built Lake project whose modules may be imported, ""
    for none. replay: whether step 4 is run. axioms: names that are allowed besides AXIOMS.
    """

    def __init__(
        self, path: str, project: str, limits: ExternalLimits, axioms: Sequence[str] = (), replay: bool = True
    ) -> None:
        self._settings = (path, project, limits, tuple(axioms), replay)
        self._path, self._project, self._replay = path, project, replay
        self._allowed = (*AXIOMS, *axioms)
        self._memory = limits.memory_mb
        self._limits = ExternalLimits(
            seconds=limits.seconds, memory_mb=limits.memory_mb + _MAPPED_MB, file_kb=MAX_COMPILED >> 10
        )
        self._compiled: Cache[Statement, Compiled] = Cache(_KEPT)
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._missing: str | None = None

    def __reduce__(self) -> tuple[type[Lean], tuple[object, ...]]:
        return Lean, self._settings

    def find_missing(self) -> str:
        """Return one line that says what is missing, or "". The first call looks for Lean and tries known proofs."""
        with self._lock:
            known = self._missing
        if known is None:
            try:
                self._place = self._find()
                known = probe(self.judge, self._place.program)
            except (OSError, ValueError, subprocess.SubprocessError) as failed:
                known = in_one_line(str(failed))[:300]
            with self._lock:
                self._missing = known
        return known

    def _find(self) -> Place:
        program = shutil.which("lean", path=self._path or None)
        if program is None:
            where = f"in {self._path}" if self._path else "on PATH"
            raise ValueError(f"lean is not {where}; install Lean 4 (elan), or name a server by url")
        prefix = _ask([program, "--print-prefix"], self._project)
        library = []
        if self._project:
            lake = shutil.which("lake", path=self._path or None)
            if lake is None:
                raise ValueError("lake is not beside lean; a project needs it")
            library = [
                os.path.realpath(p) for p in _ask([lake, "env", "printenv", "LEAN_PATH"], self._project).split(":") if p
            ]
        real = os.path.join(prefix, "bin", "lean")  # elan's own `lean` starts it, which the sandbox does not let it do
        return Place(real if os.path.exists(real) else os.path.realpath(program), prefix, tuple(library))

    def judge(self, statement: Statement, block: str) -> Verdict:
        """Return the verdict on a block that `tactic_block` has read."""
        trusted = compile_once(self._compiled, statement, self._compile_statement)
        if trusted.failure is not None:
            return trusted.failure
        built = trusted.files
        found, solution = self._compile(SOLUTION, solution_file(statement, block), built)
        if found.status != "ok" or solution is None:
            return _explain_failure(found)
        if why := first_error(_messages(found.stdout)):
            return incorrect(why)
        code = new_code()
        found, _ = self._compile(CHECK, check_file(code), {**built, f"{SOLUTION}.olean": solution})
        if found.status != "ok":
            return _explain_failure(found, "what is proved is not the statement: ")
        verdict = judge(_messages(found.stdout), code, self._allowed)
        if verdict.correct and self._replay:
            return self._replay_proof(built, solution)
        return verdict

    def _compile_statement(self, statement: Statement) -> Compiled:
        found, data = self._compile(TRUSTED, trusted_file(statement), {})
        if found.status != "ok" and (found.status != "failed" or _explain_failure(found).status == "limit"):
            why = f"the statement was not compiled: {found.status}, {in_one_line(found.detail)}"
            return Compiled({}, error(why))
        why = first_error(_messages(found.stdout)) or ("" if data else _read_first_error(found))
        refusal = bad_reference(f"Lean refuses the statement: {why}") if why else None
        return Compiled({f"{TRUSTED}.olean": data or b""}, refusal)

    def _compile(self, name: str, text: str, built: dict[str, bytes]) -> tuple[Finished, bytes | None]:
        """Compile one module in a sandbox that can read `built`. Return the run, and the compiled file."""
        run = partial(self._run, ["--json", "-o", f"{name}.olean", f"{name}.lean"])
        return run_in_workplace(run, built, {f"{name}.lean": text.encode()}, f"{name}.olean")

    def _run(self, arguments: list[str], place: str) -> Finished:
        if self._place is None:
            return Finished("sandbox_error", "", "", "Lean was not looked for")
        library = os.path.join(place, "lib")
        read = [library, self._place.prefix, *filter(os.path.exists, self._place.library)]
        command = [self._place.program, f"-j{_THREADS}", f"-M{self._memory}", *arguments]
        environment = {"LEAN_PATH": ":".join([library, *self._place.library])}
        out = os.path.join(place, "out")
        return run_external(command, out, read=read, limits=self._limits, environment=environment)

    def _replay_proof(self, built: dict[str, bytes], solution: bytes) -> Verdict:
        """Return the verdict of the kernel on the compiled proof, read as data (step 4)."""
        code = new_code()
        run = partial(self._run, ["--run", "Replay.lean", code, "proof.olean"])
        found, _ = run_in_workplace(run, built, {"Replay.lean": REPLAY.encode(), "proof.olean": solution})
        if found.status != "ok":
            return _explain_failure(found, "the kernel's second look: ")
        answers = [line for line in found.stdout.splitlines() if line.startswith(f"{code} #[") and line.endswith("]")]
        if len(answers) != 1:
            return incorrect("the kernel's second look has said nothing")
        verdict = judge_axioms(answers[0][len(code) + 3 : -1].split(","), self._allowed)
        return correct(reason="Lean and its kernel's second look accept the proof") if verdict.correct else verdict


def _ask(command: list[str], project: str) -> str:
    """Return the last line that a program of the toolchain prints. The program and the project are trusted."""
    settings = {"cwd": project or None, "stdin": subprocess.DEVNULL, "timeout": _ASKED}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)  # type: ignore[call-overload]
    if done.returncode or not done.stdout.strip():
        raise ValueError(f"{' '.join(command)}: {(done.stderr.strip() or 'no answer').splitlines()[-1]}")
    return done.stdout.strip().splitlines()[-1]


def _messages(text: str) -> list[Message]:
    """Return the messages of `lean --json`, one on each line. Other lines, such as a program's output, are skipped."""
    found = []
    for line in text.splitlines():
        try:
            item = json.loads(line)
            found.append(Message(str(item["severity"]), str(item["data"])))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return found


def _explain_failure(found: Finished, before: str = "") -> Verdict:
    if ended := explain_ended_run(found):
        return ended
    if found.status == "ok":
        return limit(f"{before}a compiled proof of more than {MAX_COMPILED >> 20} MB, or none")
    why = first_error(_messages(found.stdout)) or _read_first_error(found)
    if any(sign in why for sign in ("memory", "Stack overflow", "ended by signal")):
        return limit(f"{before}{why}")
    return incorrect(f"{before}{why}")


def _read_first_error(found: Finished) -> str:
    text = found.stderr.strip() or found.stdout.strip() or found.detail
    return in_one_line(" ".join(text.split()))[:200]


KEY = "RLVR_LEAN_API_KEY"  # in the environment: sent as a bearer token
_PATH = "/verify"
_SCHEMA = "the Kimina Lean server's"
_SLACK = 30.0  # seconds beyond the proof's own time: the server's queue and imports


class Answer(NamedTuple):
    """A server's answer about one text: its messages, or why it failed.

    failure: "" if the text was elaborated. slow: whether the failure is the server's time limit.
    """

    messages: list[Message]
    failure: str = ""
    slow: bool = False


class LeanServer:
    """A server at `url`. seconds: time of one proof; axioms: names that are allowed besides AXIOMS."""

    def __init__(self, url: str, seconds: float, axioms: Sequence[str] = (), slack: float = _SLACK) -> None:
        self._settings = (url, seconds, tuple(axioms), slack)
        self._seconds = seconds
        self._allowed = (*AXIOMS, *axioms)
        self._client = JSONClient(
            url, name="Lean server", timeout=seconds + slack, retries=3, api_key=os.environ.get(KEY) or None
        )
        self._lock = threading.Lock()
        self._proven = False
        self._errors: Cache[Statement, str] = Cache(_KEPT)

    def __reduce__(self) -> tuple[type[LeanServer], tuple[object, ...]]:
        return LeanServer, self._settings

    def find_missing(self) -> str:
        """Return one line that says why the server cannot be used, or "" once it has judged known proofs rightly."""
        with self._lock:
            if not self._proven:
                why = self._probe()
                self._proven = not why
                return why
        return ""

    def _probe(self) -> str:
        def judge(statement: Statement, block: str) -> Verdict:
            verdict = self._verdict(statement, block)
            return verdict if isinstance(verdict, Verdict) else error(verdict)

        return probe(judge, f"the Lean server {self._client.url}")

    def judge(self, statement: Statement, block: str) -> Verdict:
        """Return the verdict on a block that `tactic_block` has read.

        If the server fails on it, the known proofs decide: *limit* or *timeout* if they pass, otherwise *error*.
        """
        verdict = self._verdict(statement, block)
        if isinstance(verdict, Verdict):
            if verdict.status == "incorrect" and (why := self._find_statement_error(statement)):
                return bad_reference(f"Lean refuses the statement: {why}")
            return verdict
        if self._probe():
            return error(in_one_line(verdict))
        refused = timeout if "timed out" in verdict else limit
        return refused(f"the Lean server failed on this proof, and not on others: {in_one_line(verdict)}")

    def _find_statement_error(self, statement: Statement) -> str:
        """Return Lean's error about the statement, "" if it elaborates. Lean is asked once for each statement."""
        known = self._errors.get(statement)
        if known is None:
            try:
                answer = self._ask(trusted_file(statement))
            except (ServerLost, RequestRefused, UnexpectedResponse):
                return ""
            if answer.failure:
                return ""
            known = first_error(answer.messages)
            self._errors.put(statement, known)
        return known

    def _verdict(self, statement: Statement, block: str) -> Verdict | str:
        code = new_code()
        try:
            answer = self._ask(whole_file(statement, block, code))
        except (ServerLost, RequestRefused, UnexpectedResponse) as failed:
            return str(failed)
        if answer.slow:
            return timeout(answer.failure)
        return answer.failure or judge(answer.messages, code, self._allowed)

    def _ask(self, text: str) -> Answer:
        name = new_code()
        body = {"codes": [{"custom_id": name, "proof": text}], "timeout": max(1, round(self._seconds))}
        answer = self._client.post(_PATH, body, idempotent=True)
        return self._client.read(_PATH, answer, lambda found: _read(found, name), _SCHEMA)


def _read(answer: Any, name: str) -> Answer:
    """Return what an answer says about the text `name`. Raises ValueError, TypeError or LookupError for other forms."""
    (result,) = answer["results"]
    if result["custom_id"] != name:
        raise ValueError("an answer to another text")
    if failed := result.get("error"):
        text = in_one_line(str(failed))[:200]
        return Answer([], text, "timed out" in text)
    response = result["response"]
    if "message" in response:
        return Answer([], in_one_line(str(response["message"]))[:200])
    messages = [_message(item) for item in response.get("messages") or []]
    if response.get("sorries"):
        messages.append(Message("error", "the proof uses sorry"))
    return Answer(messages)


def _message(item: Any) -> Message:
    severity, data = item["severity"], item["data"]
    if not isinstance(severity, str) or not isinstance(data, str):
        raise ValueError("a message without a text")
    return Message(severity, data)
