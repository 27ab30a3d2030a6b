"""The report of a pipeline: what each stage measured on held-out data, for each seed and over seeds, as HTML."""

from __future__ import annotations

import html
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.commands.report.page import page, table
from rlvr.core.files.write import write_whole
from rlvr.runs.records import interval, is_number, pass_names, with_interval

from .records import RECORD, other_settings, read_stage


@dataclass(frozen=True)
class Figure:
    """A number that a stage measured: its name, itself, and its text with the interval where it has one."""

    name: str
    value: float
    text: str


def figures(record: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield what a stage's record holds: pass@k before and after, a reward model's accuracy, other numbers."""
    measured = record["measured"]
    evaluations = measured.get("evaluations", [])
    yield from figures_of_evaluations(evaluations, "")
    for pack in sorted({pack for row in evaluations for pack in row.get("packs", {})}):
        of_pack = [row["packs"][pack] for row in evaluations if row.get("packs", {}).get(pack)]
        yield from figures_of_evaluations(of_pack, f"{pack}: ")
    model = measured.get("reward model", {})
    if is_number(model.get("accuracy")):
        yield Figure("accuracy on held-out pairs", float(model["accuracy"]), with_interval(model, "accuracy"))
    for name, value in measured.items():
        if is_number(value):
            text = with_interval(measured, name) if interval(measured, name) else f"{value:.4g}"
            yield Figure(name, float(value), text)


def figures_of_evaluations(evaluations: Sequence[Mapping[str, Any]], prefix: str) -> Iterator[Figure]:
    """Yield pass@k of the first and the last evaluation, and best-of-k with the bound of its KL divergence."""
    chosen = sorted({name for row in evaluations for name in row if name.startswith("best@") and name[5:].isdigit()})
    for name in (*pass_names(evaluations), *chosen):
        rows = [row for row in evaluations if name in row]
        shown = rows if len(rows) < 2 else [rows[0], rows[-1]]
        for row, when in zip(shown, ("",) if len(shown) == 1 else (" before", " after")):
            bound = f" (KL at most {row[f'{name}_kl']:.2f})" if f"{name}_kl" in row else ""
            yield Figure(f"{prefix}{name}{bound}{when}", float(row[name]), with_interval(row, name))


def write_pipeline_report(folder: Path, names: Sequence[str]) -> Path:
    """Write report.html into a pipeline's folder, from the stages that are done, and return its path."""
    found = [path for path in folder.iterdir() if re.fullmatch(r"seed-\d+", path.name)]  # not a copy, seed-0-before
    seeds = sorted(found, key=lambda path: int(path.name.removeprefix("seed-")))
    held = {
        seed.name: {name: record for name in names if (record := read_stage(seed / f"{name}.{RECORD}")) is not None}
        for seed in seeds
    }
    sections = [f"<h1>{html.escape(folder.resolve().name)}</h1>", summary(names, held)]
    for name in names:
        sections.append(stage_section(name, {seed: found[name] for seed, found in held.items() if name in found}))
    path = folder / "report.html"
    write_whole(path, page(folder.resolve().name, "\n".join(filter(None, sections))))
    return path


def summary(names: Sequence[str], held: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of the stages: how many seeds have done them, and each figure's mean over these seeds."""
    rows = []
    for name in names:
        found = [record[name] for record in held.values() if name in record]
        minutes = sum(record["seconds"] for record in found) / 60
        first = True
        for figure, values in by_name(found).items():
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells = (name, f"{len(found)} of {len(held)}", f"{minutes:.1f}") if first else ("", "", "")
            rows.append([*cells, figure, f"{statistics.fmean(values):.3f}{spread}"])
            first = False
        if first:
            rows.append([name, f"{len(found)} of {len(held)}", f"{minutes:.1f}", "", ""])
    intro = "<p>Means over seeds, with the standard deviation between seeds. Intervals of each seed are below.</p>"
    for name in names:
        settings = {seed: record[name]["settings"] for seed, record in held.items() if name in record}
        if difference := other_settings(settings):
            intro += f"<p>Stage {html.escape(name)} has different settings, and its mean is over all: "
            intro += f"{html.escape(difference)}.</p>"
    return intro + table(["stage", "seeds done", "minutes", "measured", "mean"], rows)


def by_name(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the values of each figure over some records of one stage."""
    found: dict[str, list[float]] = {}
    for record in records:
        for figure in figures(record):
            found.setdefault(figure.name, []).append(figure.value)
    return found


def stage_section(name: str, records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a stage's figures by seed, with intervals, and its settings."""
    if not records:
        return ""
    columns = list(by_name(list(records.values())))
    rows = []
    for seed, record in records.items():
        shown = {figure.name: figure.text for figure in figures(record)}
        rows.append([seed, *(shown.get(column, "") for column in columns), record["path"]])
    settings = html.escape(json.dumps(next(iter(records.values()))["settings"], indent=2))
    return (
        f"<h2>{html.escape(name)}</h2>"
        + table(["seed", *columns, "result"], rows)
        + f"<details><summary>settings</summary><pre>{settings}</pre></details>"
    )
