"""Metrics: the table of `rlvr.runs.metrics`."""

from __future__ import annotations

from rlvr.runs.metrics import METRICS

from .markdown import page, plain, table

INTRODUCTION = """
metrics.jsonl has a line for each step. A metric is there where the run has what it measures. Trackers get the same
names; `rlvr report` draws most of them. What a healthy run shows is a rule of thumb for language models, not a
bound.
"""


def pages() -> dict[str, str]:
    """Return the page of the metrics."""
    parts = [INTRODUCTION]
    for title, rows in METRICS.items():
        cells = ([f"`{row.name}`", row.unit, plain(row.meaning), plain(row.healthy)] for row in rows)
        parts += [f"## {title}", table(["name", "unit", "means", "a healthy run"], cells)]
    return {"metrics.md": page("Metrics", *parts)}
