"""Servers without vLLM, and engines of vLLM in this process that the tests of a file share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rlvr.config import VLLMConfig, VLLMServerConfig
from rlvr.model.load.policy import Policy
from rlvr.sampling.vllm import transfer
from rlvr.sampling.vllm.sampler import VLLMSampler
from tests.helpers.models import small_policy
from tests.helpers.vllm_policies import make_policy
from tests.helpers.vllm_servers import VLLMLike, vllm_servers

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
    if not held:
        held.append(VLLMSampler(make_policy(), VLLMConfig(sync_check_every=1)))
    held[0].load_weights(make_policy())
    return held[0]


@pytest.fixture
def open_vllm(held) -> Iterator:
    """Opens samplers; all but the last are closed when the next is opened, the last after the test."""
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


@pytest.fixture
def policy() -> Policy:
    return small_policy()


@pytest.fixture
def servers(policy, monkeypatch) -> Iterator[list[VLLMLike]]:
    """Two servers of the policy's model without vLLM; what does not go on fails after seconds."""
    monkeypatch.setattr(transfer, "STALLED", 5.0)
    monkeypatch.setattr(transfer, "GRACE", 0.2)
    with vllm_servers(policy) as made:
        yield made


@pytest.fixture
def open_sampler() -> Iterator:
    """Opens samplers of a policy on servers, and closes them after the test."""
    opened: list[VLLMSampler] = []

    def make(policy: Policy, servers: list[VLLMLike], **settings) -> VLLMSampler:
        settings = {"timeout": 20.0, "sync_check_every": 1, **settings}
        opened.append(VLLMSampler(policy, VLLMServerConfig(url=tuple(server.url for server in servers), **settings)))
        return opened[-1]

    yield make
    for sampler in opened:
        sampler.close()
