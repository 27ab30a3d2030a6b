"""`rlvr compare RUN [RUN ...]`: several runs in one page and one table.

`rlvr compare --eval FILE FILE`: models on the same problems, with paired intervals.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlvr.core.files.write import check_replaceable, write_whole
from rlvr.core.printable import in_one_line, printable
from rlvr.runs.folder import EVALUATION, read_record
from rlvr.runs.reading import Record, read_alarms, read_lines
from rlvr.runs.records import is_graded, pass_names, series
from rlvr.training.evaluation.answers import Answer, read_answers
from rlvr.training.evaluation.passk import Paired, by_problem, compare_pairs, is_right, pass_at_k

from ..arguments import Positional, parse
from ..console import Display
from .page import TITLE, Source, page_of_runs

# Settings of an evaluation that say which problems its ids stand for, and what is right.
MEASURED_ON = ("task", "split", "fingerprint", "verifier", "verifier_option", "environment")
WARNING = "problems are paired by their ids alone, and may be others or judged otherwise"


@dataclass(frozen=True)
class CompareArgs:
    """Compare runs: a table of first and last values, and the page of `rlvr report` for all of them."""

    runs: Positional[tuple[str, ...]] = ()
    """Folders of runs. label=FOLDER,FOLDER,... groups runs of a condition, such as seeds: their mean and range."""
    out: Path = Path("compare.html")
    """File to write the page to."""
    eval: tuple[Path, ...] = ()
    """Instead of runs: answers of `rlvr eval` (its folder or its answers.jsonl), the first compared with each other one
    on the problems that both have."""
    k: int = 1
    """With --eval: pass@k is compared."""
    threshold: float | None = None
    """With --eval: minimum score that counts as correct. None: the verdict decides."""


@dataclass(frozen=True)
class RunRecords:
    """The logs of one run: a line for each step, evaluation and alarm."""

    metrics: list[Record]
    eval: list[Record]
    alarms: list[Record]


def main(argv: Sequence[str]) -> int:
    """Run `rlvr compare RUN [RUN ...]` or `rlvr compare --eval FILE FILE`, and return its exit code."""
    args = parse(CompareArgs, argv, prog="rlvr compare")
    if args.eval:
        if args.runs:
            raise ValueError(f"{args.runs[0]!r} beside --eval: runs and evaluations are compared one at a time")
        if args.out != CompareArgs.out:
            raise ValueError(f"--out {args.out} would have no effect: --eval prints a table; leave it out")
        print_evaluations(args.eval, args.k, args.threshold)
        return 0
    if not args.runs:
        raise ValueError("name at least one run: rlvr compare RUN [label=RUN,RUN ...], or --eval FILE FILE")
    for name in ("k", "threshold"):
        if getattr(args, name) != getattr(CompareArgs, name):
            raise ValueError(f"--{name} {getattr(args, name)} would have no effect: it is read only with --eval")
    if args.out.is_dir():
        raise ValueError(f"--out {args.out} is a folder; expected a file such as {args.out / 'compare.html'}")
    out = args.out if args.out.suffix else args.out.with_suffix(".html")
    if out.suffix.lower() != ".html":
        raise ValueError(f"--out {out}: the page is HTML; expected a name such as {out.with_suffix('.html').name}")
    check_replaceable(out, "--out", (TITLE.encode(),))
    folders, conditions = folders_of(args.runs), read_conditions(args.runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    # 250 columns in a file or a pipe, so that rich does not wrap the rows.
    Console(width=None if sys.stdout.isatty() else 250).print(comparison_table(conditions))
    write_whole(out, page_of_runs(", ".join(folders), sources_of(folders)))
    print(printable(str(out)))
    return 0


def folders_of(runs: Sequence[str]) -> dict[str, list[Path]]:
    """Return the folders of each condition by its label. A folder without a label is labelled by its name.

    Raise ValueError where two conditions share a label, or one has no folder.
    """
    conditions: dict[str, list[Path]] = {}
    for item in runs:
        label, equals, folders = item.partition("=")
        if not equals:
            label, folders = Path(item).resolve().name, item
        if label in conditions:
            raise ValueError(f"two conditions are labelled {label!r}; name them: label=FOLDER,FOLDER")
        conditions[label] = [Path(folder) for folder in folders.split(",") if folder]
        if not label or not conditions[label]:
            raise ValueError(f"{item!r}: expected label=FOLDER,FOLDER")
    return conditions


def read_conditions(runs: Sequence[str]) -> dict[str, list[RunRecords]]:
    """Return the runs of each condition by its label. Raise FileNotFoundError for a folder that holds no run."""
    return {label: [read_run(folder) for folder in folders] for label, folders in folders_of(runs).items()}


def sources_of(conditions: Mapping[str, Sequence[Path]]) -> list[Source]:
    """Return the runs of a page. Those of a condition with several are named by it and their folder."""
    return [
        Source(folder, label if len(folders) == 1 else f"{label}: {folder}", label)
        for label, folders in conditions.items()
        for folder in folders
    ]


def read_run(folder: Path) -> RunRecords:
    """Return the logs of a run. Raise FileNotFoundError where the folder holds no metrics.jsonl."""
    if not (folder / "metrics.jsonl").exists():
        raise FileNotFoundError(f"{folder}: no metrics.jsonl; expected the folder of a run")
    return RunRecords(read_lines(folder / "metrics.jsonl"), read_lines(folder / "eval.jsonl"), read_alarms(folder))


def comparison_table(conditions: Mapping[str, Sequence[RunRecords]]) -> Table:
    """Return a table of each condition's means over runs: reward and monitor (first and last tenth), pass@k, alarms."""
    names = held_out_names(conditions)
    table = Table(title="means over runs (lowest to highest of the last), first tenth of the steps → last")
    for head in (
        "condition",
        "runs",
        "reward",
        "monitor",
        "rank",
        *(f"held-out {name}" for name in names),
        "alarms at",
    ):
        table.add_column(head, justify="left" if head == "condition" else "right")
    for label, runs in conditions.items():
        logged = ("reward", "monitor/score", "monitor/rank")
        cells = [from_to([edges(run.metrics, name) for run in runs]) for name in logged]
        cells += [from_to([edges(run.eval, name, share=0) for run in runs]) for name in names]
        table.add_row(escape(printable(label)), str(len(runs)), *cells, alarm_steps(runs))
    return table


def alarm_steps(runs: Sequence[RunRecords]) -> str:
    """Return the step of each run's first alarm ("-": none), or "no monitor"."""
    if not any("monitor/score" in row for run in runs for row in run.metrics):
        return "no monitor"
    return " ".join(str(run.alarms[0]["step"]) if run.alarms else "-" for run in runs)


def edges(records: Sequence[Record], name: str, share: float = 0.1) -> tuple[float, float] | None:
    """Return a number's mean over the first and the last `share` of its values (at least one); None without any."""
    values = series(records, name)[1]
    count = max(1, int(len(values) * share))
    return (statistics.fmean(values[:count]), statistics.fmean(values[-count:])) if values else None


def from_to(pairs: Sequence[tuple[float, float] | None]) -> str:
    """Return "first → last", each the mean over runs; with several runs also the range of the last."""
    known = [pair for pair in pairs if pair is not None]
    if not known:
        return ""
    first, last = (statistics.fmean(column) for column in zip(*known))
    lasts = [pair[1] for pair in known]
    spread = f" ({min(lasts):.2f}..{max(lasts):.2f})" if len(known) > 1 else ""
    return f"{first:.2f} → {last:.2f}{spread}"


def held_out_names(conditions: Mapping[str, Sequence[RunRecords]]) -> list[str]:
    """Return the names to show: pass@k of the smallest k that any run measured, and the score where it is graded."""
    evaluations = [row for runs in conditions.values() for run in runs for row in run.eval]
    return pass_names(evaluations)[:1] + (["score"] if is_graded(evaluations) else [])


def print_evaluations(files: Sequence[Path], k: int, threshold: float | None) -> None:
    """Print how each evaluation after the first compares with it. Raises ValueError for fewer than two, or a bad k."""
    if len(files) < 2:
        raise ValueError(f"--eval {files[0]}: expected two evaluations or more")
    if k < 1:
        raise ValueError(f"--k {k}: expected 1 or more")
    if threshold is not None and not math.isfinite(threshold):
        raise ValueError(f"--threshold {threshold}: expected a finite number")
    (first, *others), (first_rates, *rates) = files, [pass_rates(file, k, threshold) for file in files]
    display = Display()
    title = f"pass@{k} against {printable(str(first))}, 95 % intervals over problems"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for head in ("evaluation", "problems", "first", "this", "difference", "p", "better / equal / worse"):
        table.add_column(head, justify="left" if head == "evaluation" else "right", no_wrap=head != "evaluation")
    notes = []
    for file, own in zip(others, rates):
        shared = [name for name in first_rates if name in own]
        if not shared:
            raise ValueError(f"{first} and {file} have no problem in common with {k} scored samples in both")
        if count := len(first_rates.keys() | own.keys()) - len(shared):
            notes.append(f"{printable(str(file))}: {count} problems are in one of the two only, and are left out")
        found = compare_pairs([first_rates[name] for name in shared], [own[name] for name in shared])
        table.add_row(escape(printable(str(file))), *cells(found))
    display.print_table(table)
    there = measured_on(first)
    for file in others:
        here = measured_on(file)
        for name in (name for name in there if name in here and here[name] != there[name]):
            one, other = (in_one_line(f"{held[name]!r:.60}") for held in (there, here))
            notes.append(f"{printable(str(file))}: {name} is {one} in the first and {other} in this; {WARNING}")
    for note in notes:
        display.say(note, wrap=True)


def measured_on(path: Path) -> dict[str, Any]:
    """Return what an evaluation's settings.json says of its problems and verdicts; empty where there is none."""
    try:
        held = read_record((path if path.is_dir() else path.parent) / EVALUATION.record) or {}
    except ValueError:
        return {}
    return {name: held.get(name) for name in MEASURED_ON} if EVALUATION.keys <= held.keys() else {}


def cells(found: Paired) -> list[str]:
    """Return a row of the table without its name."""
    interval = f" [{found.low:+.3f}, {found.high:+.3f}]" if found.problems > 1 else ""
    ahead = f"{found.better} / {found.equal} / {found.worse}"
    numbers = (f"{found.first:.3f}", f"{found.second:.3f}", escape(f"{found.difference:+.3f}{interval}"))
    return [str(found.problems), *numbers, f"{found.p:.4f}", ahead]


def pass_rates(path: Path, k: int, threshold: float | None) -> dict[str, float]:
    """Return pass@k of each problem with k scored answers or more, by id. Raises ValueError where there is none."""
    file = path / "answers.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"--eval {path}: no such file; expected answers of `rlvr eval`")
    rates = {}
    for name, own in by_problem([row for row in read_complete(file) if row.get("score") is not None]).items():
        if len(own) >= k:
            rates[name] = pass_at_k(len(own), sum(is_right(row, "", threshold) for row in own), k)
    if not rates:
        raise ValueError(f"{file}: no problem has {k} scored samples")
    return rates


def read_complete(file: Path) -> list[Answer]:
    """Return the answers of a file. Raises ValueError for a line that is none, also for a last one that is cut off."""
    text = file.read_bytes()
    if text and not text.endswith(b"\n"):
        raise ValueError(f"{file}: its last line is cut off; run the same `rlvr eval` again to complete it")
    answers = read_answers(file)
    if len(answers) < (lines := text.count(b"\n")):
        raise ValueError(f"{file}: an answer is there twice: {lines} lines hold {len(answers)} samples")
    for row in answers.values():
        for name in ("correct", "score"):
            if name not in row:
                raise ValueError(f"{file}: an answer has no field {name!r}")
        if type(row["correct"]) is not bool or isinstance(row["score"], bool | str | list | dict):
            said = {name: row[name] for name in ("correct", "score")}
            raise ValueError(f"{file}: an answer has {said}; expected true or false, and a number or null"[:300])
    return list(answers.values())
