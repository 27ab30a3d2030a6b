"""Proofs in Lean 4 by a toolchain on this machine: compiled in one sandbox, compared with the statement in others.

1. `RlvrTrusted` (definitions and statement) is compiled, without the completion, once for all of its completions.
2. `RlvrSolution`, the theorem with the completion's tactics, is compiled in a run of its own.
3. `RlvrCheck`, where only the compiled file of step 2 goes: the comparison of `lean_files`.
4. `lean --run` of `lean_files.REPLAY`: the declarations of step 2 are read as data, and Lean's kernel checks each of
   them again beside the statement. Nothing of the completion is elaborated or imported there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from rlvr.printable import in_one_line
from rlvr.sandbox.external import ExternalLimits, Finished, run_external, workplace
from rlvr.types import Verdict, bad_reference, correct, error, incorrect, limit, timeout
from rlvr.verifiers.proof import lean_files as files
from rlvr.verifiers.proof.coq import MAX_COMPILED, read_compiled, write_files
from rlvr.verifiers.proof.lean_files import AXIOMS, CHECK, SOLUTION, TRUSTED, Message
from rlvr.verifiers.proof.statement import Statement

_ASKED = 120.0  # seconds that lake and lean may take to say where they are
_THREADS = 2
_MAPPED_MB = 16384  # address space for the compiled libraries, which Lean maps
_KEPT = 4096


class Place(NamedTuple):
    """Where Lean is. `program`: the executable; `prefix`: its installation; `library`: folders of compiled modules."""

    program: str
    prefix: str
    library: tuple[str, ...]


class Compiled(NamedTuple):
    """The compiled statement, or the verdict that says why there is none."""

    data: bytes
    failure: Verdict | None


class Lean:
    """A Lean toolchain.

    path: the folder of the program `lean`, "" for PATH. project: a Lake project that is built, whose modules may be
    imported, "" for none. replay: whether step 4 is run. axioms: names allowed beside `lean_files.AXIOMS`.
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
        self._compiled: OrderedDict[Statement, Compiled] = OrderedDict()
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._missing: str | None = None

    def __reduce__(self) -> tuple[type[Lean], tuple[object, ...]]:
        return Lean, self._settings

    def missing(self) -> str:
        """Return one line that says what is missing, or "". The first call finds Lean and asks it for known proofs."""
        with self._lock:
            known = self._missing
        if known is None:
            try:
                self._place = self._find()
                known = self._probe()
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

    def _probe(self) -> str:
        for right, block in files.PROBES:
            verdict = self.judge(files.PROBE, block)
            if verdict.correct != right or verdict.score is None:
                done = "not refused a wrong proof" if verdict.correct else "not accepted a right proof"
                return f"{self._place.program if self._place else 'lean'} has {done}: {verdict.reason}"
        return ""

    def judge(self, statement: Statement, block: str) -> Verdict:
        """Return the verdict on a block of `lean_script.tactic_block`."""
        trusted = self._trusted(statement)
        if trusted.failure is not None:
            return trusted.failure
        built = {f"{TRUSTED}.olean": trusted.data}
        found, solution = self._compile(SOLUTION, files.solution_file(statement, block), built)
        if found.status != "ok" or solution is None:
            return _failure(found)
        if why := files.first_error(_messages(found.stdout)):
            return incorrect(why)
        code = files.new_code()
        found, _ = self._compile(CHECK, files.check_file(code), {**built, f"{SOLUTION}.olean": solution})
        if found.status != "ok":
            return _failure(found, "what is proved is not the statement: ")
        verdict = files.judge(_messages(found.stdout), code, self._allowed)
        if verdict.correct and self._replay:
            return self._replayed(built, solution)
        return verdict

    def _trusted(self, statement: Statement) -> Compiled:
        with self._lock:
            known = self._compiled.get(statement)
        if known is None:
            found, data = self._compile(TRUSTED, files.trusted_file(statement), {})
            if found.status != "ok" and (found.status != "failed" or _failure(found).status == "limit"):
                return Compiled(
                    b"", error(f"the statement was not compiled: {found.status}, {in_one_line(found.detail)}")
                )
            why = files.first_error(_messages(found.stdout)) or ("" if data else _first_error(found))
            known = Compiled(data or b"", bad_reference(f"Lean refuses the statement: {why}") if why else None)
            with self._lock:
                self._compiled[statement] = known
                if len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
        return known

    def _compile(self, name: str, text: str, built: dict[str, bytes]) -> tuple[Finished, bytes | None]:
        """Compile one module in a sandbox of its own, which reads `built`. Return the run, and the compiled file."""
        with workplace() as place:
            write_files(place, "lib", built)
            write_files(place, "out", {f"{name}.lean": text.encode()})
            found = self._run(place, ["--json", "-o", f"{name}.olean", f"{name}.lean"])
            compiled = os.path.join(place, "out", f"{name}.olean")
            return found, read_compiled(compiled) if found.status == "ok" else None

    def _run(self, place: str, arguments: list[str]) -> Finished:
        if self._place is None:
            return Finished("sandbox_error", "", "", "Lean was not looked for")
        library = os.path.join(place, "lib")
        read = [library, self._place.prefix, *filter(os.path.exists, self._place.library)]
        command = [self._place.program, f"-j{_THREADS}", f"-M{self._memory}", *arguments]
        environment = {"LEAN_PATH": ":".join([library, *self._place.library])}
        out = os.path.join(place, "out")
        return run_external(command, out, read=read, limits=self._limits, environment=environment)

    def _replayed(self, built: dict[str, bytes], solution: bytes) -> Verdict:
        """Return the verdict of the kernel on the compiled proof, read as data (step 4)."""
        code = files.new_code()
        with workplace() as place:
            write_files(place, "lib", built)
            write_files(place, "out", {"Replay.lean": files.REPLAY.encode(), "proof.olean": solution})
            found = self._run(place, ["--run", "Replay.lean", code, "proof.olean"])
        if found.status != "ok":
            return _failure(found, "the kernel's second look: ")
        told = [line for line in found.stdout.splitlines() if line.startswith(f"{code} #[") and line.endswith("]")]
        if len(told) != 1:
            return incorrect("the kernel's second look has said nothing")
        verdict = files.judge_axioms(told[0][len(code) + 3 : -1].split(","), self._allowed)
        return correct(reason="Lean and its kernel's second look accept the proof") if verdict.correct else verdict


def _ask(command: list[str], project: str) -> str:
    """Return what a program of the toolchain prints in one line. It is trusted, as the project is."""
    done = subprocess.run(
        command,
        cwd=project or None,
        capture_output=True,
        text=True,
        timeout=_ASKED,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode or not done.stdout.strip():
        raise ValueError(f"{' '.join(command)}: {(done.stderr.strip() or 'no answer').splitlines()[-1]}")
    return done.stdout.strip().splitlines()[-1]


def _messages(text: str) -> list[Message]:
    """Return the messages of `lean --json`, one a line. What is none, such as a program's own output, is left out."""
    found = []
    for line in text.splitlines():
        try:
            item = json.loads(line)
            found.append(Message(str(item["severity"]), str(item["data"])))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return found


def _failure(found: Finished, before: str = "") -> Verdict:
    if found.status == "sandbox_error":
        return error(f"sandbox_error: {in_one_line(found.detail)}")
    if found.status == "timeout":
        return timeout(f"Lean took {found.detail}")
    if found.status == "limit":
        return limit(f"Lean wrote {found.detail}")
    if found.status == "ok":
        return limit(f"{before}a compiled proof of more than {MAX_COMPILED >> 20} MB, or none")
    why = files.first_error(_messages(found.stdout)) or _first_error(found)
    if any(sign in why for sign in ("memory", "Stack overflow", "ended by signal")):
        return limit(f"{before}{why}")
    return incorrect(f"{before}{why}")


def _first_error(found: Finished) -> str:
    text = found.stderr.strip() or found.stdout.strip() or found.detail
    return in_one_line(" ".join(text.split()))[:200]
