"""Pushes of weights into vLLM in this process, and what a push forgot: caches, heads, matrices, adapters.

Needs an environment of its own; `.ci/vllm` makes it and runs these tests.
"""

from __future__ import annotations

import dataclasses

import pytest

from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.sampling.vllm.proof import WeightsDiffer
from rlvr.sampling.vllm.weights import engine_weights
from rlvr.sampling.vllm.worker import reload
from tests.helpers.vllm_policies import greedy_tokens, make_policy, shake, with_lora

# vLLM warns of its own dependencies while it is imported and started
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(240)]
pytest.importorskip("vllm", exc_type=ImportError)


def test_cache_that_is_not_reset_is_caught(vllm_tied, monkeypatch):
    """A push that leaves keys and values of the old weights in use fails the sync check."""
    policy, sampler = vllm_tied.policy, vllm_tied
    monkeypatch.setattr(sampler.engine, "reset_cache", lambda: None)
    shake(policy)
    with pytest.raises(WeightsDiffer, match="cached under older weights"):
        sampler.load_weights(policy)


def test_tied_head_that_is_not_pushed_is_caught(vllm_tied, monkeypatch):
    """With the head left out of a push the engine's logits come from the old one."""
    policy, sampler = vllm_tied.policy, vllm_tied
    push = sampler.engine.push
    monkeypatch.setattr(
        sampler.engine, "push", lambda weights: push((k, v) for k, v in weights if k != "lm_head.weight")
    )
    shake(policy)
    with pytest.raises(WeightsDiffer, match="did not load a push"):
        sampler.load_weights(policy)


def test_sleeping_engine_wakes_up_around_a_push(vllm_tied, monkeypatch):
    """Asleep, then weights' memory, the weights, the cache's memory, a fresh cache, in this order; and it samples from
    what was pushed. On a CPU vLLM goes through the motions and frees nothing."""
    policy, sampler = vllm_tied.policy, vllm_tied
    llm, calls = sampler.engine.llm, []
    for name in ("sleep", "wake_up", "collective_rpc", "reset_prefix_cache"):
        monkeypatch.setattr(llm, name, record_call(calls, name, getattr(llm, name)))
    monkeypatch.setattr(sampler, "config", dataclasses.replace(sampler.config, sleep=2))
    before = greedy_tokens(sampler, policy)
    shake(policy)
    sampler.sleep()
    assert llm.llm_engine.is_sleeping()
    sampler.load_weights(policy)
    assert not llm.llm_engine.is_sleeping()
    assert calls == [
        ("sleep", 2),
        ("wake_up", ["weights"]),
        ("collective_rpc", reload),
        ("wake_up", ["kv_cache"]),
        ("reset_prefix_cache",),
    ]
    after = greedy_tokens(sampler, policy)
    assert after == greedy_tokens(TorchSampler(policy), policy) != before


def record_call(calls: list, name: str, call):
    """`call`, noted with its name, what it got by position, and level or tags."""

    def note(*args, **settings):
        calls.append((name, *args, *(settings[key] for key in ("level", "tags") if key in settings)))
        return call(*args, **settings)

    return note


def test_one_stale_matrix_is_caught(open_vllm, monkeypatch):
    """A single matrix that was not pushed, one of three that vLLM joins."""
    policy = make_policy("llama", tied=False)
    sampler = open_vllm(policy, sync_check_every=1)
    push, stale = sampler.engine.push, "model.layers.1.self_attn.k_proj.weight"
    held = dict(engine_weights(policy))[stale].clone()
    monkeypatch.setattr(sampler.engine, "push", lambda weights: push({**dict(weights), stale: held}.items()))
    shake(policy)
    with pytest.raises(WeightsDiffer, match="did not load a push"):
        sampler.load_weights(policy)


def test_adapter_pushed_twice_takes_effect_twice(open_vllm):
    """Greedy tokens are the trainer's after each push, and change with it."""
    policy = with_lora()
    sampler = open_vllm(policy, sync_check_every=1)
    seen = [greedy_tokens(sampler, policy)]
    assert seen[0] == greedy_tokens(TorchSampler(policy), policy)
    for _ in range(2):
        shake(policy, 0.03)
        sampler.load_weights(policy)
        seen.append(greedy_tokens(sampler, policy))
        assert seen[-1] == greedy_tokens(TorchSampler(policy), policy)
    assert seen[0] != seen[1] != seen[2]
