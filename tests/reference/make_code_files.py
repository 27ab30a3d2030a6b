"""Files for `rlvr grade --verifier unit_tests`, from HumanEval and MBPP.

    python tests/reference/make_code_files.py DATA OUT

writes for each set the reference solutions, which should pass, and wrong programs, which should not: `return None` for
HumanEval, another problem's solution for MBPP.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlvr.tasks.published.functions import humaneval_reference, mbpp_reference

Row = dict[str, Any]


def humaneval_rows(data: Path) -> list[Row]:
    lines = (data / "humaneval/HumanEval.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def mbpp_rows(data: Path, *, sanitized: bool) -> list[Row]:
    if sanitized:
        return json.loads((data / "mbpp/sanitized-mbpp.json").read_text(encoding="utf-8"))
    return [json.loads(line) for line in (data / "mbpp/mbpp.jsonl").read_text(encoding="utf-8").splitlines()]


def make_row(name: str, reference: Row, completion: str, expected: bool) -> Row:
    return {"id": name, "reference": reference, "completion": completion, "expected": expected}


def humaneval_files(data: Path) -> dict[str, list[Row]]:
    rows = humaneval_rows(data)
    fence = "```python\n{}\n```"
    solutions = [fence.format(row["prompt"] + row["canonical_solution"]) for row in rows]
    nothing = [fence.format(row["prompt"] + "    return None\n") for row in rows]
    return {
        "humaneval": [make_row(r["task_id"], humaneval_reference(r), c, True) for r, c in zip(rows, solutions)],
        "humaneval_none": [make_row(r["task_id"], humaneval_reference(r), c, False) for r, c in zip(rows, nothing)],
    }


def mbpp_files(data: Path, name: str, *, sanitized: bool) -> dict[str, list[Row]]:
    rows = mbpp_rows(data, sanitized=sanitized)
    others = [*rows[1:], rows[0]]
    return {
        name: [make_row(str(r["task_id"]), mbpp_reference(r), r["code"], True) for r in rows],
        f"{name}_rotated": [
            make_row(str(r["task_id"]), mbpp_reference(r), o["code"], False) for r, o in zip(rows, others)
        ],
    }


def write(path: Path, rows: Iterable[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main(data: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    files = humaneval_files(data)
    files |= mbpp_files(data, "mbpp", sanitized=False) | mbpp_files(data, "sanitized", sanitized=True)
    for name, rows in files.items():
        write(out / f"{name}.jsonl", rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
