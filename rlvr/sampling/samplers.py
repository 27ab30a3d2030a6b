"""Samplers by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlvr.config import VLLMConfig
from rlvr.model.policy import Policy
from rlvr.registry import did_you_mean
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.types import Sampler

NAMES = ("torch", "vllm", "vllm-server")


def make_sampler(name: str, policy: Policy, *, batch_size: int = 512, vllm: VLLMConfig | None = None) -> Sampler:
    """Return the sampler of this name. Raises ValueError for an unknown one, or one whose extra is not installed."""
    if name == "torch":
        return TorchSampler(policy, batch_size=batch_size)
    if name in ("vllm", "vllm-server"):
        from rlvr.vllm.sampler import VLLMSampler

        return VLLMSampler(policy, vllm, server=name == "vllm-server")
    raise ValueError(f"unknown sampler {name!r}; {did_you_mean(name, NAMES)}")


@contextmanager
def open_sampler(
    name: str, policy: Policy, *, batch_size: int = 512, vllm: VLLMConfig | None = None
) -> Iterator[Sampler]:
    """Yield the sampler of this name, and close it afterwards."""
    sampler = make_sampler(name, policy, batch_size=batch_size, vllm=vllm)
    try:
        yield sampler
    finally:
        sampler.close()
