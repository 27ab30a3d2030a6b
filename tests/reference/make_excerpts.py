"""The excerpts in tests/golden/data, cut from the data sets.

    python tests/reference/make_excerpts.py DATA

DATA is a folder of the data sets under the same names. Rows are copied as they are. aime/aime24.jsonl is no excerpt:
its two problems were made for the tests, in the format of AIME 2024, whose problems have no licence that would let them
be copied.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "golden" / "data"
# MATH-500: the first rows, and numbers with and without their unit.
MATH500 = (*range(20), 128, 133, 192, 233, 260, 263, 281, 467)
HUMANEVAL = (*range(11), 32)  # 32 and 10 have a helper in the prompt
MBPP = ("2", "3", "4", "11", "12", "14", "16", "17", "18", "602", "603", "604", "605", "606")
GRPO_LOSSES = (1, 2, 5, 7, 11, 13, 14, 23, 24, 28, 30)


def copy_rows(data: Path, name: str, keep: tuple[int, ...]) -> None:
    """Copy the rows of a JSONL file at these positions."""
    rows = (data / name).read_text(encoding="utf-8").splitlines(keepends=True)
    write(name, "".join(rows[place] for place in keep))


def copy_mbpp(data: Path) -> None:
    """Copy the rows of MBPP with the task ids, of both files."""
    full = (data / "mbpp/mbpp.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    write("mbpp/mbpp.jsonl", "".join(row for row in full if str(json.loads(row)["task_id"]) in MBPP))
    clean = json.loads((data / "mbpp/sanitized-mbpp.json").read_text(encoding="utf-8"))
    kept = [row for row in clean if str(row["task_id"]) in MBPP]
    write("mbpp/sanitized-mbpp.json", json.dumps(kept, indent=2) + "\n")


def copy_trl(data: Path) -> None:
    """Copy the tensors of TRL's figures, and some cases of each kind."""
    whole = json.loads((data / "trl_reference.json").read_text(encoding="utf-8"))
    whole["advantages"] = whole["advantages"][::4]
    whole["grpo_loss"] = [whole["grpo_loss"][place] for place in GRPO_LOSSES]
    write("trl_reference.json", json.dumps(whole) + "\n")


def write(name: str, text: str) -> None:
    path = OUT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main(data: Path) -> None:
    copy_rows(data, "gsm8k/train.jsonl", tuple(range(10)))
    copy_rows(data, "gsm8k/test.jsonl", tuple(range(12)))
    copy_rows(data, "math500/test.jsonl", MATH500)
    copy_rows(data, "svamp/test.jsonl", tuple(range(6)))
    copy_rows(data, "humaneval/HumanEval.jsonl", HUMANEVAL)
    copy_rows(data, "math_completions.jsonl", (0, 8, 16, 25, 26, 32, 40, 48, 56, 64))
    copy_mbpp(data)
    copy_trl(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
