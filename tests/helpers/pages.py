"""Runs to show in a page, and what a page that was written holds."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TURNS = [
    {"role": "assistant", "text": "call it", "tokens": 1, "void": True},
    {"role": "tool", "text": "reply " * 60, "tokens": 7, "calls": 2, "failed": 1},
    {"role": "assistant", "text": "so it is nine", "tokens": 2},
]


def log_sample(step: int, sample: int, status: str = "correct", **more: Any) -> dict[str, Any]:
    """A line of rollouts.jsonl: four samples of each problem."""
    row = {"step": step, "problem": f"p{sample // 4}", "sample": sample, "prompt": "1 + 1 =", "completion": "2"}
    row |= {"status": status, "score": float(status == "correct"), "reward": float(status == "correct")}
    return row | {"advantage": 0.5, "reason": "", "extracted": None, "finish_reason": "stop", "tokens": 1} | more


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a file of JSON lines; compressed where its name ends with .gz."""
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def write_run(
    folder: Path,
    rollouts: Sequence[dict[str, Any]] = (),
    *,
    metrics: Sequence[dict[str, Any]] = ({"step": 1, "reward": 0.5},),
    evaluations: Sequence[dict[str, Any]] = (),
) -> Path:
    """Write the logs of a run and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "metrics.jsonl", metrics)
    if rollouts:
        write_lines(folder / "rollouts.jsonl", rollouts)
    if evaluations:
        write_lines(folder / "eval.jsonl", evaluations)
    return folder


def write_answers(folder: Path, step: int, rights: dict[str, str], **more: Any) -> None:
    """Write the held-out answers of an evaluation: for each problem a digit for each sample, 1 for right."""
    rows = [
        {
            "step": step,
            "problem": name,
            "prompt": f"What is {name}?",
            "answers": [
                {"sample": i, "completion": f"{name} after {step}, number {i}", "correct": mark == "1", "tokens": 3}
                | {"status": "correct" if mark == "1" else "incorrect", "reason": "", "extracted": None}
                | more
                for i, mark in enumerate(marks)
            ],
        }
        for name, marks in rights.items()
    ]
    write_lines(folder / f"answers-{step:06d}.jsonl.gz", rows)


def read_data(path: Path) -> dict[str, Any]:
    """Return what a page says of its runs besides rollouts and answers."""
    found = re.search(r'<script type="application/json" id="data">([^<]*)</script>', path.read_text("utf-8"))
    assert found is not None
    return json.loads(found[1])


def read_blocks(path: Path, kind: str, run: int = 0) -> list[Any]:
    """Return the compressed data of a page of one kind: "rollouts", "texts", "answers"."""
    blocks = re.findall(rf'<script type="application/gzip" id="{kind}-{run}-\d+">([^<]*)</script>', path.read_text())
    return [json.loads(gzip.decompress(base64.b64decode(block))) for block in blocks]


def read_texts(path: Path) -> list[Any]:
    """Return the texts of the rollouts in a page: verdict in words, extracted answer, parts."""
    return [row for chunk in read_blocks(path, "texts") for row in chunk]


def read_columns(path: Path) -> dict[str, list[Any]]:
    """Return the numbers of the rollouts in a page by column, with names in place of their numbers."""
    (held,) = read_blocks(path, "rollouts")
    columns = dict(held["columns"])
    for name, known in held["names"].items():
        columns[name] = [known[place] for place in columns[name]]
    return columns
