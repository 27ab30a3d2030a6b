"""The reader of tactic scripts in Coq: honest scripts keep their sentences, and Coq proves their theorems by them."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Verdict, correct, error, incorrect, limit, timeout
from rlvr.sandbox.external import ExternalLimits, Finished
from rlvr.verifiers.extract.sections import fenced_answer
from rlvr.verifiers.proof import coq as coq_module
from rlvr.verifiers.proof.coq import Coq, ScriptError, tactic_script
from rlvr.verifiers.proof.statement import Statement, read_statement
from tests.helpers.machine import processor_time

COQ = pytest.mark.skipif(shutil.which("coqc") is None, reason="Coq is not installed (apt install coq)")
GOLDEN = Path(__file__).parents[1] / "golden/proof_scripts.jsonl"
HONEST = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").split("\n") if line]
SWAP = "forall A B : Prop, A /\\ B -> B /\\ A"


def lines_of(reference: str, completion: str) -> list[str]:
    return tactic_script(fenced_answer(completion), reference).splitlines()


@COQ
def test_coq_accepts_what_is_read_of_honest_scripts() -> None:
    """All theorems are the definitions of one statement: one run of Coq proves them."""
    assert len(HONEST) >= 60
    theorems = [
        f"Theorem t{index} : {read_statement(row['statement']).statement}.\nProof.\n"
        + "".join(f"{line}\n" for line in lines_of(row["statement"], row["script"]))
        + "Qed.\n"
        for index, row in enumerate(HONEST)
    ]
    imports = tuple(sorted({name for row in HONEST for name in row["imports"]}))
    coq = Coq("", ExternalLimits(seconds=60), ())
    verdict = coq.judge(Statement("True", imports, "".join(theorems)), "exact I.\n")
    assert verdict.correct, verdict.reason


@COQ
def test_a_theorem_that_is_repeated_or_ends_behind_a_brace_is_proved() -> None:
    verifier = make_verifier("proof")
    pairs = [
        (SWAP, f"Lemma swap :\n  {SWAP}.\nProof.\n  tauto.\nQed."),
        (
            "True /\\ True",
            "<think>\n```coq\nauto.\n```\n</think>\n```coq\r\nsplit.\r\n{ exact I. }\r\n{ exact I. } Qed.",
        ),
    ]
    verdicts = verifier.verify_batch([(Problem("x", "", statement), script) for statement, script in pairs])
    assert [verdict.reason for verdict in verdicts if not verdict.correct] == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("split. { auto. } { auto. } Qed.", ["split.", "{ auto.", "} { auto.", "}"]),
        ("split. { auto. }Defined.", ["split.", "{ auto.", "}"]),
        ("auto...", ["auto..."]),
        ("auto. (* a. *) Qed. (* b *)", ["auto."]),
        ("auto.(* a *)\nauto.", ["auto.", "auto."]),
        (f"Theorem goal: {SWAP.replace(' ', '  ')}.\nProof. tauto. Qed.", ["tauto."]),
        (f"Goal {SWAP}. tauto.", ["tauto."]),
        ("exact (fun A : Set => 0x1F + 1_000 + 1.5).", ["exact (fun A : Set => 0x1F + 1_000 + 1.5)."]),
        ("intros α x₁ y'. Unshelve. exact α.", ["intros α x₁ y'.", "Unshelve.", "exact α."]),
    ],
)
def test_sentences_are_kept(text: str, lines: list[str]) -> None:
    assert lines_of(SWAP, text) == lines


@pytest.mark.parametrize("word", ["fix", "cofix", "exact_no_check", "admit", "Admitted", "Qed"])
@pytest.mark.parametrize(
    "text", ["idtac.(* *)WORD x.", "x\u00b2WORD.", "exact (1WORD).", "all:WORD.", "{WORD x.", "[WORD|x].", "x;WORD."]
)
def test_a_refused_word_is_seen_where_the_prover_sees_it(text: str, word: str) -> None:
    with pytest.raises(ScriptError):
        tactic_script(text.replace("WORD", word))


@pytest.mark.parametrize("text", ["1e5fix f.", "exact 0x1fix.", "exact 1_fix.", "auto.. auto.", "auto....", "auto. .."])
def test_numbers_and_periods_that_could_hide_a_word_are_refused(text: str) -> None:
    with pytest.raises(ScriptError):
        tactic_script(text)


def test_names_of_the_statement_are_no_commands() -> None:
    statement = "forall (Check Set0 Proof : Prop) (time : nat), Check -> Check"
    assert tactic_script("intros Check S Proof time c. exact c.", statement) == (
        "intros Check S Proof time c.\nexact c.\n"
    )
    for text in ("intros Check. Check nat.", "Check nat. auto.", "all: Check nat.", "{ Check nat. }", "intros Print."):
        with pytest.raises(ScriptError):
            tactic_script(text, statement)


TEXTS = {
    "dots": lambda n: "auto " + "." * n + "x.",
    "words": lambda n: "x" * n + ".",
    "digits": lambda n: "1" * n + ".",
    "bullets": lambda n: "-" * n + "auto.",
    "selectors": lambda n: "1," * (n // 2) + "auto.",
    "comments": lambda n: "(*" * (n // 4) + "*)" * (n // 4) + "auto.",
    "quotes": lambda n: '"' * n + ".",
    "brackets": lambda n: "[" * 100 + "{ " * (n // 2) + "auto.",
    "spaces": lambda n: "auto" + " " * n + ".",
    "sentences": lambda n: "a. " * (n // 3),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_time_grows_with_the_script_and_not_its_square(kind: str) -> None:
    def seconds(size: int) -> float:
        taken = []
        for _ in range(3):
            with processor_time() as time, contextlib.suppress(ScriptError):
                tactic_script(TEXTS[kind](size))
            taken.append(time.seconds)
        return min(taken)

    small, large = seconds(4_000), seconds(16_000)
    assert large < 9 * small + 0.05, (small, large)


FULL = 'Error: System error: "./Solution.vo: No space left on device"'


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Error: The reference x was not found in the current environment.", "incorrect"),
        ('Error: Tactic failure: System error: "No space left on device".', "incorrect"),
        ("Error: Out of memory.", "limit"),
        ("Fatal error: not enough memory", "limit"),
        ("Fatal error: exception Out_of_memory", "limit"),
        ("Error: Stack overflow.", "limit"),
        (FULL, "error"),
        ('Error: Anomaly "Uncaught exception Unix.Unix_error(Unix.ENOSPC, "write", "")."', "error"),
    ],
)
def test_what_a_failure_is_put_down_to(text: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a script; a statement that is not compiled is refused where Coq refuses it, and else an error, not kept."""
    monkeypatch.setattr(coq_module, "run_external", lambda *_, **__: Finished("failed", "", text, "exit code 1"))
    coq = Coq("", ExternalLimits(), ())
    verdict = coq.judge(Statement("True"), "exact I.\n")
    assert verdict.status == ("bad_reference" if status == "incorrect" else "error")
    monkeypatch.setattr(coq, "_compile_once", lambda _: coq_module.Compiled({}, None))
    assert coq.judge(Statement("True"), "exact I.\n").status == status


@COQ
def test_a_statement_that_lacked_memory_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    coq = Coq("", ExternalLimits(), ())
    with monkeypatch.context() as patched:
        patched.setattr(coq_module, "run_external", lambda *_, **__: Finished("timeout", "", "", "over 1 s"))
        assert coq.judge(Statement("True"), "exact I.\n").status == "error"
    assert coq.judge(Statement("True"), "exact I.\n").correct


@COQ
def test_a_machine_without_room_for_files_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rlvr.sandbox.host.scratch_parent", lambda: str(tmp_path / "nowhere"))
    assert make_verifier("proof")(Problem("x", "", "True"), "exact I.").status == "error"


class Prover:
    """Stands for a prover that gives one verdict, and counts the scripts."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.asked: list[str] = []

    def find_missing(self) -> str:
        """Nothing is missing."""
        return ""

    def judge(self, statement: object, script: str) -> Verdict:
        """Return the verdict."""
        self.asked.append(script)
        return self.verdict


@pytest.mark.parametrize(
    ("verdict", "times"),
    [(correct(), 1), (incorrect(), 1), (timeout("slow"), 3), (limit("long"), 3), (error("no sandbox"), 3)],
)
def test_only_what_the_prover_has_decided_is_kept(verdict: Verdict, times: int) -> None:
    """A limit or an error may be another one the next time; a statement or a script that differs is another proof."""
    proof = make_verifier("proof")
    proof._prover = prover = Prover(verdict)
    problem = Problem("p", "", {"statement": "True"})
    for _ in range(3):
        assert proof.verify_batch([(problem, "exact I.")] * 2) == [verdict] * 2
    assert len(prover.asked) == times
    proof.verify_batch([(Problem("q", "", {"statement": "True /\\ True"}), "exact I."), (problem, "trivial.")])
    assert len(prover.asked) == times + 2
