"""Samplers by name: a row in SAMPLER_KINDS is what `rlvr train --sampler NAME` and `rlvr eval` use.

The settings of a sampler are a class in rlvr/config/sampler.py, where its name has a row too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlvr.config import EngineConfig, SamplerConfig, TorchSamplerConfig
from rlvr.core.types import Sampler

if TYPE_CHECKING:
    from rlvr.model.load.policy import Policy


def torch_sampler(policy: Policy, config: TorchSamplerConfig) -> Sampler:
    """Return the trainer's own model as a sampler."""
    from .torch_sampler import TorchSampler

    return TorchSampler(policy, batch_size=config.batch_size, cache_gib=config.cache_gib)


def vllm_sampler(policy: Policy, config: EngineConfig) -> Sampler:
    """Return vLLM, in this process or on a server. Raises ValueError that names the extra where it is not installed."""
    from .vllm.sampler import VLLMSampler

    return VLLMSampler(policy, config)


def check_vllm(config: EngineConfig) -> None:
    """Raise ValueError that names the extra where vLLM is not installed."""
    from .vllm.engine import check_installed

    check_installed(config)


@dataclass(frozen=True)
class SamplerKind:
    """How a sampler is made, of (policy, config): its first weights are the policy's present ones.

    `check` takes the config, and raises ValueError where an extra is not installed; None: the sampler needs none.
    """

    make: Callable[[Policy, Any], Sampler]
    check: Callable[[Any], None] | None = None


SAMPLER_KINDS: dict[str, SamplerKind] = {
    "torch": SamplerKind(torch_sampler),
    "vllm": SamplerKind(vllm_sampler, check_vllm),
    "vllm-server": SamplerKind(vllm_sampler, check_vllm),
}


def check_sampler(config: SamplerConfig) -> None:
    """Raise ValueError where the sampler needs an extra that is not installed, before anything is loaded or written."""
    if (check := SAMPLER_KINDS[config.name].check) is not None:
        check(config)


def make_sampler(config: SamplerConfig, policy: Policy) -> Sampler:
    """Return the sampler of these settings. Raises ValueError for one whose extra is not installed."""
    return SAMPLER_KINDS[config.name].make(policy, config)


@contextmanager
def open_sampler(
    config: SamplerConfig, policy: Policy, report: Callable[[str, str], None] | None = None
) -> Iterator[Sampler]:
    """Yield the sampler of these settings, and close it afterwards.

    A sampler with a method `report_to` calls `report(text, kind)`, in place of Python's warnings, for what happens to
    its servers.
    """
    sampler = make_sampler(config, policy)
    try:
        if report is not None and hasattr(sampler, "report_to"):
            sampler.report_to(report)
        yield sampler
    finally:
        sampler.close()
