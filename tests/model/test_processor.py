"""Kernels are chosen by what the processor has: what one computes fast another computes slowly."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.algo.batch import Batch
from rlvr.model.cpu import linear as projection
from rlvr.model.cpu import processor
from rlvr.model.cpu.attention import attend_at_once
from rlvr.model.cpu.linear import Joined
from rlvr.model.decode.cache import _products
from rlvr.model.decode.decoders import SharedDecoder
from rlvr.model.load.policy import Policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.sampling.torch_sampler import TorchSampler
from tests.helpers.processors import PROCESSORS, set_processor

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
    linear = nn.Linear(256, 320).bfloat16()
    turned: list[int] = []
    plain = projection.multiply_weights_first
    monkeypatch.setattr(projection, "multiply_weights_first", lambda w, b, x: turned.append(len(x)) or plain(w, b, x))
    for rows in (4, 16, 129):
        projection.project(linear, torch.randn(rows, 256).bfloat16())
    assert turned == [4] * few + [16] * some + [129] * many


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 5, 15, 16])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_joined_layers_of_few_columns_are_the_layers(kind, columns, bias, monkeypatch) -> None:
    """On every kind of processor."""
    set_processor(monkeypatch, kind)
    linears, x = [nn.Linear(64, 96, bias=bias), nn.Linear(64, 32, bias=bias)], torch.randn(64, columns)
    expected = torch.cat([linear(x.t()).t() for linear in linears])
    for dtype in (torch.float32, torch.bfloat16):
        found = Joined(linears, dtype)(x.to(dtype)).float()
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


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


def test_a_plan_reads_the_mask_once() -> None:
    """Not once for each row: with 1,024 rows of 4,096 tokens that took seconds, while a GPU waits."""
    rows, width = 256, 512
    read = []

    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            read.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    scored = torch.zeros(rows, width, dtype=torch.bool)
    scored[:, 100:] = True
    tokens, zeros = torch.zeros(rows, width, dtype=torch.long), torch.zeros(rows, width)
    batch = Batch(
        tokens=tokens,
        scored=scored.as_subclass(Counted),
        mask=scored,
        sampler_logprobs=zeros,
        advantages=zeros[:, 0],
        lengths=torch.full((rows,), width),
        groups=torch.arange(rows) // 8,
    )
    (plan,) = batch.plan(1, 8 * width)
    assert sum(len(index) for index, _ in plan) == rows
    assert read.count("argmax") == 1
