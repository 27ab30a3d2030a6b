"""RL against a process reward model: its steps are credited one by one, or as one outcome, and both learn."""

from __future__ import annotations

from random import Random

import pytest

from rlvr.core.types import Problem
from rlvr.launch import launch
from rlvr.reward_model.process import ProcessRewardModel
from rlvr.tasks.base import build_task
from tests.helpers.files import lines
from tests.helpers.process_models import fitted, save_head
from tests.helpers.runs import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A process reward model for which a step is right that holds a 7."""
    rng = Random(0)
    texts = ["=".join("".join(rng.choices("0123456789", k=rng.randint(1, 4))) for _ in range(3)) for _ in range(96)]
    return save_head(
        tmp_path_factory.mktemp("prm"), change=fitted(lambda step: "7" in step, texts, separator="=", steps=250)
    )


@pytest.mark.parametrize("credit", ["step", "outcome"])
def test_a_policy_learns_from_the_scores_of_steps(tmp_path, model, credit):
    """The mean score rises by .3 at least; steps are credited only where that was asked for."""
    verifier = ProcessRewardModel(model=model, device="cpu", separator="=", reduce="min")
    problems = [Problem(f"p{i}", f"{i}+{i}=", "") for i in range(24)]
    task = build_task("sevens", train=problems[:16], test=problems[16:], verifier="exact", check_references=False)
    config = tiny(
        tmp_path,
        run={"steps": 12, "sample_every": 0},
        rollout={"problems_per_step": 4, "group_size": 8, "max_new_tokens": 8},
        algo={"name": "rloo", "credit": credit},
        optim={"lr": 5e-4},
        eval={"every": -1},
    )
    launch(config, task=task, verifier=verifier)
    rows = lines(tmp_path / "metrics.jsonl")
    first, last = rows[0]["reward"], rows[-1]["reward"]
    assert first < 0.6
    assert last > first + 0.3
    assert all(("credit/steps" in row) == (credit == "step") for row in rows)
    if credit == "step":
        assert max(row["credit/steps"] for row in rows) > 1
