"""Every setting of a run: one file and one class for each group. The text under a field is its `--help`.

A recipe builds a `Config`; each field can be set on the command line (`--algo.kl-coef 0.01`). Nothing reads a setting
from anywhere else. `algo` has the class of the algorithm, `sampler` that of the engine: each with only the settings
that it reads.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from rlvr.algo.algorithms import ALGORITHMS
from rlvr.config.algo import AlgoConfig, AlgoSettings, class_of, make_algo
from rlvr.config.model import CriticConfig, ModelConfig, OptimConfig
from rlvr.config.own_algos import (
    DPOConfig,
    GDPOConfig,
    KTOConfig,
    PPOConfig,
    RAFTConfig,
    ReinforcePlusPlusConfig,
)
from rlvr.config.rules import rules
from rlvr.config.run import CurriculumConfig, EvalConfig, MonitorConfig, RolloutConfig, RunConfig, SFTConfig
from rlvr.config.sampler import SAMPLERS, EngineConfig, SamplerConfig, TorchSamplerConfig, VLLMConfig, VLLMServerConfig
from rlvr.config.settings import check_groups, require
from rlvr.core.types import Sampling

__all__ = [
    "SAMPLERS",
    "AlgoConfig",
    "AlgoSettings",
    "Config",
    "CriticConfig",
    "CurriculumConfig",
    "DPOConfig",
    "EngineConfig",
    "EvalConfig",
    "GDPOConfig",
    "KTOConfig",
    "ModelConfig",
    "MonitorConfig",
    "OptimConfig",
    "PPOConfig",
    "RAFTConfig",
    "ReinforcePlusPlusConfig",
    "RolloutConfig",
    "RunConfig",
    "SFTConfig",
    "SamplerConfig",
    "TorchSamplerConfig",
    "VLLMConfig",
    "VLLMServerConfig",
    "class_of",
    "make_algo",
    "to_json",
]


@dataclass(frozen=True)
class Config:
    """A run. `critic` exists with algorithms that train one, and is made where it is not given; `monitor` may not."""

    run: RunConfig = field(default_factory=RunConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algo: AlgoSettings = field(default_factory=AlgoConfig)
    critic: CriticConfig | None = None
    optim: OptimConfig = field(default_factory=OptimConfig)
    sampler: SamplerConfig = field(default_factory=TorchSamplerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    monitor: MonitorConfig | None = None
    sft: SFTConfig = field(default_factory=SFTConfig)

    def __post_init__(self) -> None:
        name = getattr(self.algo, "name", None)  # check() refuses an `algo` without one
        if self.critic is None and name in list(ALGORITHMS) and ALGORITHMS[name].critic:
            object.__setattr__(self, "critic", CriticConfig())

    def sampling(self) -> Sampling:
        """Return how training completions are sampled."""
        r = self.rollout
        return Sampling(r.max_new_tokens, r.temperature, r.top_p, r.top_k, r.stop)

    def eval_sampling(self) -> Sampling:
        """Return how held-out completions are sampled."""
        r, e = self.rollout, self.eval
        return Sampling(e.max_new_tokens or r.max_new_tokens, e.temperature, e.top_p, 0, r.stop)

    def staleness(self, step: int) -> int:
        """Return the steps between the weights that batch `step` (from 0) is sampled from and those that it trains."""
        return min(step, self.sampler.max_staleness)

    def check(self) -> None:
        """Raise ValueError with one line for the first setting that cannot work."""
        check_groups(self)
        require(rules(self))


def to_json(config: Any) -> str:
    """Return a config as indented JSON."""
    return json.dumps(dataclasses.asdict(config), indent=2, default=str)
