"""`rlvr compare --eval FILE FILE`: models on the same problems, with paired intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from rlvr.commands.console import Display
from rlvr.printable import in_one_line, printable
from rlvr.runs.folder import EVALUATION, read_record
from rlvr.training.answers import Answer, read_answers
from rlvr.training.paired import Paired, compare_pairs
from rlvr.training.passk import pass_at_k
from rlvr.training.selection import by_problem, is_right

# Settings of an evaluation that say what the ids stand for, and what is right.
MEASURED_ON = ("task", "split", "fingerprint", "verifier", "verifier_option", "environment")
WARNING = "problems are paired by their ids alone, and may be others or judged otherwise"


def print_evaluations(files: Sequence[Path], k: int, threshold: float | None) -> None:
    """Print how each evaluation after the first compares with it. Raises ValueError for fewer than two, or a bad k."""
    if len(files) < 2:
        raise ValueError(f"--eval {files[0]}: expected two evaluations or more")
    if k < 1:
        raise ValueError(f"--k {k}: expected 1 or more")
    if threshold is not None and not math.isfinite(threshold):
        raise ValueError(f"--threshold {threshold}: expected a finite number")
    rates = [pass_rates(file, k, threshold) for file in files]
    display = Display()
    table = Table(
        title=f"pass@{k} against {printable(str(files[0]))}, 95 % intervals over problems",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for head in ("evaluation", "problems", "first", "this", "difference", "p", "better / equal / worse"):
        table.add_column(head, justify="left" if head == "evaluation" else "right", no_wrap=head != "evaluation")
    left_out = []
    asked = [measured_on(file) for file in files]
    for file, own in zip(files[1:], rates[1:]):
        shared = [name for name in rates[0] if name in own]
        if not shared:
            raise ValueError(f"{files[0]} and {file} have no problem in common with {k} scored samples in both")
        left_out.append((len(rates[0].keys() | own.keys()) - len(shared), file))
        found = compare_pairs([rates[0][name] for name in shared], [own[name] for name in shared])
        table.add_row(escape(printable(str(file))), *cells(found))
    display.print_table(table)
    for count, file in left_out:
        if count:
            display.say(f"{printable(str(file))}: {count} problems are in one of the two only, and are left out")
    for file, own in zip(files[1:], asked[1:]):
        for name in (name for name in asked[0] if name in own and own[name] != asked[0][name]):
            there, here = (in_one_line(f"{held[name]!r:.60}") for held in (asked[0], own))
            display.say(
                f"{printable(str(file))}: {name} is {there} in the first and {here} in this; {WARNING}", wrap=True
            )


def measured_on(path: Path) -> dict[str, Any]:
    """Return what an evaluation's settings.json says of its problems and verdicts; empty where there is none."""
    folder = path if path.is_dir() else path.parent
    try:
        held = read_record(folder / EVALUATION.record) or {}
    except ValueError:
        return {}
    return {name: held.get(name) for name in MEASURED_ON} if EVALUATION.keys <= held.keys() else {}


def cells(found: Paired) -> list[str]:
    """Return a row of the table without its name."""
    interval = f" [{found.low:+.3f}, {found.high:+.3f}]" if found.problems > 1 else ""
    return [
        str(found.problems),
        f"{found.first:.3f}",
        f"{found.second:.3f}",
        escape(f"{found.difference:+.3f}{interval}"),
        f"{found.p:.4f}",
        f"{found.better} / {found.equal} / {found.worse}",
    ]


def pass_rates(path: Path, k: int, threshold: float | None) -> dict[str, float]:
    """Return pass@k of each problem with k scored answers or more, by id. Raises ValueError where there is none."""
    file = path / "answers.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"--eval {path}: no such file; expected answers of `rlvr eval`")
    rows = [row for row in read_complete(file) if row.get("score") is not None]
    counts = {
        name: (len(own), sum(is_right(row, "", threshold) for row in own)) for name, own in by_problem(rows).items()
    }
    rates = {name: pass_at_k(n, c, k) for name, (n, c) in counts.items() if n >= k}
    if not rates:
        raise ValueError(f"{file}: no problem has {k} scored samples")
    return rates


def read_complete(file: Path) -> list[Answer]:
    """Return the answers of a file. Raises ValueError for a line that is none, a last one that is cut off too."""
    text = file.read_bytes()
    if text and not text.endswith(b"\n"):
        raise ValueError(f"{file}: its last line is cut off; run the same `rlvr eval` again to complete it")
    answers = read_answers(file)
    if len(answers) < (lines := text.count(b"\n")):
        raise ValueError(f"{file}: an answer is there twice: {lines} lines hold {len(answers)} samples")
    rows = list(answers.values())
    for row in rows:
        if not {"correct", "score"} <= row.keys():
            raise ValueError(f"{file}: an answer has no field {'correct' if 'correct' not in row else 'score'!r}")
        if type(row["correct"]) is not bool or isinstance(row["score"], bool | str | list | dict):
            said = {name: row[name] for name in ("correct", "score")}
            raise ValueError(f"{file}: an answer has {said}; expected true or false, and a number or null"[:300])
    return rows
