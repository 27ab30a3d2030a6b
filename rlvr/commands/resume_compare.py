"""Whether two runs have written the same: weights, optimizer states, rollouts, evaluations, metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from rlvr.runs.reading import all_rollouts, read_lines
from rlvr.training.checkpoint import checkpoint_folder

Finding = tuple[str, str]  # what was compared, and how it differs: "" where it does not
# Metrics that are durations, or made of them.
TIMED = ("seconds/", "tokens_per_second")


def compare_runs(one: Path, other: Path, steps: int) -> list[Finding]:
    """Return what was compared of two runs after `steps` steps, each with its difference."""
    findings = []
    for name, folder in (("", checkpoint_folder), ("start: ", lambda run, _: run / "start")):
        folders = [folder(run, steps) for run in (one, other)]
        files = {path.relative_to(root) for root in folders for path in root.rglob("*") if path.is_file()}
        for file in sorted(files):
            if file.suffix == ".safetensors" or file.name == "ahead.jsonl":
                findings.append((f"{name}{file}", tensors_differ(*(root / file for root in folders))))
            elif file.suffix == ".distcp":
                findings.append((f"{name}{file}", bytes_differ(*(root / file for root in folders))))
    logs: dict[str, Callable[[Path], Any]] = {
        "rollouts.jsonl": all_rollouts,
        "eval.jsonl": lambda run: read_lines(run / "eval.jsonl"),
        "alarms.jsonl": lambda run: read_lines(run / "alarms.jsonl"),
        "metrics.jsonl": lambda run: map(untimed, read_lines(run / "metrics.jsonl")),
    }
    return [*findings, *((name, lines_differ(read(one), read(other))) for name, read in logs.items())]


def untimed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of metrics without durations."""
    return {name: value for name, value in row.items() if not name.startswith(TIMED)}


def bytes_differ(one: Path, other: Path) -> str:
    """Return how two files differ, "" where they do not."""
    for path in (one, other):
        if not path.exists():
            return f"{path} is missing"
    return "" if one.read_bytes() == other.read_bytes() else "other bytes"


def tensors_differ(one: Path, other: Path) -> str:
    """Return how two files of tensors differ: the first tensor that does, by how much; "" where they do not."""
    found = bytes_differ(one, other)
    if found != "other bytes" or one.suffix != ".safetensors":
        return found
    from safetensors.torch import load_file

    held, others = load_file(one), load_file(other)
    if held.keys() != others.keys():
        return f"other tensors: {', '.join(sorted(held.keys() ^ others.keys())[:3])}"
    wrong = [name for name in held if held[name].shape != others[name].shape or not held[name].equal(others[name])]
    if not wrong:
        return "equal tensors in other bytes"
    name = wrong[0]
    if held[name].shape != others[name].shape:
        return f"{name} has another shape"
    most = (held[name].double() - others[name].double()).abs().max().item()
    return f"{len(wrong)} of {len(held)} tensors differ, {name} by up to {most:.3g}"


def lines_differ(one: Any, other: Any) -> str:
    """Return the first line in which two logs differ, "" where they do not."""
    missing: Any = object()
    a: Any
    b: Any
    for number, (a, b) in enumerate(zip_longest(one, other, fillvalue=missing), 1):
        if a is missing or b is missing:
            return f"line {number} is only in the {'resumed' if a is missing else 'whole'} run"
        if a != b:
            names = [name for name in dict.fromkeys(chain(a, b)) if a.get(name, missing) != b.get(name, missing)]
            return f"line {number}: {names[0]} is {a.get(names[0])!r:.40}, resumed {b.get(names[0])!r:.40}"
    return ""
