"""`rlvr rm RECIPE`: reward models trained on preference pairs, from a file or from a policy and a verifier."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.commands.train import load_recipe, run_recipe, split_recipe
from rlvr.config.reward_model import RewardConfig


def main(argv: Sequence[str]) -> int:
    """Run `rlvr rm RECIPE [flags]`."""
    name, flags = split_recipe(argv, "rm")
    return run_recipe(load_recipe(name, RewardConfig), flags, f"rlvr rm {name}")
