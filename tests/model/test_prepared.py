"""Decoding with prepared weights, and with prompts copied for their rows, gives what the plain pass gives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import rlvr.model.probe.trial
from rlvr.config import ModelConfig
from rlvr.model.cpu import processor
from rlvr.model.cpu.linear import Joined, PreparedModel, can_prepare
from rlvr.model.decode.cache import DecodeCache
from rlvr.model.decode.decoders import PreparedDecoder, SharedDecoder
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.sampling.torch_sampler import TorchSampler
from tests.helpers.families import make_models
from tests.helpers.models import make_model
from tests.helpers.processors import set_processor

ALPHABET = "0123456789+-= abcdefghijklmnopqrstu"
PROMPTS, COUNTS = [[5, 6, 7, 8, 9], [11, 12], [10, 13, 14]], [2, 3, 1]


def make_policy(family: str, dtype: torch.dtype = torch.float32) -> Policy:
    """A policy of a tiny model whose decoders have been chosen."""
    model, _ = make_models(family)
    policy = Policy(model, tiny_tokenizer([ALPHABET]), dtype=dtype)
    TorchSampler(policy)
    return policy


@torch.no_grad()
def decode(policy: Policy, make: type[SharedDecoder], steps: int = 20) -> Tensor:
    """The logits of the rows of PROMPTS step by step, of which some leave on the way and two enter."""
    policy.model.eval()
    with policy.computing():
        decoder = make(policy.causal)
        found = [decoder.start(PROMPTS, COUNTS)]
        for step in range(steps):
            rows = len(found[-1])
            found.append(decoder.step((torch.arange(rows) * 7 + step) % 14 + 4))
            if step == steps // 3:
                kept = torch.tensor([1, 2, 4, 5])
                decoder.keep(kept)
                found.append(torch.cat([found[-1][kept], decoder.enter([[9, 8, 7]], [2])]))
    return torch.cat(found)


@pytest.mark.parametrize("copied", [0, 2**19])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_prepared_weights_give_the_logits_of_the_plain_pass(family, copied, monkeypatch) -> None:
    """With biases, norms of queries and keys, and windows; prompts held once, or copied for each row."""
    policy = make_policy(family)
    monkeypatch.setattr(DecodeCache, "COPIED", 0)
    expected = decode(policy, SharedDecoder)
    monkeypatch.setattr(DecodeCache, "COPIED", copied)
    for make in (SharedDecoder, PreparedDecoder):
        torch.testing.assert_close(decode(policy, make), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "family, copied, kind",
    [
        *itertools.product(["llama", "qwen2", "qwen3", "mistral"], [0, 2**19], ["bfloat16"]),
        ("llama", 2**19, "amx"),
        ("llama", 2**19, "neither"),
    ],
)
def test_in_bfloat16_the_difference_is_rounding(family, copied, kind, monkeypatch) -> None:
    """Weights cast and joined; prompts held once, or copied; with the kernels of every kind of processor."""
    set_processor(monkeypatch, kind)
    policy = make_policy(family)
    exact = decode(policy, SharedDecoder)
    policy.dtype = torch.bfloat16
    monkeypatch.setattr(DecodeCache, "COPIED", 0)
    plain = decode(policy, SharedDecoder)
    monkeypatch.setattr(DecodeCache, "COPIED", copied)
    for make in (SharedDecoder, PreparedDecoder):
        found = decode(policy, make)
        assert found.dtype is torch.float32
        assert (found - exact).norm() <= 1.5 * (plain - exact).norm()


def test_a_new_decoder_has_the_present_weights() -> None:
    policy = make_policy("qwen2", torch.bfloat16)
    before = decode(policy, PreparedDecoder)
    with torch.no_grad():
        policy.causal.base_model.layers[0].mlp.gate_proj.weight.mul_(3)
    after = decode(policy, PreparedDecoder)
    assert not torch.allclose(after, before, atol=0.05)
    torch.testing.assert_close(after, decode(policy, SharedDecoder), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("family", "lora_rank", "expected"), [("llama", 0, True), ("llama", 2, False), ("qwen2_moe", 0, False)]
)
def test_adapters_and_experts_are_not_prepared(family, lora_rank, expected, tmp_path) -> None:
    """They are decoded all the same, also by a decoder that was chosen for plain layers."""
    name = str(make_model(family, tmp_path))
    policy = load_policy(ModelConfig(name=name, device="cpu", dtype="float32", lora_rank=lora_rank))
    sampler = TorchSampler(policy)
    assert can_prepare(policy.causal) == expected
    assert sampler.decoders.for_length(20) is (PreparedDecoder if expected else SharedDecoder)
    torch.testing.assert_close(decode(policy, PreparedDecoder), decode(policy, SharedDecoder), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", ["hidden_states", "logits"])
def test_a_prepared_pass_that_differs_is_not_used(part, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(PreparedModel, part)
    policy = make_policy("llama")

    def wrong(self: Any, *given: Any) -> Tensor:
        return right(self, *given) * 1.01

    monkeypatch.setattr(PreparedModel, part, wrong)
    decoders = rlvr.model.probe.trial.Decoders(policy.causal, policy.trial, policy.packs)
    decoders.chosen.clear()
    assert decoders.for_length(20) is SharedDecoder


def exchanged(weight: Tensor) -> None:
    weight.copy_(weight.roll(len(weight) // 2, 0))


def shifted(weight: Tensor) -> None:
    weight.copy_(weight.roll(1, 0))


def scaled(weight: Tensor) -> None:
    weight[: len(weight) // 3].mul_(1.1)


def not_filled(weight: Tensor) -> None:
    weight[-2:].zero_()


@pytest.mark.parametrize("sabotage", [exchanged, shifted, scaled, not_filled])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_joined_weights_that_differ_are_not_used(family, sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 nothing is joined, so that only the trial in the dtype that decodes can tell."""
    right = Joined.__init__

    def wrong(self: Any, linears: Any, dtype: torch.dtype) -> None:
        right(self, linears, dtype)
        if len(linears) > len(self.parts):
            sabotage(self.parts[0][0])

    policy = make_policy(family)
    policy.trial.decoders.clear()
    monkeypatch.setattr(Joined, "__init__", wrong)
    for dtype, expected in ((torch.float32, PreparedDecoder), (torch.bfloat16, SharedDecoder)):
        decoders = rlvr.model.probe.trial.Decoders(policy.causal, policy.trial, policy.packs, dtype)
        assert decoders.for_length(20) is expected
    monkeypatch.setattr(Joined, "__init__", right)
    policy.trial.decoders.clear()
    decoders = rlvr.model.probe.trial.Decoders(policy.causal, policy.trial, policy.packs, torch.bfloat16)
    assert decoders.for_length(20) is PreparedDecoder


@pytest.mark.parametrize("copied", [0, 2**19])
def test_a_cache_tells_the_bytes_that_it_holds(copied, monkeypatch) -> None:
    monkeypatch.setattr(DecodeCache, "COPIED", copied)
    policy = make_policy("llama")
    with torch.no_grad():
        decoder = PreparedDecoder(policy.causal)
        decoder.start(PROMPTS, COUNTS)
        [cache] = decoder.caches
        assert bool(cache.prompts) == (copied == 0)
        for step in range(40):
            told = decoder.bytes_at_step()
            decoder.step(torch.full((cache.rows,), 7))
            held = [x for pair in [*cache.prompts.values(), *cache.own.values()] for x in pair]
            assert sum(x.nbytes for x in held) == told
            if step == 20:
                decoder.keep(torch.tensor([0, 5]))


def fail_within(nbytes: float, inside: int) -> None:
    with processor.use_threads(nbytes, torch.device("cpu")):
        assert torch.get_num_threads() == inside
        raise KeyError


@pytest.mark.parametrize(("nbytes", "inside"), [(0, 1), (2**23 - 1, 1), (2**23, 2), (float("inf"), 2)])
def test_short_operations_have_one_thread(nbytes, inside) -> None:
    """And all threads come back, after an error too."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(KeyError):
            fail_within(nbytes, inside)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
