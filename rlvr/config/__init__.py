"""Every setting of a run, declared once: default, bound, help and who reads it (settings.py says how).

A recipe builds a `Config`; each field can be set on the command line (`--algo.kl-coef 0.01`). Nothing reads a setting
from anywhere else. training.py has `Config`, algo.py the algorithms and losses, model.py the model, critic and
optimizer, run.py what is run, sampled and measured, sampler.py the engines; shared.py what several groups and commands
have; teacher.py that of a distillation; reward_model.py and pipeline.py the settings of `rlvr rm` and `rlvr pipeline`.
"""

from .algo import AlgoConfig
from .model import CriticConfig, ModelConfig, OptimConfig
from .run import CurriculumConfig, EvalConfig, MonitorConfig, RolloutConfig, RunConfig, SFTConfig
from .sampler import (
    SAMPLERS,
    EngineConfig,
    SamplerConfig,
    TorchSamplerConfig,
    VLLMConfig,
    VLLMServerConfig,
    fastest_sampler,
)
from .teacher import TeacherConfig
from .training import Config, to_json

__all__ = [
    "SAMPLERS",
    "AlgoConfig",
    "Config",
    "CriticConfig",
    "CurriculumConfig",
    "EngineConfig",
    "EvalConfig",
    "ModelConfig",
    "MonitorConfig",
    "OptimConfig",
    "RolloutConfig",
    "RunConfig",
    "SFTConfig",
    "SamplerConfig",
    "TeacherConfig",
    "TorchSamplerConfig",
    "VLLMConfig",
    "VLLMServerConfig",
    "fastest_sampler",
    "to_json",
]
