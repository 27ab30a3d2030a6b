"""The metrics of a step: each name of metrics.jsonl with its unit, its meaning, and what a healthy run shows.

A name that ends with `*` stands for all that begin with what is before it. A metric that a run logs is here:
tests/runs/test_metrics.py trains and looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlvr.core.files.tables import read_sections


@dataclass(frozen=True)
class Metric:
    """A row of METRICS. healthy: what it does in a run that learns, "" where no value is better than another."""

    name: str
    unit: str
    meaning: str
    healthy: str = ""


METRICS: dict[str, tuple[Metric, ...]] = {
    subject: tuple(Metric(*line.split(" | ")) for line in lines)
    for subject, lines in read_sections(Path(__file__).with_name("metrics.txt")).items()
}
"""All metrics by subject, in the order of the reference."""
