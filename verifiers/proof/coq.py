"""Proofs in Coq: compiled in one sandbox, compared with the statement and checked again in another.

1. `Rlvr.Given` (the author's definitions) and `Rlvr.Trusted` (the statement) are compiled without the completion.
2. `Rlvr.Solution`, a theorem of that statement with the completion's tactics, is compiled in a run of its own.
3. In a fresh directory with the compiled file only: `Definition check : Trusted.statement := Solution.goal.` and
   `Print Assumptions check.`; then `coqchk` checks Solution and Check with its own kernel.

`Cache`, `Compiled` and the functions on files are used for Lean, too.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from rlvr.core.printable import in_one_line
from rlvr.core.types import Verdict, bad_reference, correct, error, incorrect, limit, timeout
from rlvr.sandbox.external import ExternalLimits, Finished, run_external, workplace

from .statement import Statement

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Cache(Generic[Key, Value]):
    """Keeps the `room` values that were asked for last. Threads may share it. A copy elsewhere starts empty."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Cache[Key, Value]], tuple[int]]:
        return type(self), (self._room,)

    def get(self, key: Key) -> Value | None:
        """Return the value of `key`, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Keep `value`. If there is no room, drop the value that was not asked for the longest time."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._room:
                self._values.popitem(last=False)


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
        """Return one line that says what is missing, or ""."""
        for name in ("coqc", "coqchk"):
            if self._program(name) is None:
                where = f"in {self._path}" if self._path else "on PATH"
                return f"{name} is not {where}; install Coq (apt install coq)"
        return ""

    def _program(self, name: str) -> str | None:
        return shutil.which(name, path=self._path or None)

    def judge(self, statement: Statement, script: str) -> Verdict:
        """Return the verdict on a script that `coq_script.tactic_script` has read."""
        trusted = self._compile_once(statement)
        if trusted.failure is not None:
            return trusted.failure
        source = f"{_heading(statement)}Theorem goal : {statement.statement}.\nProof.\n{script}Qed.\n"
        with workplace() as place:
            write_files(place, "lib", trusted.files)
            write_files(place, "out", {"Solution.v": source.encode()})
            found = self._coqc(place, "Solution.v")
            if found.status != "ok":
                return _explain_failure(found, "Solution.v")
            solution = read_compiled(os.path.join(place, "out", "Solution.vo"))
        if solution is None:
            return limit(f"a compiled proof of more than {MAX_COMPILED >> 20} MB")
        return self._check({**trusted.files, "Solution.vo": solution})

    def _compile_once(self, statement: Statement) -> Compiled:
        """Return the compiled statement, from the cache if it was compiled before."""
        known = self._compiled.get(statement)
        if known is None:
            known = self._compile(statement)
            if known.failure is None or known.failure.status == "bad_reference":
                self._compiled.put(statement, known)
        return known

    def _compile(self, statement: Statement) -> Compiled:
        files: dict[str, bytes] = {}
        sources = {
            "Given": _imports(statement) + statement.definitions + "\n",
            "Trusted": f"{_heading(statement)}Definition statement : Type := {statement.statement}.\n",
        }
        for name in _SOURCES:
            if name == "Given" and not statement.definitions:
                continue
            with workplace() as place:
                write_files(place, "lib", files)
                write_files(place, "out", {f"{name}.v": sources[name].encode()})
                found = self._coqc(place, f"{name}.v")
                data = read_compiled(os.path.join(place, "out", f"{name}.vo")) if found.status == "ok" else None
            if data is None:
                return Compiled({}, _explain_refusal(found, f"{name}.v"))
            files[f"{name}.vo"] = data
        return Compiled(files)

    def _coqc(self, place: str, name: str) -> Finished:
        return self._run(place, "coqc", ["-w", "none", name])

    def _run(self, place: str, program: str, arguments: list[str]) -> Finished:
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
        with workplace() as place:
            write_files(place, "lib", files)
            write_files(place, "out", {"Check.v": _CHECK.encode()})
            found = self._coqc(place, "Check.v")
            if found.status != "ok":
                return _explain_failure(found, "Check.v", "what is proved is not the statement: ")
            if unproved := self._find_assumption(found.stdout):
                return incorrect(f"rests on {in_one_line(unproved)}")
            compiled = read_compiled(os.path.join(place, "out", "Check.vo"))
        if compiled is None:
            return error("the comparison with the statement was not compiled")
        with workplace() as place:
            write_files(place, "lib", {**files, "Check.vo": compiled})
            write_files(place, "out", {})
            arguments = [part for name in ("Solution", "Check") for part in ("-norec", f"Rlvr.{name}")]
            found = self._run(place, "coqchk", arguments)
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


def write_files(place: str, folder: str, files: dict[str, bytes]) -> None:
    """Make a folder in a workplace, with these files."""
    directory = os.path.join(place, folder)
    os.mkdir(directory, 0o755)
    for name, data in files.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)


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
