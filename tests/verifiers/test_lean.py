"""The verifier `proof` in Lean: a program and a server that speak as Lean does; the real one where it is installed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Verdict
from rlvr.sandbox.external import ExternalLimits
from rlvr.verifiers.proof import lean as files
from rlvr.verifiers.proof import lean as local
from rlvr.verifiers.proof.lean import KEY, Message
from rlvr.verifiers.proof.statement import read_lean_statement
from tests.helpers import lean_stand_in
from tests.helpers.kimina import Kimina

AND = "∀ p q : Prop, p ∧ q → p"
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")
REAL = pytest.mark.skipif(shutil.which("lean") is None, reason="Lean 4 is not installed (elan)")
STAND_IN = pytest.mark.skipif(PYTHON is None, reason="no python3 of the system")
GOLDEN = Path(__file__).parents[1] / "golden"
# Blocks as they would reach Lean if the reader let everything through; RIGHT is a proof of AND, with which some go on.
RIGHT = "  exact fun _ _ h => h.1\n"
RAW = [
    "  sorry\n",
    "  exact sorryAx _ false\n",
    "  trivial)\naxiom x : False\nexample : True := (by trivial\n",
    "  trivial\naxiom RlvrSolution.goal2 : False\n",
    "  exact RlvrSolution.goal\n",
    "  native_decide\n",
    "  set_option debug.skipKernelTC true in\n  decide\n",
    '  trivial)\nnotation "p" => True\nexample : True := (by trivial\n',
    "  exact bad)\naxiom bad : ∀ n : Nat, n = n + 1\nexample : True := (by trivial\n",
    "  trivial)\n#eval IO.Process.exit 0\n",
    "  run_tac Lean.Elab.admitGoal (← Lean.Elab.Tactic.getMainGoal)\n",
    "  intro n\n  exact lcProof\n",
]


@pytest.fixture
def lean(monkeypatch, tmp_path):
    """Return a maker of verifiers whose Lean is the stand-in, run by Python in the real sandbox."""
    copy = tmp_path / "lean.py"
    shutil.copy(lean_stand_in.__file__, copy)
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001 and len(folder.parts) > 2:
            folder.chmod(folder.stat().st_mode | 0o011)
    copy.chmod(0o644)
    real = local.run_external

    def run(command, directory, *, read, **rest):
        return real([PYTHON, "-I", "-S", str(copy), *command[1:]], directory, read=[*read, str(tmp_path)], **rest)

    monkeypatch.setattr(local, "run_external", run)
    monkeypatch.setattr(local.Lean, "_find", lambda self: local.Place("/nowhere/lean", str(tmp_path), ()))
    return lambda **options: make_verifier("proof", language="lean", **{"timeout": 4.0, "memory_mb": 512, **options})


@pytest.fixture
def kimina():
    server = Kimina()
    yield server
    server.close()


def judge_answer(verifier, *scripts: str, reference: object = AND) -> list[Verdict]:
    return verifier.verify_batch([(Problem("x", "", reference), script) for script in scripts])


JUDGED = {
    "right": "correct",
    "by right -- it is": "correct",
    "uses propext Quot.sound": "correct",
    "uses Classical.choice": "correct",
    "uses propext Lean.ofReduceBool": "unparseable",
    "uses my_choice": "incorrect",
    "wrong": "incorrect",
    "other": "incorrect",
    "silent": "incorrect",
    "forged": "incorrect",
    "sorry": "unparseable",
    "": "no_answer",
}


@STAND_IN
def test_a_program_judges_in_the_sandbox(lean) -> None:
    verdicts = judge_answer(lean(), *JUDGED, "kernel")
    assert {script: str(v.status) for script, v in zip([*JUDGED, "kernel"], verdicts)} == {
        **JUDGED,
        "kernel": "incorrect",
    }
    assert "type mismatch" in judge_answer(lean(), "wrong")[0].reason


@STAND_IN
def test_replay_can_be_left_out_and_axioms_added(lean, monkeypatch) -> None:
    monkeypatch.setattr(files, "PROBES", ())
    assert judge_answer(lean(replay=False), "kernel")[0].correct
    assert judge_answer(lean(axioms=("my_choice",)), "uses my_choice")[0].correct


@STAND_IN
@pytest.mark.parametrize(
    ("block", "statuses"),
    [
        ("loop", {"timeout"}),
        ("grow", {"limit", "incorrect"}),
        ("crash", {"limit"}),
        ("talk", {"limit"}),
        ("garbage", {"incorrect"}),
    ],
)
def test_a_program_that_misbehaves_is_ended_and_scores_nothing(lean, monkeypatch, block: str, statuses: set) -> None:
    monkeypatch.setattr(local, "_MAPPED_MB", 0)
    monkeypatch.setattr(files, "PROBES", ())
    # A busy machine needs more than a second to fill the memory: only the endless loop has a short limit.
    (verdict,) = judge_answer(lean(timeout=1.0 if block == "loop" else 30.0), block)
    assert (verdict.score, str(verdict.status) in statuses) == (0, True), verdict


@STAND_IN
def test_a_statement_that_is_refused_is_a_bad_reference(lean, monkeypatch) -> None:
    monkeypatch.setattr(files, "PROBES", ())
    assert judge_answer(lean(), "right", reference="nosuch = 1")[0].status == "bad_reference"


@STAND_IN
@pytest.mark.parametrize("probe", [(True, "  wrong\n"), (False, "  right\n"), (True, "  crash\n")])
def test_a_lean_that_judges_known_proofs_wrongly_is_an_error(lean, monkeypatch, probe: tuple) -> None:
    monkeypatch.setattr(files, "PROBES", (probe,))
    (verdict,) = judge_answer(lean(), "right")
    assert verdict.status == "error"
    assert "proof" in verdict.reason


def test_a_missing_lean_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    (verdict,) = judge_answer(make_verifier("proof", language="lean", path=str(tmp_path)), "rfl")
    assert verdict.status == "error"
    assert "install Lean 4" in verdict.reason


def test_a_project_is_asked_for_its_modules(tmp_path: Path) -> None:
    for name, said in (("lean", "/opt/lean"), ("lake", "/a/lib:/b/lib")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {said}\n")
        program.chmod(0o755)
    found = local.Lean(str(tmp_path), str(tmp_path), ExternalLimits())._find()
    assert (found.prefix, found.library) == ("/opt/lean", ("/a/lib", "/b/lib"))


def test_a_server_judges(kimina) -> None:
    verifier = make_verifier("proof", language="lean", url=kimina.url, slots=4)
    verdicts = judge_answer(verifier, *JUDGED)
    assert {script: str(verdict.status) for script, verdict in zip(JUDGED, verdicts)} == JUDGED
    codes = [line for text in kimina.texts for line in text.splitlines() if line.startswith("#print")]
    assert len(set(codes)) == len(codes) > len(JUDGED) / 2
    assert judge_answer(pickle.loads(pickle.dumps(verifier)), "right")[0].correct


def test_a_server_tells_a_bad_statement_from_a_bad_proof(kimina) -> None:
    verifier = make_verifier("proof", language="lean", url=kimina.url)
    assert judge_answer(verifier, "right", reference="nosuch = 1")[0].status == "bad_reference"
    assert judge_answer(verifier, "wrong", reference="1 = 2")[0].status == "incorrect"


def test_a_servers_key_comes_from_the_environment(kimina, monkeypatch) -> None:
    monkeypatch.setenv(KEY, "word")
    assert judge_answer(make_verifier("proof", language="lean", url=kimina.url), "right")[0].correct
    assert set(kimina.keys) == {"Bearer word"}


FORMS = [
    (500, "limit"),
    (400, "limit"),
    ("close", "limit"),
    (b"no JSON", "limit"),
    (b"{}", "limit"),
    (b"[]", "limit"),
    (b'{"results": []}', "limit"),
    ({"response": None}, "limit"),
    ({"response": {"message": "Unknown env."}}, "limit"),
    ({"error": "Lean REPL command timed out in 10 seconds"}, "timeout"),
    ({"error": "the REPL died"}, "limit"),
    ({"custom_id": "another"}, "limit"),
    ({"response": {"messages": [{"severity": "info"}]}}, "limit"),
    ({"response": {"messages": "none"}}, "limit"),
    ({"response": {"messages": [{"severity": 1, "data": "x"}]}}, "limit"),
    ({"response": {"messages": []}}, "incorrect"),
    ({"response": {"env": 0}}, "incorrect"),
    (
        {"response": {"messages": [{"severity": "info", "data": "'RlvrCheck.x' does not depend on any axioms"}]}},
        "incorrect",
    ),
]


@pytest.mark.parametrize(("form", "status"), FORMS, ids=range(len(FORMS)))
def test_a_server_that_fails_on_one_proof_blames_the_proof(kimina, form: object, status: str) -> None:
    verifier = make_verifier("proof", language="lean", url=kimina.url)
    kimina.forms["right"] = form
    assert [str(verdict.status) for verdict in judge_answer(verifier, "right", "uses propext")] == [status, "correct"]


@pytest.mark.parametrize("form", [form for form, _ in FORMS], ids=range(len(FORMS)))
def test_a_server_that_fails_on_all_is_an_error(kimina, form: object) -> None:
    verifier = make_verifier("proof", language="lean", url=kimina.url)
    kimina.forms["*"] = form
    assert judge_answer(verifier, "right")[0].status == "error"
    kimina.forms.clear()
    assert judge_answer(verifier, "right")[0].correct


def test_a_server_that_is_gone_is_an_error(kimina) -> None:
    verifier = make_verifier("proof", language="lean", url=kimina.url)
    assert judge_answer(verifier, "right")[0].correct
    kimina.forms["*"] = "close"
    assert judge_answer(verifier, "uses propext")[0].status == "error"


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([("information", "'RlvrCheck.n1' does not depend on any axioms")], "correct"),
        ([("info", "'RlvrCheck.n1' depends on axioms: [propext,\n Classical.choice]")], "correct"),
        ([("warning", "unused variable"), ("info", "'RlvrCheck.n1' depends on axioms: [Quot.sound]")], "correct"),
        ([("information", "'RlvrCheck.n1' depends on axioms: [sorryAx]")], "incorrect"),
        ([("information", "'RlvrCheck.n1' depends on axioms: [propext, foo._nativeDecide_1]")], "incorrect"),
        ([("information", "'RlvrCheck.n1' depends on axioms:")], "incorrect"),
        ([("information", "'RlvrCheck.n1' does not depend on any axioms [x]")], "incorrect"),
        ([("information", "'RlvrCheck.n2' does not depend on any axioms")], "incorrect"),
        ([("information", "x 'RlvrCheck.n1' does not depend on any axioms")], "incorrect"),
        ([("information", "'RlvrCheck.n1' does not depend on any axioms")] * 2, "incorrect"),
        ([("error", "x"), ("information", "'RlvrCheck.n1' does not depend on any axioms")], "incorrect"),
        ([("unknown", "x"), ("information", "'RlvrCheck.n1' does not depend on any axioms")], "incorrect"),
        (
            [("warning", "declaration uses 'sorry'"), ("info", "'RlvrCheck.n1' does not depend on any axioms")],
            "incorrect",
        ),
        (
            [("warning", "declaration uses `sorry`"), ("info", "'RlvrCheck.n1' does not depend on any axioms")],
            "incorrect",
        ),
        ([], "incorrect"),
    ],
)
def test_what_lean_says_of_the_comparison(messages: list, status: str) -> None:
    assert files.judge([Message(*message) for message in messages], "n1", files.AXIOMS).status == status


@pytest.mark.parametrize(
    "options",
    [
        {"project": "/x"},
        {"url": "http://127.0.0.1:1"},
        {"replay": False},
        {"language": "lean", "url": "http://127.0.0.1:1", "path": "/x"},
        {"language": "lean", "url": "http://127.0.0.1:1", "project": "/x"},
        {"language": "lean", "url": "http://127.0.0.1:1", "replay": False},
        {"language": "lean", "url": "no address"},
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match=r"url|project"):
        make_verifier("proof", **options)


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (GOLDEN / name).read_text(encoding="utf-8").split("\n") if line]


@REAL
@pytest.mark.slow
def test_the_real_lean_accepts_right_proofs() -> None:
    project = os.environ.get("RLVR_LEAN_PROJECT", "")
    verifier = make_verifier("proof", language="lean", project=project, timeout=120.0, memory_mb=8192)
    honest = [row for row in rows("lean_proofs.jsonl") if project or "imports" not in row]
    pairs = [
        (Problem(row["id"], "", {k: row[k] for k in row.keys() - {"id", "script"}}), row["script"]) for row in honest
    ]
    verdicts = verifier.verify_batch(pairs)
    assert [(row["id"], v.reason) for row, v in zip(honest, verdicts) if not v.correct] == []


@REAL
@pytest.mark.slow
def test_the_real_lean_passes_no_attack() -> None:
    verifier = make_verifier("proof", language="lean", timeout=60.0, memory_mb=4096)
    attacks = [row["script"] for row in rows("lean_attacks.jsonl")]
    verdicts = judge_answer(verifier, *attacks, reference="∀ n : Nat, n = n + 1")
    assert [script for script, verdict in zip(attacks, verdicts) if verdict.score != 0] == []


@REAL
@pytest.mark.slow
@pytest.mark.parametrize("block", RAW, ids=range(len(RAW)))
def test_the_second_defence_of_the_real_lean_holds_without_the_reader(block: str) -> None:
    prover = local.Lean("", "", ExternalLimits(seconds=60, memory_mb=4096))
    assert prover.find_missing() == ""
    assert prover.judge(files.PROBE, RIGHT).correct
    assert prover.judge(read_lean_statement("∀ n : Nat, n = n + 1"), block).score == 0
