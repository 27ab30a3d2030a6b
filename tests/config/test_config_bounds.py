"""The bounds of numeric settings, and settings that would have no effect."""

from __future__ import annotations

import dataclasses
import importlib
import math
from pathlib import Path

import pytest

from rlvr.commands.eval import EvalArgs
from rlvr.commands.flags import flags_of
from rlvr.commands.train import recipe_names
from rlvr.config import Config, RunConfig
from rlvr.config.bounds import BOUNDS, EVAL_BOUNDS, REWARD_BOUNDS, USES, check_effect, check_numbers, setting
from rlvr.config.reward_model import PairsConfig, RewardConfig

NO_CONFIG = Config(run=RunConfig(out_dir=Path("runs/never")))
NO_REWARD = RewardConfig(pairs=PairsConfig(policy="tiny"))
NO_EVAL = EvalArgs(model="tiny", task="arithmetic")


def changed(config, name: str, value: object):
    """The config with one setting changed."""
    group, _, leaf = name.rpartition(".")
    if not group:
        return dataclasses.replace(config, **{leaf: value})
    return dataclasses.replace(config, **{group: dataclasses.replace(getattr(config, group), **{leaf: value})})


def numeric(kind: type) -> dict[str, object]:
    """The numeric settings of a dataclass, as Python names them, with their types."""
    hints = {name.replace("-", "_"): hint for name, hint in flags_of(kind).items()}
    return {name: hint for name, hint in hints.items() if "int" in str(hint) or "float" in str(hint)}


@pytest.mark.parametrize(
    ("config", "bounds"),
    [(NO_CONFIG, BOUNDS), (NO_REWARD, REWARD_BOUNDS), (NO_EVAL, EVAL_BOUNDS)],
    ids=["train", "rm", "eval"],
)
def test_every_number_has_bounds(config, bounds):
    """NaN, both infinities, what is far too small and what is far too large are refused for each numeric setting."""
    config.check()
    names = {name for name, hint in numeric(type(config)).items() if "Literal" not in str(hint)}
    assert names == set(bounds)
    for name, hint in numeric(type(config)).items():
        for value in (math.nan, math.inf, -math.inf, -(10**30), 10**30) if name in bounds else ():
            whole = "tuple" in str(hint) or "list" in str(hint)
            given = ((value, value) if "tuple[float" in str(hint) else [value]) if whole else value
            with pytest.raises(ValueError, match=name.rpartition(".")[2].replace("_", "[_-]")):
                changed(config, name, given).check()


def test_settings_without_effect_name_settings_that_exist():
    """Each name of the table is a setting."""
    for names, is_read, _ in USES:
        assert isinstance(is_read(NO_CONFIG), bool)
        for name in names:
            setting(NO_CONFIG, name)


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_keep_their_bounds(name):
    """What a recipe holds passes its own checks, unchanged, from the command line."""
    module = importlib.import_module(f"rlvr.recipes.{name}")
    check_numbers(module.CONFIG)
    if isinstance(module.CONFIG, Config):
        check_effect(module.CONFIG, module.CONFIG)
        module.CONFIG.check()
