"""The verifier `proof`: the completion's tactics must prove a statement; Coq or Lean decides.

`statement` reads the reference, `coq` and `lean` read the tactics and run the prover.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

from rlvr.core.cores import count_cores
from rlvr.core.printable import in_one_line
from rlvr.core.registry import register
from rlvr.core.types import Problem, Verdict, bad_reference, error, limit, no_answer, unparseable
from rlvr.sandbox.external import ExternalLimits
from rlvr.sandbox.limits import check_count, check_seconds

from ..cache import Cache
from ..extract.sections import fenced_answer
from .coq import Coq, ScriptError, ScriptTooLarge, tactic_script
from .lean import Lean, LeanServer, tactic_block
from .statement import Statement, read_lean_statement, read_statement

__all__ = ["ProofVerifier"]

MAX_COMPLETION = 1_000_000
_KEPT = 65_536  # verdicts


@register("proof")
class ProofVerifier:
    """Whether the completion's tactics prove the statement, checked by Coq or Lean 4.

    The reference is a statement, or {"statement": "forall n : nat, n + 0 = n", "imports": ["Lia"], "definitions": ""}:
    modules to import, and text of the task's author that comes before the statement. In Lean it may also be a theorem
    ("theorem a (n : ℕ) : n + 0 = n := by sorry"), with namespaces to open in "open".

    The completion is a tactic script, or its last fenced block is one. "Proof." and "Qed.", or "by", may stand around
    it, and the theorem itself before it. Commands of the prover are refused, and Coq's fix and cofix.

    A pass needs several runs of the prover. The script is compiled as a proof of the statement. Where the script is not
    loaded, the compiled proof's type is compared with the statement, which was compiled by itself, and the assumptions
    are listed. Then coqchk checks everything again, or Lean's kernel does (`replay`).

    axioms: names that a proof may use, as the prover spells them; in Lean propext, Classical.choice and Quot.sound are
    always allowed. path: the directory of the prover's programs, "" for PATH. project: a built Lake project for Lean's
    imports. url: a Lean server with Kimina's interface, instead of programs on this machine; it checks in one process
    and has its own memory limit. timeout (seconds of processor time) and memory_mb apply to each run. slots: how many
    run at once, 0 for one on each core. If the prover is missing, or a Lean misjudges known proofs, the verdict is
    *error*.
    """

    isolate: ClassVar[bool] = False

    def __init__(
        self,
        *,
        language: Literal["coq", "lean"] = "coq",
        path: str = "",
        project: str = "",
        url: str = "",
        replay: bool = True,
        timeout: float = 10.0,
        memory_mb: int = 2048,
        axioms: tuple[str, ...] = (),
        slots: int = 0,
    ) -> None:
        if language not in ("coq", "lean"):
            raise ValueError(f"verifier proof: language {language!r}; expected coq or lean")
        check_seconds("verifier proof: timeout", timeout, most=3600)
        check_count("verifier proof: memory_mb", memory_mb, least=256)
        check_count("verifier proof: slots", slots, least=0)
        if language == "coq" and (project or url or not replay):
            raise ValueError("verifier proof: project, url and replay are for language lean")
        if url and (path or project or not replay):
            raise ValueError("verifier proof: path, project and replay are for a Lean on this machine, not for a url")
        self._slots = slots or count_cores()
        self._known: Cache[tuple[Statement, str], Verdict] = Cache(_KEPT)
        self._language = language
        limits = ExternalLimits(seconds=timeout, memory_mb=memory_mb)
        self._prover: Coq | Lean | LeanServer
        if language == "coq":
            self._prover = Coq(path, limits, tuple(axioms))
        elif url:
            self._prover = LeanServer(url, timeout, tuple(axioms))
        else:
            self._prover = Lean(path, project, limits, tuple(axioms), replay)

    def _statement(self, reference: Any) -> Statement:
        return read_statement(reference) if self._language == "coq" else read_lean_statement(reference)

    def open_answers(self, reference: Any) -> bool:
        """Return True: a statement has many proofs."""
        return True

    def check_reference(self, reference: Any) -> None:
        self._statement(reference)

    def find_missing(self) -> str:
        return self._prover.find_missing()

    def null_completions(self, reference: Any) -> dict[str, str]:
        """Return scripts that prove nothing, by what they do."""
        if self._language == "lean":
            return {"admits": "sorry", "does nothing": "skip", "trusts compiled code": "native_decide"}
        return {"admits": "admit.", "gives up": "Admitted.", "does nothing": "idtac."}

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        return self.verify_batch([(problem, completion)])[0]

    def verify_batch(self, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        """Return all verdicts, in order. A script is checked once for a statement; its verdict is cached."""
        prepared = [self._prepare(problem, completion) for problem, completion in pairs]
        wanted = list(dict.fromkeys(item for item in prepared if isinstance(item, tuple)))
        missing = self.find_missing() if wanted else ""
        if missing:
            return [error(missing) if isinstance(item, tuple) else item for item in prepared]
        with ThreadPoolExecutor(self._slots) as threads:
            verdicts = dict(zip(wanted, threads.map(self._judge, wanted)))
        return [verdicts[item] if isinstance(item, tuple) else item for item in prepared]

    def _judge(self, item: tuple[Statement, str]) -> Verdict:
        known = self._known.get(item)
        if known is not None:
            return known
        try:
            found = self._prover.judge(*item)
        except OSError as failed:  # no room for files, no process to be had
            return error(in_one_line(str(failed)))
        if found.status in ("correct", "incorrect"):  # a limit or an error may be another one the next time
            self._known.put(item, found)
        return found

    def _prepare(self, problem: Problem, completion: str) -> tuple[Statement, str] | Verdict:
        try:
            statement = self._statement(problem.reference)
        except ValueError as refused:
            return bad_reference(str(refused))
        if len(completion) > MAX_COMPLETION:
            return limit(f"the completion has {len(completion):,} characters; at most {MAX_COMPLETION:,} are read")
        text = fenced_answer(completion)
        if not text.strip():
            return no_answer("the completion holds no proof")
        try:
            if self._language == "lean":
                return statement, tactic_block(text, statement.header)
            return statement, tactic_script(text, statement.statement)
        except ScriptTooLarge as refused:
            return limit(str(refused))
        except ScriptError as refused:
            return unparseable(str(refused))
