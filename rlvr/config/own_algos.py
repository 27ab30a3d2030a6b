"""Settings of the algorithms that have some of their own: `--algo NAME` chooses the class."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from rlvr.config.algo import (
    OWN_SETTINGS,
    AlgoSettings,
    ImportanceSettings,
    NormalizeSetting,
    PolicyGradientSettings,
    RewardSettings,
)
from rlvr.config.settings import POSITIVE, POSITIVE_SHARE, SHARE, WEIGHT, Rules


@dataclass(frozen=True)
class GDPOConfig(PolicyGradientSettings):
    """GDPO: each named part of the reward is normalised by itself, and the advantages are added."""

    name: str = field(default="gdpo", init=False)
    reward_weights: tuple[str, ...] = ()
    """Weights of the reward's parts, as part=weight; 1 for those that are not named."""

    def rules(self, at: str) -> Rules:
        """Return rules about the weights."""
        found = [
            (is_weight(item), f"{at}reward_weights {item!r}: expected part=weight") for item in self.reward_weights
        ]
        return [*super().rules(at), *found]


@dataclass(frozen=True)
class PPOConfig(RewardSettings):
    """PPO: advantages per token from a critic (generalized advantage estimation)."""

    name: str = field(default="ppo", init=False)
    gamma: Annotated[float, POSITIVE_SHARE] = 1.0
    """Discount per token."""
    gae_lambda: Annotated[float, SHARE] = 0.95
    """GAE lambda: 1 is return minus value, 0 the one-step TD error."""

    def rules(self, at: str) -> Rules:
        """Return rules about scaling, which must fit advantages per token."""
        return [
            *super().rules(at),
            (
                self.advantage_scale != "batch_std",
                f"{at}advantage_scale batch_std with {self.name}, whose advantages belong to tokens; set none or "
                "whiten",
            ),
            (
                self.kl_coef == 0 or self.kl_in == "loss" or self.scale == "none",
                f"{at}advantage_scale {self.scale} with {self.name} and {at}kl_in reward: it would scale the KL term "
                f"with the rewards of the task; set auto or none, or --{at}kl-in loss",
            ),
        ]


@dataclass(frozen=True)
class ReinforcePlusPlusConfig(PolicyGradientSettings):
    """REINFORCE++: returns of tokens, with the KL term of each in its reward, whitened over the batch; no critic."""

    name: str = field(default="reinforce_plus_plus", init=False)
    gamma: Annotated[float, POSITIVE_SHARE] = 1.0
    """Discount per token."""

    kl_in = "reward"

    @property
    def scale(self) -> str:
        """Return the scaling of the advantages, in which the KL term has its part, as published."""
        return self.row.scale


@dataclass(frozen=True)
class RAFTConfig(ImportanceSettings, NormalizeSetting):
    """RAFT (rejection sampling): fine-tunes on the best completion of each group."""

    name: str = field(default="raft", init=False)
    kl_coef: Annotated[float, WEIGHT] = 0.0
    """Weight of the KL divergence to the reference policy, subtracted from the reward. 0: no reference model."""

    kl_in = "reward"  # a loss over chosen rollouts could not estimate the divergence


@dataclass(frozen=True)
class DPOConfig(AlgoSettings):
    """Online DPO: the best completion of each group against the worst."""

    name: str = field(default="dpo", init=False)
    beta: Annotated[float, POSITIVE] = 0.1
    """DPO's beta: how strongly the policy is held to the reference policy."""


@dataclass(frozen=True)
class KTOConfig(AlgoSettings):
    """KTO: good and bad completions by their rewards, without pairs (good: a reward of 1/2 or more)."""

    name: str = field(default="kto", init=False)
    beta: Annotated[float, POSITIVE] = 0.1
    """KTO's beta: how strongly the policy is held to the reference policy."""
    desirable_weight: Annotated[float, WEIGHT] = 1.0
    """Weight of the loss of good completions."""
    undesirable_weight: Annotated[float, WEIGHT] = 1.0
    """Weight of the loss of bad completions. The paper sets the weights so that good and bad ones count about the
    same: desirable_weight x (number of good ones) is 1 to 4/3 of undesirable_weight x (number of bad ones)."""


OWN_SETTINGS |= {
    kind.name: kind for kind in (GDPOConfig, PPOConfig, ReinforcePlusPlusConfig, RAFTConfig, DPOConfig, KTOConfig)
}


def is_weight(item: str) -> bool:
    """Return whether a text is part=weight with a finite weight."""
    name, _, weight = item.partition("=")
    try:
        return bool(name) and math.isfinite(float(weight))
    except ValueError:
        return False
