"""Runs that unlearn what is measured: held-out problems are judged by another rule than the reward's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from rlvr.config import Config, EvalConfig, MonitorConfig
from tests.helpers.resuming import small


def unlearning(
    out_dir: Path,
    action: Literal["warn", "stop", "rollback"] = "rollback",
    *,
    steps: int = 4,
    lr: float = 0.001,
    **evaluation: Any,
) -> Config:
    """A run of seconds that is rewarded for two sevens, and measured by completions of 20 characters or less.

    At this learning rate completions get longer within two steps, at a quarter within four; at a sixteenth they stay.
    """
    config = small(out_dir, steps=steps)
    settings = {"every": 2, "num_problems": 16, "samples": 4, "k": (1,), "verifier": "monitor", **evaluation}
    return dataclasses.replace(
        config,
        optim=dataclasses.replace(config.optim, lr=lr, schedule="constant", max_update_kl=0.0),
        eval=EvalConfig(on_regression=action, **settings),
        monitor=MonitorConfig("regex", verifier_option=("pattern=(?s).{0,20}", "match=full")),
    )
