"""Configs with other settings in some groups."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlvr.config import SAMPLERS, Config, CriticConfig
from rlvr.config.settings import carry


def with_settings(config: Config, **groups: dict[str, Any]) -> Config:
    """The config with other settings in some groups. A `name` in `sampler` also changes the group's class."""
    for group, values in sorted(groups.items()):  # algo before critic
        held = getattr(config, group)
        if group == "algo":
            algo = dataclasses.replace(held.for_algorithm(values.get("name", held.name)), **values)
            critic = (config.critic or CriticConfig()) if algo.row.critic else None
            config = dataclasses.replace(config, algo=algo, critic=critic)
            continue
        if group == "sampler":
            held = carry(held, SAMPLERS[values.get("name", held.name)])
            values = {key: value for key, value in values.items() if key != "name"}
        config = dataclasses.replace(config, **{group: dataclasses.replace(held, **values)})
    return config
