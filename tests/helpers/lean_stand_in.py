"""A program that speaks as `lean` does and judges a few known blocks of tactics, with the standard library alone."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

RIGHT = ("right", "exact fun _ _ h => h.1")


def block_of(text: str) -> str:
    found = re.search(r":= \(by\n(.*?)\n\)\n", text, re.DOTALL)
    return found.group(1).strip() if found else ""


def message(severity: str, data: str) -> dict:
    place = {"line": 1, "column": 0}
    return {"severity": severity, "data": data, "pos": place, "endPos": None, "kind": "[anonymous]", "caption": ""}


def elaborate(text: str) -> list[dict]:
    """Return the messages on a text up to the comparison."""
    block = block_of(text)
    if "nosuch" in text:
        return [message("error", "unknown identifier 'nosuch'")]
    if not block or block in (*RIGHT, "other", "silent", "kernel") or block.startswith("uses "):
        return []
    if block == "sorry":
        return [message("warning", "declaration uses 'sorry'")]
    if block == "forged":
        return [message("information", "'RlvrCheck.n0' does not depend on any axioms")]
    return [message("error", "type mismatch\n  h.2\nhas type q")]


def compare(block: str, text: str) -> list[dict]:
    """Return the messages on the comparison, whose name is in `text`."""
    name = re.search(r"#print axioms (\S+)", text)
    if name is None or block in ("silent", "forged"):
        return []
    if block == "other":
        return [message("error", "type mismatch: RlvrSolution.goal"), message("information", f"'{name[1]}' unknown")]
    names = axioms_of(block)
    if names:
        return [message("information", f"'{name[1]}' depends on axioms: [" + ",\n ".join(names) + "]")]
    return [message("information", f"'{name[1]}' does not depend on any axioms")]


def axioms_of(block: str) -> list[str]:
    if block == "sorry":
        return ["sorryAx"]
    return block.removeprefix("uses ").split() if block.startswith("uses ") else []


def misbehave(block: str) -> None:
    """Do what a hostile block does to the process that elaborates it."""
    if block == "loop":
        while True:
            pass
    if block == "grow":
        held = []
        while True:
            held.append(bytearray(1 << 24))
    if block == "crash":
        os.abort()
    if block == "talk":
        while True:
            print("x" * 100_000)
    if block == "garbage":
        print('{"severity": 3}\n[1]\nnull\n{"data": "x"}\n' + "[" * 5000)
        sys.exit(1)


def main(arguments: list[str]) -> int:
    """Compile a module as `lean --json` does, or replay one."""
    if "--run" in arguments:
        program, code, compiled = arguments[arguments.index("--run") + 1 :]
        block = Path(compiled).read_text(encoding="utf-8")
        if block == "kernel" or "Environment.replay" not in Path(program).read_text(encoding="utf-8"):
            print("uncaught exception: (kernel) declaration type mismatch", file=sys.stderr)
            return 1
        print(f"{code} #[{', '.join(axioms_of(block))}]")
        return 0
    text = Path(arguments[-1]).read_text(encoding="utf-8")
    block = block_of(text)
    misbehave(block)
    library = Path(os.environ["LEAN_PATH"].split(":", maxsplit=1)[0], "RlvrSolution.olean")
    messages = elaborate(text)
    if "import RlvrSolution" in text:
        messages += compare(library.read_text(encoding="utf-8"), text)
    for item in messages:
        print(json.dumps(item, ensure_ascii=False))
    failed = any(item["severity"] == "error" for item in messages)
    if not failed:
        Path(arguments[arguments.index("-o") + 1]).write_text(block, encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
