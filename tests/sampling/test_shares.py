"""What a process draws does not depend on how the step's problems are shared among processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import warm
from tests.helpers.files import lines

FLAGS = (
    "--sft.steps 0 --rollout.problems-per-step 7 --rollout.group-size 4 --eval.every -1 --run.sample-every 0 "
    "--run.steps 1 --model.device cpu --run.task-option num_train=3 num_test=16 num_demonstrations=256 "
    "--run.verifier regex --run.verifier-option pattern=7.*7 match=search"
).split()


def rollouts(out_dir: Path, processes: int) -> list[dict]:
    """The rollouts of a run of one step by so many processes."""
    for done in warm.run_together(processes, ["train", "tiny_math", *FLAGS, "--run.out-dir", str(out_dir)]):
        assert done.returncode == 0, done.stderr[-3000:]
    return lines(out_dir / "rollouts.jsonl")


@pytest.mark.slow
def test_repeated_problems_are_counted_over_the_whole_step(tmp_path):
    """Seven draws of three problems: every completion has a seed of its own, and two processes draw the same ones."""
    one, two = rollouts(tmp_path / "one", 1), rollouts(tmp_path / "two", 2)
    assert len(one) == 28
    assert len({row["problem"] for row in one}) == 3
    assert len({row["completion"] for row in one}) > 24
    assert [row["completion"] for row in one] == [row["completion"] for row in two]
