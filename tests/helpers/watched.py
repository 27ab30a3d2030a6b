"""The files of a run that is watched, and what `rlvr watch` prints of it."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from rlvr.commands.watch.state import Choice, WatchedRun
from rlvr.commands.watch.view import snapshot


def line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def make_row(step: int, sample: int, status: str = "correct", **more: Any) -> dict[str, Any]:
    row = {"step": step, "problem": f"p{sample // 2}", "sample": sample, "prompt": "1 + 1 =", "completion": "2"}
    return row | {"status": status, "reward": 1.0, "advantage": 0.5, "reason": "", "finish_reason": "stop"} | more


def metrics(step: int) -> dict[str, Any]:
    row = {"step": step, "reward": step / 10, "kl": 0.01, "entropy": 0.5, "completion_tokens": 12.0, "no_signal": 0.1}
    return (
        row
        | {"truncated": 0.0, "unscored": 0.25, "grad_norm": 1.0, "tokens_per_second": 100.0}
        | {"seconds/sample": 1.0, "seconds/train": 1.0}
    )


def watched_run(tmp_path: Path) -> Path:
    """A run of 4 of 10 steps; two rollouts a step, the first two steps compressed."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"run": {"steps": 10, "stall_timeout": 900.0}, "rollout": {}}))
    (run / "metrics.jsonl").write_text("".join(line(metrics(step)) for step in range(1, 5)))
    evaluations = [
        {"step": 0, "pass@1": 0.25, "pass@1_ci": [0.2, 0.3]},
        {"step": 4, "pass@1": 0.5, "pass@1_ci": [0.4, 0.6]},
    ]
    (run / "eval.jsonl").write_text("".join(map(line, evaluations)))
    rows = [make_row(step, i, "correct" if i else "incorrect") for step in range(1, 5) for i in range(2)]
    with gzip.open(run / "rollouts-0000.jsonl.gz", "wt") as part:
        part.write("".join(map(line, rows[:4])))
    (run / "rollouts.jsonl").write_text("".join(map(line, rows[4:])))
    return run


def quiet(width: int) -> Console:
    return Console(width=width, file=io.StringIO(), highlight=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def print_run(run: WatchedRun, choice: Choice | None = None, width: int = 100) -> str:
    console = quiet(width)
    console.print(snapshot(run, choice or Choice(), count=9, characters=2000, blocks=True))
    return text_of(console)
