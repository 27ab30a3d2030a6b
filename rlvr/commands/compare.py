"""`rlvr compare RUN [RUN ...]`: reward, monitor and held-out pass@k of several runs in one figure and one table."""

from __future__ import annotations

import io
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlvr.commands.arguments import Positional, parse
from rlvr.commands.console import Display
from rlvr.commands.report.curves import finish, running_mean, series
from rlvr.core.files.write import check_replaceable, write_whole
from rlvr.core.printable import in_one_line, printable
from rlvr.runs.folder import EVALUATION, read_record
from rlvr.runs.reading import read_alarms, read_lines
from rlvr.runs.records import is_graded, pass_names
from rlvr.training.evaluation.evaluate import Answer, read_answers
from rlvr.training.evaluation.passk import Paired, by_problem, compare_pairs, is_right, pass_at_k

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# `rlvr compare --eval FILE FILE`: models on the same problems, with paired intervals.

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


Record = dict[str, Any]

COLORS = ("#d1495b", "#1f6feb", "#2e933c", "#b35900", "#7b4fb5", "#008c95", "#8a6d3b", "#57606a")
MARK = "rlvr compare"  # in the figure's metadata: a file that carries it may be overwritten
# Title, the file of a run (a field of RunRecords) and the number in it. A panel without numbers is left out.
PANELS = (
    ("mean reward", "metrics", "reward"),
    ("monitor", "metrics", "monitor/score"),
    ("rank correlation within groups, proxy and monitor", "metrics", "monitor/rank"),
    ("KL to the reference (nats per token)", "metrics", "kl"),
)


FORMATS = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class CompareArgs:
    """Compare runs: a figure of reward, monitor and held-out pass@k by step, and a table of first and last values."""

    runs: Positional[tuple[str, ...]] = ()
    """Folders of runs. label=FOLDER,FOLDER,... groups runs of a condition, such as seeds: thin lines and their mean."""
    out: Path = Path("compare.png")
    """File to write the figure to; its ending gives the format (png, pdf, svg, jpg, webp)."""
    eval: tuple[Path, ...] = ()
    """Instead of runs: answers of `rlvr eval` (its folder or its answers.jsonl), the first compared with each other one
    on the problems that both have."""
    k: int = 1
    """With --eval: pass@k is compared."""
    threshold: float | None = None
    """With --eval: minimum score that counts as correct. None: the verdict decides."""


@dataclass(frozen=True)
class RunRecords:
    """The logs of one run."""

    metrics: list[Record]
    eval: list[Record]
    alarms: list[Record]

    def stream(self, name: str) -> list[Record]:
        """Return the records of a panel's stream: "metrics" (one a step) or "eval" (one an evaluation)."""
        return self.eval if name == "eval" else self.metrics


def main(argv: Sequence[str]) -> int:
    """Run `rlvr compare RUN [RUN ...]` and return its exit code."""
    arguments = parse(CompareArgs, argv, prog="rlvr compare")
    if arguments.eval:
        check_alone(arguments)
        print_evaluations(arguments.eval, arguments.k, arguments.threshold)
        return 0
    if not arguments.runs:
        raise ValueError("rlvr compare: name at least one run's folder, or label=FOLDER,FOLDER; or --eval FILE FILE")
    for name in ("k", "threshold"):
        if getattr(arguments, name) != getattr(CompareArgs, name):
            raise ValueError(f"--{name} {getattr(arguments, name)} would have no effect: it is read only with --eval")
    if arguments.out.is_dir():
        raise ValueError(f"--out {arguments.out} is a folder; expected a file such as {arguments.out / 'compare.png'}")
    out = arguments.out if arguments.out.suffix else arguments.out.with_suffix(".png")
    if out.suffix.lower() not in FORMATS:
        raise ValueError(f"--out {out}: unknown format {out.suffix!r}; expected {', '.join(FORMATS)}")
    check_replaceable(out, "--out", (MARK.encode(),))
    conditions = read_conditions(arguments.runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    # 250 columns in a file or a pipe, so that rich does not wrap the rows.
    Console(width=None if sys.stdout.isatty() else 250).print(comparison_table(conditions))
    draw_comparison(conditions, out)
    print(printable(str(out)))
    return 0


def check_alone(arguments: CompareArgs) -> None:
    """Raise ValueError for runs and a figure beside --eval, which compares answers in a table."""
    if arguments.runs:
        raise ValueError(f"{arguments.runs[0]!r} beside --eval: runs and evaluations are compared one at a time")
    if arguments.out != CompareArgs.out:
        raise ValueError(f"--out {arguments.out} would have no effect: --eval prints a table; leave it out")


def read_conditions(runs: Sequence[str]) -> dict[str, list[RunRecords]]:
    """Return the runs of each condition by its label; a folder without a label is labelled by its name.

    Raise FileNotFoundError for a folder that holds no run, ValueError where two conditions share a label.
    """
    conditions: dict[str, list[RunRecords]] = {}
    for item in runs:
        label, equals, folders = item.partition("=")
        if not equals:
            label, folders = Path(item).resolve().name, item
        if not label:
            raise ValueError(f"{item!r}: expected label=FOLDER,FOLDER")
        if label in conditions:
            raise ValueError(f"two conditions are labelled {label!r}; name them: label=FOLDER,FOLDER")
        conditions[label] = [read_run(Path(folder)) for folder in folders.split(",") if folder]
        if not conditions[label]:
            raise ValueError(f"{item!r}: expected label=FOLDER,FOLDER")
    return conditions


def read_run(folder: Path) -> RunRecords:
    """Return the logs of a run. Raise FileNotFoundError where the folder holds no metrics.jsonl."""
    if not (folder / "metrics.jsonl").exists():
        raise FileNotFoundError(f"{folder}: no metrics.jsonl; expected the folder of a run")
    return RunRecords(read_lines(folder / "metrics.jsonl"), read_lines(folder / "eval.jsonl"), read_alarms(folder))


def comparison_table(conditions: Mapping[str, Sequence[RunRecords]]) -> Table:
    """Return a table of each condition's means over runs: reward and monitor (first and last tenth), pass@k, alarms."""
    held_out = held_out_names(conditions)
    table = Table(title="means over runs (lowest to highest of the last), first tenth of the steps → last")
    heads = ["condition", "runs", "reward", "monitor", "rank", *(f"held-out {name}" for name in held_out), "alarms at"]
    for head in heads:
        table.add_column(head, justify="left" if head == "condition" else "right")
    for label, runs in conditions.items():
        cells = [
            from_to([edges(run.metrics, name) for run in runs]) for name in ("reward", "monitor/score", "monitor/rank")
        ]
        cells += [from_to([ends(run.eval, name) for run in runs]) for name in held_out]
        table.add_row(escape(printable(label)), str(len(runs)), *cells, alarm_steps(runs))
    return table


def alarm_steps(runs: Sequence[RunRecords]) -> str:
    """Return the step of each run's first alarm ("-": none), or "no monitor"."""
    if not any("monitor/score" in row for run in runs for row in run.metrics):
        return "no monitor"
    return " ".join(str(run.alarms[0]["step"]) if run.alarms else "-" for run in runs)


def edges(records: Sequence[Record], name: str) -> tuple[float, float] | None:
    """Return a number's mean over the first and over the last tenth of the steps that log it; None where none does."""
    values = series(records, name)[1]
    tenth = max(1, len(values) // 10)
    return (statistics.fmean(values[:tenth]), statistics.fmean(values[-tenth:])) if values else None


def ends(records: Sequence[Record], name: str) -> tuple[float, float] | None:
    """Return a number's first and last value; None where no record has it."""
    values = series(records, name)[1]
    return (values[0], values[-1]) if values else None


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


def draw_comparison(conditions: Mapping[str, Sequence[RunRecords]], path: Path) -> None:
    """Write the figure, without the panels that no run has numbers for. Raise ValueError where none is left."""
    from matplotlib.figure import Figure  # a second to import

    wanted = [*PANELS, *((f"held-out problems: {name}", "eval", name) for name in held_out_names(conditions))]
    everything = [run for runs in conditions.values() for run in runs]
    panels = [panel for panel in wanted if any(series(run.stream(panel[1]), panel[2])[0] for run in everything)]
    if not panels:
        raise ValueError("the runs have no steps and no evaluations; there is nothing to draw")
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5.2 * columns, 3.6 * rows), dpi=110, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, stream, number) in zip(axes, panels):
        for (label, runs), color in zip(conditions.items(), cycle(COLORS, len(conditions))):
            shown = printable(label).replace("$", "\\$")  # matplotlib typesets the text between two $ as a formula
            draw_condition(axis, [series(run.stream(stream), number) for run in runs], shown, color, stream)
            if number == "monitor/score":
                draw_alarms(axis, runs, color)
        finish(axis, title)
    picture = io.BytesIO()
    kind = path.suffix[1:].lower()
    figure.savefig(picture, format=kind, metadata={"Software" if kind == "png" else "Creator": MARK})
    write_whole(path, picture.getvalue())


def cycle(colors: Sequence[str], count: int) -> list[str]:
    """Return `count` colors, repeating them where there are fewer."""
    return [colors[i % len(colors)] for i in range(count)]


def draw_condition(
    axis: Axes, curves: Sequence[tuple[list[float], list[float]]], label: str, color: str, stream: str
) -> None:
    """Draw each run as a thin smoothed line, and their mean over the steps that all runs have."""
    curves = [(steps, smooth(values, stream)) for steps, values in curves if steps]
    if not curves:
        return
    for steps, values in curves if len(curves) > 1 else ():
        axis.plot(steps, values, color=color, alpha=0.35, linewidth=0.9)
    shared = sorted(set.intersection(*(set(steps) for steps, _ in curves)))
    tables = [dict(zip(steps, values)) for steps, values in curves]
    mean = [statistics.fmean(table[step] for table in tables) for step in shared]
    axis.plot(
        shared, mean, color=color, linewidth=2, label=label, marker="o" if stream == "eval" else None, markersize=4
    )


def smooth(values: Sequence[float], stream: str) -> list[float]:
    """Return metrics as running means over a twentieth of the steps, evaluations unchanged."""
    return list(values) if stream == "eval" else running_mean(values, max(1, len(values) // 20))


def draw_alarms(axis: Axes, runs: Sequence[RunRecords], color: str) -> None:
    """Mark each run's first alarm with a cross on its curve of the monitor."""
    for run in runs:
        steps, values = series(run.metrics, "monitor/score")
        curve = dict(zip(steps, smooth(values, "metrics")))
        for alarm in run.alarms[:1]:
            if alarm["step"] in curve:
                axis.plot(
                    alarm["step"], curve[alarm["step"]], color=color, marker="X", markersize=9, markeredgecolor="black"
                )
