"""Engines of vLLM in this process that the tests of a file share, and the policies that they sample for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rlvr.config import VLLMConfig
from rlvr.model.load.policy import Policy
from tests.helpers.vllm_policies import make_policy

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


@pytest.fixture(scope="module")
def held() -> Iterator:
    """The engine of `vllm_tied`, if it is open. Engines of one process share state: one ends before another starts."""
    samplers: list = []
    yield samplers
    for sampler in samplers:
        sampler.close()


@pytest.fixture
def vllm_tied(held):
    """An engine that such tests share, with the weights of `make_policy()` pushed and checked."""
    from rlvr.sampling.vllm.sampler import VLLMSampler

    if not held:
        held.append(VLLMSampler(make_policy(), VLLMConfig(sync_check_every=1)))
    held[0].load_weights(make_policy())
    return held[0]


@pytest.fixture
def open_vllm(held) -> Iterator:
    """Opens samplers; all but the last are closed when the next is opened, the last after the test."""
    from rlvr.sampling.vllm.sampler import VLLMSampler

    opened = held

    def close() -> None:
        while opened:
            opened.pop().close()

    def make(policy: Policy, **settings):
        close()
        opened.append(VLLMSampler(policy, VLLMConfig(**settings)))
        return opened[-1]

    yield make
    close()
