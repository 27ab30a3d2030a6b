"""Samplers by their settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlvr.config import SamplerConfig, TorchSamplerConfig
from rlvr.model.policy import Policy
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.types import Sampler


def make_sampler(config: SamplerConfig, policy: Policy) -> Sampler:
    """Return the sampler of these settings. Raises ValueError for one whose extra is not installed."""
    if isinstance(config, TorchSamplerConfig):
        return TorchSampler(policy, batch_size=config.batch_size)
    from rlvr.vllm.sampler import VLLMSampler

    return VLLMSampler(policy, config)


@contextmanager
def open_sampler(config: SamplerConfig, policy: Policy) -> Iterator[Sampler]:
    """Yield the sampler of these settings; its engine is ended afterwards."""
    sampler = make_sampler(config, policy)
    try:
        yield sampler
    finally:
        close = getattr(sampler, "close", None)
        if close is not None:
            close()
