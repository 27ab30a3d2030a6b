"""Samplers by name: a row in SAMPLERS makes a sampler known to `rlvr train` and `rlvr eval`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlvr.config import VLLMConfig
from rlvr.model.policy import Policy
from rlvr.registry import did_you_mean
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.types import Sampler


def torch_sampler(policy: Policy, batch_size: int, vllm: VLLMConfig | None) -> Sampler:
    """Return the trainer's own model as a sampler."""
    return TorchSampler(policy, batch_size=batch_size)


def vllm_sampler(policy: Policy, batch_size: int, vllm: VLLMConfig | None) -> Sampler:
    """Return vLLM in this process. Raises ValueError that names the extra where vLLM is not installed."""
    from rlvr.vllm.sampler import VLLMSampler

    return VLLMSampler(policy, vllm)


def vllm_server_sampler(policy: Policy, batch_size: int, vllm: VLLMConfig | None) -> Sampler:
    """Return vLLM on a server. Raises ValueError that names the extra where vLLM is not installed."""
    from rlvr.vllm.sampler import VLLMSampler
    from rlvr.vllm.server import ServerEngine

    return VLLMSampler(policy, vllm, ServerEngine)


SAMPLERS: dict[str, Callable[[Policy, int, VLLMConfig | None], Sampler]] = {
    "torch": torch_sampler,
    "vllm": vllm_sampler,
    "vllm-server": vllm_server_sampler,
}


def make_sampler(name: str, policy: Policy, *, batch_size: int = 512, vllm: VLLMConfig | None = None) -> Sampler:
    """Return the sampler of this name. Raises ValueError for an unknown one, or one whose extra is not installed.

    batch_size: sequences decoded at once (torch); vllm: the engine's settings (vllm, vllm-server).
    """
    if name not in SAMPLERS:
        raise ValueError(f"unknown sampler {name!r}; {did_you_mean(name, SAMPLERS)}")
    return SAMPLERS[name](policy, batch_size, vllm)


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
