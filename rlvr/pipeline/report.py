"""The page of a pipeline: what each stage measured, before and after, and the curves of those that train."""

from __future__ import annotations

import html
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlvr.commands.report.page import Link, Source, page_of_curves, table
from rlvr.core.files.write import write_whole
from rlvr.runs.reading import read_lines
from rlvr.runs.records import interval, is_number, pass_names, series, with_interval

from .records import RECORD, SEED_FOLDER, other_settings, read_stage

Records = Mapping[str, Mapping[str, Any]]
CHANCE = 0.5  # the accuracy of a reward model on pairs before it has learned


@dataclass(frozen=True)
class Figure:
    """A number that a stage measured: its name, itself, and its text with the interval where it has one.

    before: the same before the stage, where it is known; its text says how.
    """

    name: str
    value: float
    text: str
    before: float | None = None
    before_text: str = ""


def figures(record: Mapping[str, Any], earlier: Records | None = None) -> Iterator[Figure]:
    """Yield what a stage's record holds: pass@k, a reward model's accuracy, other numbers.

    earlier: the records of the same seed by stage, in which "before" is looked for where the stage itself lacks it.
    """
    measured, came_from = record["measured"], origin(record, earlier or {})
    evaluations = measured.get("evaluations", [])
    yield from figures_of_evaluations(evaluations, "", came_from)
    for pack in sorted({pack for row in evaluations for pack in row.get("packs", {})}):
        yield from figures_of_evaluations(of_pack(evaluations, pack), f"{pack}: ", of_pack(came_from, pack))
    model = measured.get("reward model", {})
    if is_number(model.get("accuracy")):
        text = with_interval(model, "accuracy")
        yield Figure("accuracy on held-out pairs", model["accuracy"], text, CHANCE, f"{CHANCE} by chance")
    for name, value in measured.items():
        if is_number(value):
            text = with_interval(measured, name) if interval(measured, name) else format_mean([value], "{:.4g}")
            yield Figure(name, value, text)


def of_pack(evaluations: Sequence[Mapping[str, Any]], pack: str) -> list[Mapping[str, Any]]:
    """Return the part of evaluations that is of one pack of a mixture."""
    return [row["packs"][pack] for row in evaluations if row.get("packs", {}).get(pack)]


def figures_of_evaluations(
    evaluations: Sequence[Mapping[str, Any]], prefix: str, came_from: Sequence[Mapping[str, Any]]
) -> Iterator[Figure]:
    """Yield pass@k of the last evaluation, and best-of-k with the bound of its KL divergence.

    Before: of the first evaluation where there are two, else of the last one of `came_from` on as many problems.
    """
    chosen = sorted({name for row in evaluations for name in row if name.startswith("best@") and name[5:].isdigit()})
    for name in (*pass_names(evaluations), *chosen):
        *others, last = [row for row in evaluations if name in row]
        same = [row for row in came_from if name in row and row.get("num_problems") == last.get("num_problems")]
        before = next(iter([*others[:1], *same[-1:]]), {})
        bound = f" (KL at most {last[f'{name}_kl']:.2f})" if f"{name}_kl" in last else ""
        told = with_interval(last, name), before.get(name), with_interval(before, name)
        yield Figure(f"{prefix}{name}{bound}", last[name], *told)


def origin(record: Mapping[str, Any], earlier: Records) -> list[Mapping[str, Any]]:
    """Return the evaluations of the policy that a stage began with, of the same pack; none where they are not known."""
    settings = record["settings"]
    model = settings.get("model")
    named = re.match(rf"{SEED_FOLDER}/([\w-]+)", str(model.get("name") if isinstance(model, Mapping) else model))
    before = earlier.get(named[1]) if named else None
    if before is None or task_of(before["settings"]) != task_of(settings):
        return []
    return before["measured"].get("evaluations") or origin(before, earlier)


def task_of(settings: Mapping[str, Any]) -> Any:
    group = settings.get("run", settings)
    return [group.get("task"), group.get("task_option")] if isinstance(group, Mapping) else None


def write_pipeline_report(folder: Path, names: Sequence[str]) -> Path:
    """Write report.html into a pipeline's folder, from the stages that are done, and return its path."""
    found = [path for path in folder.iterdir() if re.fullmatch(r"seed-\d+", path.name)]  # not a copy, seed-0-before
    seeds = sorted(found, key=lambda path: int(path.name.removeprefix("seed-")))
    held = {
        seed.name: {name: record for name in names if (record := read_stage(seed / f"{name}.{RECORD}")) is not None}
        for seed in seeds
    }
    sections = [f"<h1>{html.escape(folder.resolve().name)}</h1>", summary(names, held)]
    sections += [stage_section(name, held, folder) for name in names]
    sources = [
        Source(run, name if len(held) == 1 else f"{name}, {seed}", name)
        for name in names
        for seed, records in held.items()
        if name in records and has_curves(run := folder / seed / name)
    ]
    path = folder / "report.html"
    write_whole(path, page_of_curves(folder.resolve().name, sources, "\n".join(filter(None, sections))))
    return path


def has_curves(folder: Path) -> bool:
    """Return whether a stage's folder has metrics of one training, step by step."""
    steps = series(read_lines(folder / "metrics.jsonl"), "step")[0]
    return bool(steps) and all(later > step for step, later in pairwise(steps))


def summary(names: Sequence[str], held: Mapping[str, Records]) -> str:
    """Return a table of the stages: how many seeds have done them, and each figure's mean over these seeds."""
    rows = []
    for name in names:
        found = [records for records in held.values() if name in records]
        minutes = sum(records[name]["seconds"] for records in found) / 60
        head = [name, f"{len(found)} of {len(held)}", f"{minutes:.1f}"]
        measured = by_name([[*figures(records[name], records)] for records in found])
        for figure, own in measured.items():
            before = [one.before for one in own if one.before is not None]
            rows.append([*head, figure, with_deviation(before), with_deviation([one.value for one in own])])
            head = ["", "", ""]
        if not measured:
            rows.append([*head, "", "", ""])
    intro = (
        "<p>Means over seeds, with the standard deviation between seeds. Before: the first evaluation of the stage or, "
        "where it has one alone, that of the policy that it began with. Minutes of all tries. Intervals of each seed "
        "are below.</p>"
    )
    for name in names:
        settings = {seed: record[name]["settings"] for seed, record in held.items() if name in record}
        if difference := other_settings(settings):
            intro += f"<p>Stage {html.escape(name)} has different settings, and its mean is over all: "
            intro += f"{html.escape(difference)}.</p>"
    return intro + table(["stage", "seeds done", "minutes", "measured", "before", "after"], rows)


def with_deviation(values: Sequence[float]) -> str:
    """Return the mean of some values with their standard deviation; "" without any."""
    spread = f" ± {statistics.stdev(values):.3g}" if len(values) > 1 else ""
    return f"{format_mean(values)}{spread}" if values else ""


def format_mean(values: Sequence[float], form: str = "{:.3f}") -> str:
    """Return the mean of some values: of counts to the whole, of others in a form."""
    mean = statistics.fmean(values)
    counts = all(isinstance(value, int) for value in values)
    whole = counts or (max(values) > 1 and all(float(value).is_integer() for value in values))
    return f"{mean:,.0f}" if whole else form.format(mean)


def by_name(found: Sequence[Sequence[Figure]]) -> dict[str, list[Figure]]:
    named: dict[str, list[Figure]] = {}
    for figure in (figure for own in found for figure in own):
        named.setdefault(figure.name, []).append(figure)
    return named


def stage_section(name: str, held: Mapping[str, Records], folder: Path) -> str:
    """Return a stage's figures by seed, with intervals and a link to its own page, and its settings.

    folder: that of the pipeline, in which its page lies.
    """
    shown = {seed: [*figures(records[name], records)] for seed, records in held.items() if name in records}
    if not shown:
        return ""
    columns = list(by_name(list(shown.values())))
    rows = []
    for seed, own in shown.items():
        texts = {one.name: f"{one.before_text} → {one.text}" if one.before_text else one.text for one in own}
        path, report = held[seed][name]["path"], Path(seed, name, "report.html")
        result = Link(path, report) if (folder / report).exists() else path
        rows.append([seed, *(texts.get(column, "") for column in columns), result])
    settings = html.escape(json.dumps(held[next(iter(shown))][name]["settings"], indent=2))
    return (
        f"<h2>{html.escape(name)}</h2>"
        + table(["seed", *columns, "result"], rows)
        + f"<details><summary>settings</summary><pre>{settings}</pre></details>"
    )
