"""The verifier `proof` with the real Coq: proofs pass, attacks do not, and no prover outlives its limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rlvr.core.registry import make_task, make_verifier
from rlvr.core.types import Problem
from rlvr.sandbox import external
from rlvr.sandbox.external import ExternalLimits, run_external, workplace
from rlvr.verifiers.proof.coq import Coq, ScriptError, ScriptTooLarge, tactic_script
from rlvr.verifiers.proof.statement import Statement, read_statement
from tests.helpers.files import ROOT
from tests.helpers.users import NOBODY

COQ = pytest.mark.skipif(shutil.which("coqc") is None, reason="Coq is not installed (apt install coq)")
GOLDEN = Path(__file__).parents[1] / "golden/proof_attacks.jsonl"
ATTACKS = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").split("\n") if line]
FALSE = "forall n : nat, n = n + 1"
NAT = "forall n : nat, n + 0 = n"
# Texts behind "Proof.", as they would reach the prover if the reader of scripts let everything through.
RAW = [
    "Admitted.\nTheorem other : True. Proof. exact I. ",
    "Abort.\nAxiom goal : False.\nTheorem other : True. Proof. exact I. ",
    "Abort.\nParameter goal : forall n : nat, n = n + 1.\nTheorem other : True. Proof. exact I. ",
    "Abort.\nTheorem goal : True. Proof. exact I. ",
    'Abort.\nNotation "x = y" := True.\nTheorem goal : forall n : nat, n = n + 1. Proof. intro n. exact I. ',
    "Abort.\nUnset Guard Checking.\nFixpoint f (n : nat) : False := f n.\n"
    "Theorem goal : forall n : nat, n = n + 1. Proof. intro n. destruct (f n). ",
    "Abort.\nUnset Positivity Checking.\nInductive T := c : (T -> False) -> T.\n"
    "Theorem goal : forall n : nat, n = n + 1. Proof. assert (N : T -> False). intro t. destruct t as [k] eqn:e. "
    "exact (k t). destruct (N (c N)). ",
    "Abort.\nModule Nat. End Nat.\nDefinition eq (a b : nat) := True.\n"
    "Theorem goal : forall n : nat, eq n (n + 1). Proof. intro n. exact I. ",
    "Abort.\nSection S. Hypothesis h : forall n : nat, n = n + 1.\nTheorem goal : forall n : nat, n = n + 1. "
    "Proof. exact h. Qed.\nEnd S.\nTheorem other : True. Proof. exact I. ",
    'Abort.\nRedirect "Trusted" Print nat.\nTheorem goal : True. Proof. exact I. ',
    'Abort.\nDeclare ML Module "nothing_plugin".\nTheorem goal : True. Proof. exact I. ',
    "Abort.\nModule Rlvr. Module Trusted. Definition statement := True. End Trusted. End Rlvr.\n"
    "Theorem goal : True. Proof. exact I. ",
    "Abort.\nModule Type A. Parameter Inline x : False. End A. Module F (X : A). Definition y := X.x. End F.\n"
    "Module B. Unset Guard Checking. Fixpoint w (n : nat) : False := w n. Definition x := w 0. End B.\n"
    "Module C := F B.\n"
    "Theorem goal : forall n : nat, n = n + 1. Proof. destruct C.y. ",
    "Abort.\nModule Type A. Axiom x : False. End A. Declare Module B : A.\n"
    "Theorem goal : forall n : nat, n = n + 1. Proof. destruct B.x. ",
    "Abort.\n#[global] Set Printing Width 1. #[global] Set Printing Depth 0. Axiom a : False.\n"
    "Theorem goal : forall n : nat, n = n + 1. Proof. destruct a. ",
    "Abort.\nAxiom c : True -> forall n : nat, n = n + 1. #[global] Coercion d := c.\n"
    "Theorem goal : True. Proof. exact I. ",
    'Abort.\nCd "/tmp". Redirect "rlvr_leak" Print nat. Theorem goal : True. Proof. exact I. ',
]


@pytest.fixture(scope="module")
def proof():
    return make_verifier("proof", timeout=4.0)


@COQ
def test_right_proofs_of_generated_theorems_pass(proof) -> None:
    kinds = ("chain", "both", "either", "rules", "exists")
    task = make_task("propositions", num_demonstrations=50, kinds=kinds)
    verdicts = proof.verify_batch([task.demonstrations[index] for index in range(50)])
    assert [verdict.reason for verdict in verdicts if not verdict.correct] == []
    assert len(verdicts) == 50


@COQ
def test_no_attack_passes(proof) -> None:
    plain = [row for row in ATTACKS if not row.get("heavy")]
    assert len(plain) >= 100
    verdicts = proof.verify_batch([(Problem(row["id"], "", FALSE), row["script"]) for row in plain])
    assert [row for row, verdict in zip(plain, verdicts) if verdict.score != 0] == []


@COQ
def test_scripts_that_do_not_end_are_ended_and_leave_no_process() -> None:
    verifier = make_verifier("proof", timeout=1.0, memory_mb=512)
    heavy = [row for row in ATTACKS if row.get("heavy")]
    verdicts = verifier.verify_batch([(Problem(row["id"], "", "True /\\ False"), row["script"]) for row in heavy])
    assert [row for row, verdict in zip(heavy, verdicts) if verdict.score != 0] == []
    assert {"timeout", "limit"} <= {str(verdict.status) for verdict in verdicts}
    assert _provers() == []


def _provers() -> list[str]:
    """Return the command lines of Coq's programs that are children of this process."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            status, line = (Path(f"/proc/{name}/{what}").read_text() for what in ("status", "cmdline"))
        except OSError:
            continue
        if f"PPid:\t{os.getpid()}\n" in status and "coq" in line:
            found.append(line)
    return found


@COQ
@pytest.mark.parametrize("text", RAW, ids=range(len(RAW)))
def test_the_second_defence_holds_without_the_first(text: str) -> None:
    coq = Coq("", ExternalLimits(seconds=4), ())
    assert coq.judge(read_statement(FALSE), text).score == 0
    assert not os.path.exists("/tmp/rlvr_leak.out")


@COQ
@pytest.mark.parametrize(
    ("reference", "script"),
    [
        (
            NAT,
            "Proof.\nintro n. induction n.\n- reflexivity. (* a (* nested *) comment. *)\n- simpl. auto.\nQed.",
        ),
        (NAT, "Here it is.\n```coq\nauto.\n```"),
        ("True /\\ True", "split. { exact I. } { exact I. }"),
        ("True /\\ True", "split. all: exact I."),
        ("True /\\ True", "split. 2: exact I. 1: { exact I. }"),
        (
            {"statement": "forall n : nat, twice n = n + n", "definitions": "Definition twice n := n + n."},
            "reflexivity.",
        ),
        ("nat + bool", "exact (inl 0)."),
        ("unit * nat * bool", "exact (tt, 0, true)."),
        ({"statement": "forall n m : nat, n <= n + m", "imports": ["Lia"]}, "intros. lia."),
    ],
)
def test_ways_to_write_a_proof(proof, reference: object, script: str) -> None:
    verdict = proof(Problem("x", "", reference), script)
    assert verdict.correct, verdict.reason


@COQ
def test_axioms_pass_only_where_they_are_allowed(proof) -> None:
    problem = Problem("x", "", {"statement": "forall P : Prop, P \\/ ~ P", "imports": ["Classical"]})
    refused = proof(problem, "exact classic.")
    assert refused.score == 0
    assert "classic" in refused.reason
    name = "Classical_Prop.classic"
    assert make_verifier("proof", axioms=(name,))(problem, "exact classic.").correct


@COQ
@pytest.mark.parametrize("statement", ["1 = ", "nosuchname", "forall n, n + 0", "True) (True"])
def test_a_statement_that_the_prover_refuses_is_a_bad_reference(proof, statement: str) -> None:
    assert proof(Problem("x", "", statement), "auto.").status == "bad_reference"


@COQ
def test_a_wrong_proof_gives_the_first_error_in_one_line(proof) -> None:
    verdict = proof(Problem("x", "", "1 = 2"), "reflexivity.")
    assert verdict.status == "incorrect"
    assert "unify" in verdict.reason
    assert "\n" not in verdict.reason


@pytest.mark.parametrize(
    "reference",
    [
        3,
        "",
        {"statement": 1},
        {"statement": "A", "x": 1},
        {"statement": "A", "imports": ["a b"]},
        "True. Axiom a : False",
        {"statement": "True", "imports": ["Ltac2.Ltac2"]},
        {"statement": "True", "definitions": "From Ltac2 Require Import Ltac2."},
    ],
)
def test_references_that_hold_no_statement_are_refused(proof, reference: object) -> None:
    with pytest.raises(ValueError, match=r"statement|imports"):
        proof.check_reference(reference)


def test_a_missing_prover_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    verdict = make_verifier("proof", path=str(tmp_path))(Problem("x", "", NAT), "auto.")
    assert verdict.status == "error"
    assert "apt install coq" in verdict.reason


@pytest.mark.parametrize("option", [{"timeout": 0}, {"memory_mb": 1}, {"slots": -1}, {"language": "agda"}])
def test_options_out_of_bounds_are_refused(option: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        make_verifier("proof", **option)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("auto.", "auto.\n"),
        ('(* a. (* b *) "*)" *)auto. Qed.', "auto.\n"),
        ('idtac "a. b (* ".  auto.', 'idtac "a. b (* ".\nauto.\n'),
        ("split.\n- exact (Nat.le_refl 1).\n- auto.", "split.\n- exact (Nat.le_refl 1).\n- auto.\n"),
    ],
)
def test_sentences_are_read_as_the_prover_reads_them(text: str, read: str) -> None:
    assert tactic_script(text) == read


@pytest.mark.parametrize(
    "text", ["", "auto", "(* auto.", 'idtac "a.', "auto. Qed. auto.", "Foo.", "auto.\x0bfoo.", "#[x] auto."]
)
def test_texts_that_are_no_script_are_refused(text: str) -> None:
    with pytest.raises(ScriptError):
        tactic_script(text)


def test_scripts_beyond_the_bounds_are_too_large() -> None:
    for text in ("auto. " * 10000, "exact " + "(" * 300):
        with pytest.raises(ScriptTooLarge):
            tactic_script(text)


AS_NOBODY = """
import sys
from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem
pairs = [(Problem("x", "", "1 + 1 = 2"), "reflexivity."), (Problem("x", "", "1 = 2"), "reflexivity.")]
print([verdict.status.value for verdict in make_verifier("proof").verify_batch(pairs)])
"""


@COQ
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_without_privileges_proofs_are_checked_as_well() -> None:
    command = [_python(), "-c", AS_NOBODY]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    settings = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/", "env": environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    if "Permission denied" in done.stderr or "ModuleNotFoundError" in done.stderr:
        pytest.skip("this checkout is not readable for other users, or their Python is too old")
    assert done.stdout.strip() == "['correct', 'incorrect']", done.stderr


HOSTILE = """
import os, socket, sys
def refused(action):
    try: action()
    except OSError: return True
print([refused(a) for a in (
    os.fork, socket.socket, lambda: open("/etc/passwd"), lambda: open("../other", "w"), lambda: os.listdir("/root"),
    lambda: os.execv("/bin/sh", ["sh"]), lambda: open(sys.argv[1], "w"), lambda: os.kill(os.getppid(), 0))])
"""


def test_a_confined_program_reaches_nothing() -> None:
    with workplace() as place:
        os.mkdir(out := os.path.join(place, "out"))
        Path(place, "other").write_text("kept")
        found = run_external([_python(), "-I", "-S", "-c", HOSTILE, os.path.join(place, "other")], out)
        assert Path(place, "other").read_text() == "kept"
    assert (found.status, found.stdout.strip()) == ("ok", str([True] * 8)), found


def _python() -> str:
    """Return an interpreter that every user can run."""
    found = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if found is None:
        pytest.skip("no python3 of the system")
    return found


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("while True: pass", "timeout"),
        ("import time; time.sleep(60)", "timeout"),
        ("while True: print('x' * 1000)", "limit"),
        ("open('big', 'wb').write(bytes(8 << 20))", "failed"),
        ("bytearray(1 << 30)", "failed"),
        ("import os; os.abort()", "failed"),
    ],
)
def test_limits_of_a_confined_program(program: str, status: str) -> None:
    with workplace() as place:
        os.mkdir(out := os.path.join(place, "out"))
        limits = ExternalLimits(seconds=1, memory_mb=512)
        assert run_external([_python(), "-I", "-S", "-c", program], out, limits=limits).status == status


def test_directories_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a process holds are kept, and so are young ones, and what is no directory of its kind."""
    monkeypatch.setattr("rlvr.sandbox.host.scratch_parent", lambda: str(tmp_path))
    for name in ("rlvr-external-old", "rlvr-external-young", "other"):
        (tmp_path / name / "out").mkdir(parents=True)
    (tmp_path / "rlvr-external-link").symlink_to(tmp_path / "other")
    with workplace() as held:
        for path in (*tmp_path.iterdir(), Path(held)):
            if "young" not in path.name:
                os.utime(path, (0, 0))
        external._remove_abandoned.cache_clear()
        with workplace() as second:
            kept = {Path(held).name, Path(second).name, "rlvr-external-young", "rlvr-external-link", "other"}
            assert {path.name for path in tmp_path.iterdir()} == kept
    assert not Path(held).exists()


def test_a_program_that_is_not_there_is_a_sandbox_error() -> None:
    with workplace() as place:
        os.mkdir(out := os.path.join(place, "out"))
        found = run_external(["/nonexistent/prover"], out)
    assert found.status == "sandbox_error"
    assert "No such file" in found.detail


def test_equal_statements_are_one_key() -> None:
    assert read_statement("A -> A.") == Statement("A -> A") == read_statement({"statement": " A ->  A"})
