"""The files that Lean is given, and what its answers mean.

The statement is a definition, `RlvrTrusted.statement`, which is elaborated before the completion is read. Behind the
theorem of the completion's tactics stands `theorem RlvrCheck.CODE : RlvrTrusted.statement := @RlvrSolution.goal` and
`#print axioms RlvrCheck.CODE`, where CODE is drawn for each check: a pass needs an answer that names it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rlvr.printable import in_one_line
from rlvr.types import Verdict, correct, incorrect
from rlvr.verifiers.proof.statement import Statement

AXIOMS = ("propext", "Classical.choice", "Quot.sound")
TRUSTED, SOLUTION, CHECK = "RlvrTrusted", "RlvrSolution", "RlvrCheck"
# Known pairs, which tell whether what answers is a Lean that checks: the first proof is right, the others are not.
PROBES = ((True, "  exact fun _ _ h => h.1\n"), (False, "  sorry\n"), (False, "  exact fun _ _ h => h.2\n"))
PROBE = Statement("∀ p q : Prop, p ∧ q → p")
REPLAY = """import Lean.Replay
open Lean

partial def axiomsOf (find : Name → Option ConstantInfo) : List Name → NameSet → Array Name → Array Name
  | [], _, found => found
  | name :: rest, seen, found =>
    if seen.contains name then axiomsOf find rest seen found else
    match find name with
    | none => axiomsOf find rest (seen.insert name) (found.push name)
    | some info =>
      let found := match info with
        | .axiomInfo _ => found.push name
        | _ => found
      axiomsOf find (info.getUsedConstantsAsSet.toList ++ rest) (seen.insert name) found

def replayed (constants : Std.HashMap Name ConstantInfo) (env : Environment) : IO (Name → Option ConstantInfo) := by
  first
  | exact (do let env ← Environment.replay constants env; return fun name => env.find? name)
  | exact (do let env ← Environment.replay constants env.toKernelEnv; return fun name => env.find? name)
  | exact (do let env ← Kernel.Environment.replay constants env.toKernelEnv; return fun name => env.find? name)

def main (arguments : List String) : IO UInt32 := do
  let [code, path] := arguments | return 2
  let env ← importModules #[{ module := `RlvrTrusted }] {} 0
  let (data, _) ← readModuleData path
  let mut constants : Std.HashMap Name ConstantInfo := {}
  for name in data.constNames, info in data.constants do
    if env.contains name then throw (IO.userError s!"{name} is declared twice")
    constants := constants.insert name info
  let some given := env.find? `RlvrTrusted.statement | throw (IO.userError "no statement")
  let some goal := constants[`RlvrSolution.goal]? | throw (IO.userError "no proof")
  let check := `RlvrCheck.check
  if constants.contains check then throw (IO.userError "a name that is not allowed")
  let value := Expr.const goal.name (goal.levelParams.map Level.param)
  let type := Expr.const given.name (goal.levelParams.map Level.param)
  let proof := { name := check, levelParams := goal.levelParams, type := type, value := value, all := [check] }
  let find ← replayed (constants.insert check (.thmInfo proof)) env
  if (find check).isNone then throw (IO.userError "not checked")
  IO.println s!"{code} {axiomsOf find [check] {} #[]}"
  return 0
"""


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
    """Return the theorem of a block of `tactic_block`. The bracket makes whatever ends the block early an error."""
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
    """Return the module that compares, where the completion is not."""
    return f"import {SOLUTION}\n{comparison(code)}"


def whole_file(statement: Statement, block: str, code: str) -> str:
    """Return all of it in one text, for a server."""
    return f"{trusted_file(statement)}{theorem(statement, block)}{comparison(code)}"


def _opens(statement: Statement) -> str:
    return f"open {' '.join(statement.opens)}\n" if statement.opens else ""


def first_error(messages: Iterable[Message]) -> str:
    """Return the first error, or what says that something is left unproved, in one line; "" where there is none."""
    for message in messages:
        text = in_one_line(" ".join(message.data.split()))[:200]
        if message.severity not in ("warning", "information", "info", "trace"):
            return text or "an error without a text"
        if re.search(r"\buses\W{1,3}(?:sorry|admit)\b", text):
            return f"the proof {text}"
    return ""


def judge(messages: Sequence[Message], code: str, allowed: Sequence[str]) -> Verdict:
    """Return the verdict on what Lean says of `comparison(code)`, and of what stands before it."""
    if why := first_error(messages):
        return incorrect(why)
    told = [message.data for message in messages if code in message.data]
    name = rf"'?{CHECK}\.{code}'?"
    if len(told) != 1 or not (
        match := re.fullmatch(rf"{name} (?:(does not)|depends) .*?(?:\[(.*)\])?", told[0].strip(), re.DOTALL)
    ):
        return incorrect("Lean has not said what the proof rests on")
    if bool(match[1]) == (match[2] is not None):
        return incorrect("Lean has not said what the proof rests on")
    return judge_axioms((match[2] or "").split(","), allowed)


def judge_axioms(names: Iterable[str], allowed: Sequence[str]) -> Verdict:
    """Return *correct* where all names are allowed."""
    for name in filter(None, (name.strip() for name in names)):
        if name not in allowed:
            return incorrect(f"rests on {in_one_line(name)[:100]}")
    return correct(reason="Lean accepts the proof")
