"""The demo from a policy that is fine-tuned too little: RL must not unlearn what it can."""

from __future__ import annotations

import dataclasses

from rlvr.config import EvalConfig
from rlvr.launch import launch
from rlvr.recipes.tiny_math import CONFIG


def test_rl_from_a_low_pass_rate_does_not_unlearn(tmp_path):
    """Twenty steps of few rollouts, from a pass@1 near .1: it does not fall below the start's 95 % interval."""
    config = dataclasses.replace(
        CONFIG,
        run=dataclasses.replace(CONFIG.run, steps=20, out_dir=tmp_path / "run", sample_every=0, save_every=0),
        model=dataclasses.replace(CONFIG.model, device="cpu"),
        sft=dataclasses.replace(CONFIG.sft, steps=300),
        rollout=dataclasses.replace(CONFIG.rollout, problems_per_step=8, group_size=8),
        eval=EvalConfig(num_problems=64, samples=8, k=(1,), every=0),
    )
    first, last = launch(config)
    assert 0.05 < first["pass@1"] < 0.25
    assert last["pass@1"] >= first["pass@1_ci"][0]
