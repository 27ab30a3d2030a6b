"""The reader of Lean tactics, on texts: honest proofs are kept, attacks are refused; no Lean is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.verifiers.extract.sections import fenced_answer
from rlvr.verifiers.proof.coq import ScriptError, ScriptTooLarge
from rlvr.verifiers.proof.lean import solution_file, tactic_block, trusted_file, whole_file
from rlvr.verifiers.proof.statement import read_lean_statement

GOLDEN = Path(__file__).parents[1] / "golden"
HEADER = ": ∀ n : Nat, n = n + 1"


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (GOLDEN / name).read_text(encoding="utf-8").split("\n") if line]


def test_honest_proofs_are_read_and_keep_their_words() -> None:
    honest = rows("lean_proofs.jsonl")
    assert len(honest) >= 50
    refused = []
    for row in honest:
        statement = read_lean_statement({key: row[key] for key in row.keys() - {"id", "script"}})
        script = fenced_answer(row["script"])
        try:
            block = tactic_block(script, statement.header)
        except ScriptError as error:
            refused.append((row["id"], str(error)))
            continue
        last = script.split("--")[0].split()[-1]
        assert last in block
        assert all(line.startswith("  ") for line in block.splitlines() if line)
        assert block in solution_file(statement, block)
    assert refused == []


def test_no_attack_is_read() -> None:
    attacks = rows("lean_attacks.jsonl")
    assert len(attacks) >= 150
    read = []
    for row in attacks:
        try:
            read.append((row["id"], tactic_block(fenced_answer(row["script"]), HEADER)))
        except ScriptError:
            continue
    assert read == []


@pytest.mark.parametrize("before", ["intro n\n", "  intro n\n  simp\n  ", "(rfl) ", "have h : True := by\n  ", "· "])
@pytest.mark.parametrize("word", ["sorry", "native_decide", "axiom x : False", "#eval 1", "open Nat in rfl", "@[simp]"])
@pytest.mark.parametrize("after", ["", "\nrfl", " -- rfl", " /- rfl -/"])
def test_an_attack_is_refused_wherever_it_stands(before: str, word: str, after: str) -> None:
    with pytest.raises(ScriptError):
        tactic_block(before + word + after)


@pytest.mark.parametrize(
    "sign", ["²", "λ", "Σ", "∑", "¬", "·", "⁻¹", "𝟙", "→", "'", "0", "1e5", "0x1", "0b1", "1.", "#"]
)
def test_a_refused_word_behind_a_sign_is_still_seen(sign: str) -> None:
    with pytest.raises(ScriptError):
        tactic_block(f"exact x {sign}sorry")


@pytest.mark.parametrize(
    "text",
    [
        "trivial '(' )\nfoo (')'",
        "trivial '(')",
        "exact 1'(' )",
        "exact f ⁻¹''( )",
        "exact ⁻¹'('x'",
        "exact ⁻¹' '('x' )",
        "exact x ]'('",
        "exact →'(' )",
        "exact '''(' )",
        "exact ('a''(' )",
        "exact '\\'' )",
        "exact '\\x28' )",
        "exact ['[' ]",
        "exact {'{' }",
    ],
)
def test_brackets_that_could_be_characters_are_refused(text: str) -> None:
    """Lean reads '(' as a character or, behind a sign such as ⁻¹', as a bracket: the block could end early."""
    with pytest.raises(ScriptError):
        tactic_block(text)


@pytest.mark.parametrize(
    "text",
    [
        "exact f '' (s ∩ t)",
        "simp [f '' s, f ⁻¹' s']",
        "exact (f ⁻¹' (s))",
        "exact ∑' n, f n'",
        "exact a[i]'(by omega)",
        "exact a[0]'h",
        "have : 'a' = '\\n' := rfl",
        "simp ['a', ' ']",
        "exact ⟨'x', h₁'⟩",
    ],
)
def test_signs_and_characters_with_quotes_are_read(text: str) -> None:
    assert tactic_block(text) == f"  {text}\n"


@pytest.mark.parametrize("name", ["sorry'", "sorry₁", "sorryα", "my_sorry", "h.end", "Foo.instance", "axiom_of_choice"])
def test_names_that_only_hold_a_refused_word_are_names(name: str) -> None:
    assert tactic_block(f"exact {name}") == f"  exact {name}\n"


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("rfl", "  rfl\n"),
        ("    intro n\n    rfl\n", "  intro n\n  rfl\n"),
        ("intro n\n  rfl", "  intro n\n  rfl\n"),
        ("induction n with\n  | zero => rfl", "  induction n with\n    | zero => rfl\n"),
        ("by\n  · rfl\n\n  · rfl", "  · rfl\n\n  · rfl\n"),
        ("by simp", "  simp\n"),
        (":= by\n  simp", "  simp\n"),
        ("simp /- a\nb -/ [h] -- c", "  simp\n       [h]\n"),
        ("exact foo\n  (bar x)", "  exact foo\n    (bar x)\n"),
        ("constructor\n  · rfl\n  · rfl", "  constructor\n  · rfl\n  · rfl\n"),
        ('/- a /- b -/ " -/ simp', "  simp\n"),
        ('exact "-- /- sorry"', '  exact "-- /- sorry"\n'),
        ("theorem a : ∀ n : Nat,\n  n = n+1 := by\n  simp", "  simp\n"),
        ("simp\r\nrfl\r\n", "  simp\n  rfl\n"),
    ],
)
def test_the_layout_is_kept_and_comments_are_not(text: str, block: str) -> None:
    assert tactic_block(text, HEADER) == block


@pytest.mark.parametrize("text", ["rfl\n" * 30_000, "exact " + "(" * 300, "/-" * 300 + "-/" * 300])
def test_scripts_beyond_the_bounds_are_too_large(text: str) -> None:
    with pytest.raises(ScriptTooLarge):
        tactic_block(text)


@pytest.mark.parametrize(
    ("reference", "binders", "statement"),
    [
        ("∀ n : ℕ, n = n", "", "∀ n : ℕ, n = n"),
        ("theorem a (n : ℕ)\n  (h : 0 < n) : n ≠ 0 := by sorry", "(n : ℕ) (h : 0 < n)", "n ≠ 0"),
        ("lemma a : 1 = 1 := sorry", "", "1 = 1"),
        (
            "theorem a {α : Type*} [Group α] (s : { x : α // x = 1 }) : s = s := by",
            "{α : Type*} [Group α] (s : { x : α // x = 1 })",
            "s = s",
        ),
        ("example (x : ℝ) : ∃ y : ℝ, y = x", "(x : ℝ)", "∃ y : ℝ, y = x"),
    ],
)
def test_theorems_are_read_as_binders_and_a_proposition(reference: str, binders: str, statement: str) -> None:
    found = read_lean_statement({"statement": reference, "imports": ["Mathlib"], "open": ["Nat", "Real"]})
    assert (found.binders, found.statement) == (binders, statement)
    given = f"∀ {binders}, {statement}" if binders else statement
    assert trusted_file(found).startswith("import Mathlib\n")
    assert trusted_file(found).endswith(f"open Nat Real\ndef RlvrTrusted.statement : Prop := {given}\n")


@pytest.mark.parametrize(
    "reference",
    [
        3,
        "",
        {"statement": 1},
        {"statement": "1 = 1", "x": 1},
        {"statement": "1 = 1", "open": ["a b"]},
        "(1 = 1",
        "1) = (1",
        "theorem a",
        "theorem a (n : ℕ) := by sorry",
        "theorem a.{u} (α : Type u) : α = α",
        "1 = 1 -- a",
        "sorry",
        "True\ntheorem b : False",
        {"statement": "1 = 1", "imports": "Mathlib x"},
        {"statement": "1 = 1", "definitions": 3},
    ],
)
def test_references_that_hold_no_statement_are_refused(reference: object) -> None:
    with pytest.raises(ValueError, match=r"statement|theorem|reference"):
        read_lean_statement(reference)


@pytest.mark.parametrize("block", ["  rfl\n", "  intro n\n\n  · simp\n"])
def test_the_statement_stands_before_the_block_and_brackets_around_it(block: str) -> None:
    statement = read_lean_statement({"statement": "theorem a (x : T) : x = x", "definitions": "universe u\ndef T := ℕ"})
    text = whole_file(statement, block, "n1")
    theorem = f"theorem RlvrSolution.goal (x : T) : x = x := (by\n{block})\n"
    assert (
        text.index("def T") < text.index("def RlvrTrusted.statement : Prop := ∀ (x : T), x = x\n") < text.index(theorem)
    )
    assert text.endswith(
        theorem + "theorem RlvrCheck.n1 : RlvrTrusted.statement := @RlvrSolution.goal\n#print axioms RlvrCheck.n1\n"
    )
    alone = solution_file(statement, block)
    assert alone == f"import RlvrTrusted\nset_option autoImplicit false\nuniverse u\n{theorem}"
