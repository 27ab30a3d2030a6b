import Lean.Replay
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
