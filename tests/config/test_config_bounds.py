"""The bounds of numeric settings, and settings that nothing reads."""

from __future__ import annotations

import dataclasses
import importlib
import math
import typing
from pathlib import Path

import pytest

from rlvr.commands.arguments import Flags, check_effect, values_of
from rlvr.commands.audit import AuditArgs
from rlvr.commands.eval import EvalArgs
from rlvr.commands.profile import ProfileArgs
from rlvr.commands.train import recipe_names
from rlvr.config import SAMPLERS, AlgoConfig, Config, MonitorConfig, RunConfig, VLLMServerConfig
from rlvr.config.reward_model import PairsConfig, RewardConfig
from rlvr.config.settings import check_values

OUT = RunConfig(out_dir=Path("runs/never"))
CONFIGS = {
    "train": Config(run=OUT),
    "ppo": Config(run=OUT, algo=AlgoConfig("ppo"), monitor=MonitorConfig("math")),
    **{name: Config(run=OUT, algo=AlgoConfig(name)) for name in ("gdpo", "raft", "dpo")},
    **{name: Config(run=OUT, sampler=kind()) for name, kind in SAMPLERS.items()},
    "rm": RewardConfig(pairs=PairsConfig(policy="tiny")),
    "rm from a file": RewardConfig(pairs=PairsConfig(file=Path("pairs.jsonl"), policy="tiny")),
    "eval on a server": EvalArgs(model="tiny", task="arithmetic", sampler=VLLMServerConfig(url="http://x:1")),
    "eval": EvalArgs(model="tiny", task="arithmetic"),
    "profile": ProfileArgs(model="tiny", task="arithmetic"),
    "audit": AuditArgs(task="arithmetic"),
}


def changed(config, name: str, value: object):
    """The config with one setting changed."""
    group, _, leaf = name.rpartition(".")
    if not group:
        return dataclasses.replace(config, **{leaf: value})
    return dataclasses.replace(config, **{group: dataclasses.replace(getattr(config, group), **{leaf: value})})


def numeric(config) -> dict[str, object]:
    """The numeric settings of a config, as Python names them, with their types."""
    entries = Flags(type(config), values_of(type(config), config)).known.values()
    hints = {f"{e.group}.{e.setting.name}".lstrip("."): e.setting.hint for e in entries}
    return {
        name: hint
        for name, hint in hints.items()
        if ("int" in str(hint) or "float" in str(hint)) and typing.get_origin(hint) is not typing.Literal
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_every_number_has_bounds(name):
    """NaN, both infinities, what is far too small and what is far too large are refused for each numeric setting."""
    config = CONFIGS[name]
    config.check()
    assert numeric(config)
    for setting, hint in numeric(config).items():
        for value in (math.nan, math.inf, -math.inf, -(10**30), 10**30):
            given = ((value, value) if "tuple[float" in str(hint) else (value,)) if "tuple" in str(hint) else value
            with pytest.raises(ValueError, match=setting.rpartition(".")[2].replace("_", "[_-]")):
                changed(config, setting, given).check()


@pytest.mark.parametrize("name", CONFIGS)
def test_settings_without_effect_are_refused_where_they_are_changed(name):
    """Each setting that nothing reads, changed to another value of its type, is told with what would read it."""
    config = CONFIGS[name]
    settings = Flags(type(config), values_of(type(config), config))
    others = {bool: True, int: 7, float: 0.07, str: "x"}
    for entry in settings.known.values():
        if entry.name not in settings.unread():
            continue
        hint = next(h for h in (*typing.get_args(entry.setting.hint), entry.setting.hint) if h is not type(None))
        value = (
            next(w for w in typing.get_args(entry.setting.hint) if w != entry_value(config, entry))
            if (typing.get_origin(entry.setting.hint) is typing.Literal)
            else others.get(hint, Path("x"))
        )
        if value == entry_value(config, entry):
            value = False
        name = f"{entry.group}.{entry.setting.name}".lstrip(".")
        with pytest.raises(ValueError, match=f"^{name} .* would have no effect: it is read only with"):
            check_effect(changed(config, name, value), values_of(type(config), config))


def entry_value(config, entry):
    return getattr(getattr(config, entry.group) if entry.group else config, entry.setting.name)


def test_words_that_a_setting_does_not_know_are_refused():
    """In Python too, where no parser looks at them."""
    with pytest.raises(ValueError, match=r"algo\.normalize 'mean': expected one of auto, token"):
        Config(run=OUT, algo=AlgoConfig("rloo", normalize="mean")).check()


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_keep_their_bounds(name):
    """What a recipe holds passes its own checks, unchanged, from the command line."""
    module = importlib.import_module(f"rlvr.recipes.{name}")
    check_values(module.CONFIG)
    check_effect(module.CONFIG, values_of(type(module.CONFIG), module.CONFIG))
    if isinstance(module.CONFIG, Config):
        module.CONFIG.check()


def test_weights_may_differ_where_the_precision_is_not_known():
    """auto may choose bfloat16, in which the torch sampler differs from the trainer: the cap is read there."""
    for dtype, unread in (("auto", False), ("bfloat16", False), ("float32", True)):
        config = changed(CONFIGS["train"], "model.dtype", dtype)
        settings = Flags(Config, values_of(Config, config))
        assert ("algo.importance-cap" in settings.unread()) == unread
