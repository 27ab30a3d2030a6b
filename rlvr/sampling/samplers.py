"""Samplers by name: a row in SAMPLERS makes a sampler known to `rlvr train --sampler NAME` and `rlvr eval`.

The settings of a sampler are a class in rlvr/config/sampler.py, where its name has a row too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlvr.config import EngineConfig, SamplerConfig, TorchSamplerConfig
from rlvr.model.policy import Policy
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.types import Sampler


def torch_sampler(policy: Policy, config: TorchSamplerConfig) -> Sampler:
    """Return the trainer's own model as a sampler."""
    return TorchSampler(policy, batch_size=config.batch_size)


def vllm_sampler(policy: Policy, config: EngineConfig) -> Sampler:
    """Return vLLM, in this process or on a server. Raises ValueError that names the extra where it is not installed."""
    from rlvr.vllm.sampler import VLLMSampler

    return VLLMSampler(policy, config)


SAMPLERS: dict[str, Callable[[Policy, Any], Sampler]] = {
    "torch": torch_sampler,
    "vllm": vllm_sampler,
    "vllm-server": vllm_sampler,
}


def check_sampler(config: SamplerConfig) -> None:
    """Raise ValueError where the sampler needs an extra that is not installed, before anything is loaded or written."""
    if not isinstance(config, TorchSamplerConfig):
        from rlvr.vllm.engine import check_installed

        check_installed(config)


def make_sampler(config: SamplerConfig, policy: Policy) -> Sampler:
    """Return the sampler of these settings. Raises ValueError for one whose extra is not installed."""
    return SAMPLERS[config.name](policy, config)


@contextmanager
def open_sampler(config: SamplerConfig, policy: Policy) -> Iterator[Sampler]:
    """Yield the sampler of these settings, and close it afterwards."""
    sampler = make_sampler(config, policy)
    try:
        yield sampler
    finally:
        sampler.close()
