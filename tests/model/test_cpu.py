"""What is faster on a CPU gives what the plain pass gives, on every kind of processor: layers, decoding, threads."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

from rlvr.config import ModelConfig
from rlvr.model.cpu import linear, processor
from rlvr.model.cpu.attention import attend_at_once
from rlvr.model.cpu.linear import Prepared, PreparedModel, can_prepare
from rlvr.model.decode import DecodeCache, PreparedDecoder, SharedDecoder, _products
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.probe import Decoders
from rlvr.sampling.torch_sampler import TorchSampler
from tests.helpers.families import make_models
from tests.helpers.models import make_model

# What a kind of processor has: AMX, and instructions for products of bfloat16.
PROCESSORS = {"amx": (True, True), "bfloat16": (False, True), "neither": (False, False)}


def set_processor(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Make the code choose as on a processor of this kind."""
    amx, bfloat16 = PROCESSORS[kind]
    monkeypatch.setattr(processor, "has_amx", lambda: amx)
    monkeypatch.setattr(processor, "has_bfloat16", lambda: bfloat16)


class Adapted(nn.Linear):
    """Not a plain linear layer."""

    def forward(self, x):
        return 2 * super().forward(x)


def close(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Return whether a bfloat16 result is the exact one, rounded."""
    return bool(((found.float() - exact).abs() <= 2**-7 * exact.abs() + 1e-3).all())


@pytest.mark.parametrize("rows", [1, 5, 128, 129])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dense", [False, True])
@torch.no_grad()
def test_a_product_is_the_layers(rows, bias, dense) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(256, 320, bias=bias), torch.randn(rows, 256).bfloat16()
    layer.weight.copy_(layer.weight.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        found = linear.project(layer, x, dense=dense)
    assert found.dtype is torch.bfloat16
    assert found.shape == (rows, 320)
    assert found.is_contiguous() or not dense
    assert close(found, nn.functional.linear(x.float(), layer.weight, layer.bias))


@torch.no_grad()
def test_an_mlp_with_a_gate_is_its_own_forward() -> None:
    torch.manual_seed(0)
    mlp = Qwen2MLP(Qwen2Config(hidden_size=256, intermediate_size=512)).bfloat16()
    x = torch.randn(7, 256).bfloat16()
    assert linear.is_gated(mlp)
    plain, found = mlp(x), linear.project_gated(mlp, x)
    exact = mlp.float()(x.float())
    # Three layers round; ours as often as its own.
    assert (found - exact).norm() <= 1.5 * (plain - exact).norm()


def test_other_layers_are_called_as_they_are() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 256).bfloat16()
    other = Adapted(256, 320).bfloat16()
    with torch.no_grad():
        assert torch.equal(linear.project(other, x), other(x))
        small = nn.Linear(256, 8).bfloat16()
        assert torch.equal(linear.project(small, x), small(x))
        wide = nn.Linear(256, 320)
        assert torch.equal(linear.project(wide, x.float()), wide(x.float()))
    plain = nn.Linear(256, 320).bfloat16()
    linear.project(plain, x).float().sum().backward()  # with a gradient
    assert plain.weight.grad is not None


KINDS = list(PROCESSORS)


@pytest.mark.parametrize(
    "kind, shared, alone", [("amx", True, True), ("bfloat16", False, False), ("neither", True, False)]
)
@torch.no_grad()
def test_the_flash_kernel_decodes_where_it_is_faster(kind, shared, alone, monkeypatch) -> None:
    """Where there is no AMX two products are, unless bfloat16 is emulated and heads share keys."""
    set_processor(monkeypatch, kind)
    for kv_heads, expected in ((2, shared), (4, alone)):
        shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 32}
        config = Qwen2Config(**shape, num_attention_heads=4, num_key_value_heads=kv_heads)
        policy = Policy(Qwen2ForCausalLM(config), tiny_tokenizer(["0123456789"]), dtype=torch.bfloat16)
        TorchSampler(policy)  # chooses how the model is run
        with policy.computing():
            decoder = SharedDecoder(policy.causal)
            decoder.start([[5, 6, 7], [8, 9]], [2, 2])
        assert [cache.fused for cache in decoder.caches] == [expected]


@pytest.mark.parametrize("kind", KINDS)
def test_keys_come_first_with_amx_only(kind, monkeypatch) -> None:
    """The product is the same in both orders."""
    set_processor(monkeypatch, kind)
    query, keys = torch.randn(3, 2, 4, 16).bfloat16(), torch.randn(3, 2, 9, 16).bfloat16()
    asked: list[tuple[int, ...]] = []
    plain = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b: asked.append(tuple(a.shape)) or plain(a, b))
    found = _products(query, keys)
    assert asked == [tuple(keys.shape if kind == "amx" else query.shape)]
    torch.testing.assert_close(found.float(), query.float() @ keys.float().transpose(2, 3), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kind, few, some, many", [("amx", 1, 1, 0), ("bfloat16", 0, 1, 0), ("neither", 0, 0, 0)])
@torch.no_grad()
def test_weights_come_first_for_the_rows_that_gain(kind, few, some, many, monkeypatch) -> None:
    """From 1 row on with AMX, from 16 without, and nowhere where bfloat16 is emulated."""
    set_processor(monkeypatch, kind)
    layer = nn.Linear(256, 320).bfloat16()
    turned: list[int] = []
    plain = linear.multiply_weights_first
    monkeypatch.setattr(linear, "multiply_weights_first", lambda w, b, x: turned.append(len(x)) or plain(w, b, x))
    for rows in (4, 16, 129):
        linear.project(layer, torch.randn(rows, 256).bfloat16())
    assert turned == [4] * few + [16] * some + [129] * many


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("act", [nn.SiLU(), nn.GELU()])
@torch.no_grad()
def test_prepared_layers_are_the_layers(kind, rows, bias, act, monkeypatch) -> None:
    """On every kind of processor; also with what is computed where the product ends."""
    set_processor(monkeypatch, kind)
    linears = [nn.Linear(64, 96, bias=bias), nn.Linear(64, 32, bias=False)]
    x, other = torch.randn(rows, 64), torch.randn(rows, 128)
    expected = torch.cat([layer(x) for layer in linears], dim=1)
    for dtype in (torch.float32, torch.bfloat16):
        prepared = Prepared(linears, dtype)
        narrow = x.to(dtype)
        for found, exact in (
            (prepared(narrow), expected),
            (prepared.gate(narrow, act), act(expected)),
            (prepared.times(narrow, other.to(dtype)), expected * other),
        ):
            assert found.dtype is dtype
            torch.testing.assert_close(found.float(), exact, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_few_bfloat16_scores_have_a_float32_softmax_where_that_is_faster(kind, monkeypatch) -> None:
    """The result is the same but for rounding."""
    set_processor(monkeypatch, kind)
    scores = torch.zeros(4, dtype=torch.bfloat16)
    expected = torch.float32 if kind == "bfloat16" else torch.bfloat16
    assert processor.softmax_dtype(scores) is expected
    assert processor.softmax_dtype(torch.empty(4 * 2**20, dtype=torch.bfloat16)) is torch.bfloat16
    assert processor.softmax_dtype(scores.float()) is torch.float32
    query, key, value = (torch.randn(2, 2, 5, 8).bfloat16() for _ in range(3))
    bias = torch.zeros(1, 1, 5, 5, dtype=torch.bfloat16)
    exact = attend_at_once(query.float(), key.float(), value.float(), bias.float())
    found = attend_at_once(query, key, value, bias)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=5e-2, atol=5e-2)


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


def copy_prompts(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    """Copy prompts up to so many numbers in the keys of a layer, whoever shares them."""
    monkeypatch.setattr(DecodeCache, "COPIED", numbers)
    monkeypatch.setattr(DecodeCache, "COPIES", 0)


@torch.no_grad()
def test_prompts_that_few_rows_share_are_copied(monkeypatch) -> None:
    """Rows of prompts of their own, and pairs, have one buffer each, however long; four rows of one prompt share it."""
    policy = make_policy("llama")
    policy.model.eval()
    prompts = [[5 + (3 * i + p) % 9 for i in range(20 + p)] for p in range(4)]
    monkeypatch.setattr(DecodeCache, "COPIED", 0)
    found = []
    for counts, copied in (([1, 1, 1, 1], True), ([2, 1, 2, 2], True), ([4, 4, 4, 4], False)):
        decoder = PreparedDecoder(policy.causal)
        logits = [decoder.start(prompts, counts)]
        logits += [decoder.step(torch.full((sum(counts),), token)) for token in (7, 8, 9)]
        assert bool(decoder.caches[0].prompts) != copied
        firsts = torch.tensor([sum(counts[:p]) for p in range(4)])
        found.append(torch.stack(logits)[:, firsts])
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[1], found[2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("copied", [0, 2**19])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_prepared_weights_give_the_logits_of_the_plain_pass(family, copied, monkeypatch) -> None:
    """With biases, norms of queries and keys, and windows; prompts held once, or copied for each row."""
    policy = make_policy(family)
    copy_prompts(monkeypatch, 0)
    expected = decode(policy, SharedDecoder)
    copy_prompts(monkeypatch, copied)
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
    copy_prompts(monkeypatch, 0)
    plain = decode(policy, SharedDecoder)
    copy_prompts(monkeypatch, copied)
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
    decoders = Decoders(policy.causal, policy.trial, policy.packs)
    decoders.chosen.clear()
    assert decoders.for_length(20) is SharedDecoder


def exchange(weight: Tensor) -> None:
    weight.copy_(weight.roll(len(weight) // 2, 0))


def shift_view(weight: Tensor) -> None:
    weight.copy_(weight.roll(1, 0))


def scale(weight: Tensor) -> None:
    weight[: len(weight) // 3].mul_(1.1)


def not_filled(weight: Tensor) -> None:
    weight[-2:].zero_()


@pytest.mark.parametrize("sabotage", [exchange, shift_view, scale, not_filled])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_joined_weights_that_differ_are_not_used(family, sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 nothing is joined, so that only the trial in the dtype that decodes can tell."""
    right = linear.join

    def wrong(linears: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        weight, bias = right(linears, dtype)
        if len(linears) > 1:
            sabotage(weight)
        return weight, bias

    policy = make_policy(family)
    policy.trial.decoders.clear()
    monkeypatch.setattr(linear, "join", wrong)
    for dtype, expected in ((torch.float32, PreparedDecoder), (torch.bfloat16, SharedDecoder)):
        decoders = Decoders(policy.causal, policy.trial, policy.packs, dtype)
        assert decoders.for_length(20) is expected
    monkeypatch.setattr(linear, "join", right)
    policy.trial.decoders.clear()
    decoders = Decoders(policy.causal, policy.trial, policy.packs, torch.bfloat16)
    assert decoders.for_length(20) is PreparedDecoder


@pytest.mark.parametrize("copied", [0, 2**19])
def test_a_cache_tells_the_bytes_that_it_holds(copied, monkeypatch) -> None:
    copy_prompts(monkeypatch, copied)
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
