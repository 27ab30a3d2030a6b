"""What a page says of a run besides its rollouts: head, curves, evaluations, events, held-out answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr.config import Config
from rlvr.config.training import read_config
from rlvr.core.files.tables import read_sections
from rlvr.runs.conclusions import conclusions, group_comparable
from rlvr.runs.folder import read_record
from rlvr.runs.log import read_events
from rlvr.runs.metrics import METRICS
from rlvr.runs.reading import Record, answer_files, read_alarms, read_lines
from rlvr.runs.records import is_graded, is_number, pass_names, with_interval

from ..console import describe_outcome

HERE = Path(__file__).parent
# Panels of the curves by group: a title, and numbers of metrics.jsonl with their labels; NAME/* stands for all of them.
PANELS: dict[str, list[tuple[str, dict[str, str]]]] = {
    group: [
        (title, dict(number.split(" = ") for number in numbers))
        for title, *numbers in (line.split(" | ") for line in lines)
    ]
    for group, lines in read_sections(HERE / "panels.txt").items()
}
METRIC_ROWS = {row.name: [row.unit, row.meaning, row.healthy] for rows in METRICS.values() for row in rows}
WHERE_IT_LIES = ("run.out_dir", "run.overwrite", "run.dry_run")  # settings that say nothing about a result


@dataclass
class Logs:
    """The records of a run that a page shows whole."""

    metrics: list[Record] = field(default_factory=list)
    evaluations: list[Record] = field(default_factory=list)
    alarms: list[Record] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Logs:
        """Read a run's logs. Raise ValueError for a damaged line."""
        return cls(
            read_lines(folder / "metrics.jsonl"),
            read_lines(folder / "eval.jsonl"),
            read_alarms(folder),
            read_events(folder),
        )


def describe_run(folder: Path, logs: Logs, *, running: bool = False) -> dict[str, Any]:
    """Return the head of a run: its state, its result in a sentence, what it is, and what its settings change."""
    try:
        settings = read_record(folder / "config.json") or {}
        comparable = group_comparable(folder, logs.evaluations)
        lines = conclusions(logs.metrics, comparable[-1] if comparable else [])
    except ValueError as error:
        settings, comparable, lines = {}, [], [f"Whether the run ended below its start cannot be said: {error}."]
    told = [describe_outcome(rows) for rows in comparable[-1:] if pass_names(rows) and "num_problems" in rows[-1]]
    steps = _group(settings, "run").get("steps")
    done = logs.metrics[-1].get("step", 0) if logs.metrics else 0
    unfinished = isinstance(steps, int) and done < steps
    state = "running" if running else "not running" if unfinished else "ended"
    return {
        "state": f"{state}, step {done}" + (f" of {steps}" if is_number(steps) else ""),
        "result": " ".join(told) or "No evaluation yet.",
        "warnings": lines,
        "facts": facts_of(settings),
        "changed": changed_settings(settings),
        "settings": json.dumps(settings, indent=2),
    }


def _group(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, Mapping) else {}


def facts_of(settings: Mapping[str, Any]) -> list[list[str]]:
    """Return what a run is, as pairs of a word and a value: model, algorithm, pack, verifier, seed, code version."""
    asked = {
        "model": ("model", "name"),
        "algorithm": ("algo", "name"),
        "pack": ("run", "task"),
        "verifier": ("run", "verifier"),
        "seed": ("run", "seed"),
        "sampler": ("sampler", "name"),
        "rlvr": ("versions", "rlvr"),
        "commit": ("versions", "commit"),
    }
    found = {word: _group(settings, group).get(name) for word, (group, name) in asked.items()}
    return [[word, str(value)] for word, value in found.items() if value is not None]


def changed_settings(settings: Mapping[str, Any]) -> list[list[str]]:
    """Return the settings of a run that differ from the defaults, each as name, default and value."""
    try:
        own = read_config(settings)
    except (ValueError, TypeError, KeyError, AttributeError):  # of another kind of run, or an older one
        return []
    plain = read_config({"algo": {"name": own.algo.name}, "sampler": {"name": own.sampler.name}})
    return [
        [name, str(default), str(value)]
        for name, value in flatten(own).items()
        if (default := flatten(plain).get(name)) != value and name not in WHERE_IT_LIES
    ]


def flatten(config: Config) -> dict[str, Any]:
    """Return the settings of a config by their whole names."""
    groups = {name: vars(group) for name, group in vars(config).items() if group is not None}
    return {f"{group}.{name}": value for group, held in groups.items() for name, value in held.items()}


def columns_of(rows: Sequence[Record]) -> dict[str, list[Any]]:
    """Return records as a list for each number, None where a record lacks it or it is not finite."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if is_number(value))
    return {name: [value if is_number(value := row.get(name)) else None for row in rows] for name in names}


def pass_table(evaluations: Sequence[Record]) -> dict[str, Any]:
    """Return the tables of pass@k (and of a graded score) by evaluation, with intervals; also by pack of a mixture."""
    names = [prefix + name for name in pass_names(evaluations) for prefix in ("", "strict_", "lenient_")]
    names = [name for name in names if any(name in row for row in evaluations)]
    names += ["score"] if is_graded(evaluations) else []
    rows = [[row.get("step"), *(with_interval(row, name) for name in names)] for row in evaluations]
    if len(evaluations) > 1:
        rows.append(["change", *(change(evaluations[0], evaluations[-1], name) for name in names)])
    packs = [
        [pack, row.get("step"), *(with_interval(held, name) for name in names)]
        for pack in dict.fromkeys(pack for row in evaluations for pack in row.get("packs") or ())
        for row in evaluations
        if isinstance(held := (row.get("packs") or {}).get(pack), Mapping)
    ]
    last = evaluations[-1] if evaluations else {}
    right = "" if last.get("threshold") is None else f" Correct for pass@k: a score of at least {last['threshold']:g}."
    note = f"{last.get('num_problems')} held-out problems; 95 % intervals over problems in brackets.{right}"
    return {"names": [n.replace("_", " ") for n in names], "rows": rows, "packs": packs, "note": note if names else ""}


def change(first: Record, last: Record, name: str) -> str:
    """Return the difference of a number between two evaluations, "" where either lacks it."""
    both = is_number(first.get(name)) and is_number(last.get(name))
    return f"{last[name] - first[name]:+.3f}" if both else ""


def content_of(folder: Path, logs: Logs, first: int = 0, *, running: bool = False) -> dict[str, Any]:
    """Return what a page holds of a run besides its rollouts. first: the row of metrics from which on it wants them."""
    return {
        "head": describe_run(folder, logs, running=running),
        "first": first,
        "metrics": columns_of(logs.metrics[first:]),
        "evaluations": [
            {name: value for name, value in row.items() if is_number(value) or name.endswith("_ci")}
            for row in logs.evaluations
        ],
        "passes": pass_table(logs.evaluations),
        "events": [
            {name: str(event.get(name, "")) for name in ("time", "step", "kind", "message")} for event in logs.events
        ],
        "alarms": [{"step": row["step"], "signs": row["signs"], "figures": row["figures"]} for row in logs.alarms],
        "answers": sorted(answer_files(folder)),
    }
