"""The table of metrics: every name that a run logs is in it, once."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

import pytest

from rlvr.commands.report.content import PANELS
from rlvr.config import MonitorConfig
from rlvr.core.registry import make_task
from rlvr.core.types import Verdict
from rlvr.launch import launch
from rlvr.runs.metrics import METRICS, Metric
from tests.helpers.files import ROOT, lines
from tests.helpers.runs import tiny
from tests.helpers.verifiers import PROBLEMS, sums

# Settings under which a run logs metrics of its own.
RUNS = {
    "with a reference and a monitor": {
        "algo": {"name": "grpo", "kl_coef": 0.1, "kl_target": 0.1, "minibatches": 2, "entropy_target": 0.1},
        "monitor": {},
        "rollout": {"resample_rounds": 1, "truncated": "penalize", "overlong_buffer": 2},
    },
    "with a critic": {"algo": {"name": "ppo"}},
    "with pairs": {"algo": {"name": "dpo"}},
    "with labels": {"algo": {"name": "kto"}},
    "with a self-teacher": {"algo": {"name": "sdpo"}},
    "with a teacher and demonstrations": {
        "algo": {"name": "opd"},
        "teacher": {"kind": "start", "loss": "js", "top_k": 3, "off_policy": 0.5},
    },
    "with a curriculum": {"curriculum": {"draw": "signal"}},
    "in slices": {"sampler": {"slice_tokens": 4, "max_staleness": 2}},
}


def find_metric(name: str) -> Metric | None:
    """Return the metric of a logged name; None for one that the table lacks."""

    def matches(row: Metric) -> bool:
        return name.startswith(row.name[:-1]) if row.name.endswith("*") else name == row.name

    return next((row for rows in METRICS.values() for row in rows if matches(row)), None)


def has_even_length(problem, completion: str) -> Verdict:
    """Split completions by their length, so that groups have a signal."""
    return Verdict.of(len(completion) % 2 == 0)


@pytest.mark.parametrize("groups", [pytest.param(groups, id=name) for name, groups in RUNS.items()])
def test_what_a_run_logs_is_in_the_table(groups: dict[str, dict], tmp_path: Path) -> None:
    """Two steps of a tiny model."""
    given = {name: dict(values) for name, values in groups.items() if name != "monitor"}
    config = tiny(tmp_path, run={"steps": 2, "sample_every": 0}, eval={"every": -1}, **given)
    if "monitor" in groups:
        object.__setattr__(config, "monitor", MonitorConfig("regex", verifier_option=("pattern=7",)))
    launch(config, task=dataclasses.replace(sums(has_even_length), demonstrations=[(PROBLEMS[-1], "7")]))
    logged = {name for row in lines(tmp_path / "metrics.jsonl") for name in row}
    assert {name for name in logged if find_metric(name) is None} == set()
    assert "no_signal" in logged


def test_what_turns_and_mixtures_log_is_in_the_table(tmp_path: Path) -> None:
    """Tools in an environment, and two packs in one run."""
    task = make_task("mixture", packs=("hops", "arithmetic"))
    config = tiny(tmp_path, run={"steps": 1, "sample_every": 0}, eval={"every": -1}, rollout={"max_new_tokens": 24})
    launch(config, task=task)
    logged = {name for row in lines(tmp_path / "metrics.jsonl") for name in row}
    assert {name for name in logged if find_metric(name) is None} == set()
    assert {"turns/count", "tools/calls", "pack/hops/groups"} <= logged


def test_names_of_the_code_are_in_the_table() -> None:
    """Those with a group ("critic/value") that the code writes, and those that a report draws."""
    files = [path for folder in ("training", "sampling", "algo") for path in (ROOT / "rlvr" / folder).rglob("*.py")]
    prefixes = {name.partition("/")[0] for rows in METRICS.values() for row in rows if "/" in (name := row.name)}
    text = "\n".join(path.read_text("utf-8") for path in files)
    found = {name for name in re.findall(r'"([a-z]+/[a-z_]+)"', text) if name.partition("/")[0] in prefixes}
    sums_alone = {"dpo/pairs", "kto/rows"}  # what averages divide by
    assert {name for name in found if find_metric(name) is None} == sums_alone
    drawn = {name for panels in PANELS.values() for _, numbers in panels for name in numbers}
    assert {name for name in drawn if find_metric(name) is None} == set()


def test_each_name_has_one_row() -> None:
    """With a meaning that is not its name."""
    rows = [row for rows in METRICS.values() for row in rows]
    assert [name for name, count in Counter(row.name for row in rows).items() if count > 1] == []
    assert [row.name for row in rows if not row.meaning or row.meaning == row.name] == []
