"""Tensors in slabs of page-locked memory: apart from each other, and in little more memory than they take."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from safetensors.torch import load, save
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.config import OptimConfig
from rlvr.model.optim.optimizer import ALIGNED, SMALLEST_SLAB, BucketedAdamW, Slabs, optimizer_step
from rlvr.training.checkpoint.checkpoint import load_optimizer, optimizer_tensors


def plain_memory(size: int) -> torch.Tensor:
    """Memory that is not page-locked, as there is no GPU here."""
    return torch.full((size,), 7, dtype=torch.uint8)


def meta(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="meta")


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16])
def test_tensors_are_apart(dtype: torch.dtype) -> None:
    """Each keeps what was written into it, also where they have the sizes of single numbers or more than a slab."""
    slabs = Slabs(plain_memory)
    likes = [torch.zeros(shape, dtype=dtype) for shape in [(), (3,), (5, 7), (1000, 33), (SMALLEST_SLAB + 1,), (2, 2)]]
    cut = [slabs.cut(like) for like in likes]
    for number, part in enumerate(cut):
        part.fill_(number)
    assert [(part.shape, part.dtype) for part in cut] == [(like.shape, dtype) for like in likes]
    assert all(bool((part == number).all()) for number, part in enumerate(cut))
    assert all(part.data_ptr() % ALIGNED == slabs.slabs[0][0].data_ptr() % ALIGNED for part in cut[:4])


@pytest.mark.parametrize("bits8", [False, True])
def test_the_state_of_a_7b_model_takes_little_more_than_its_bytes(bits8: bool) -> None:
    """At most a tenth more, in slabs that torch rounds no further; each tensor alone would take 1.8 times its bytes."""
    config = Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        vocab_size=152_064, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        weights = list(Qwen2ForCausalLM(config).parameters())
    slabs, apart, needed = Slabs(meta), 0, 0
    for weight in weights:
        for dtype in [torch.float32, *[torch.uint8 if bits8 else torch.float32] * 2]:
            part = slabs.cut(torch.empty(weight.shape, dtype=dtype, device="meta"))
            needed += part.nbytes
            apart += 1 << (part.nbytes - 1).bit_length()
    assert all(len(slab).bit_count() == 1 for slab, _ in slabs.slabs)
    assert needed <= slabs.total <= 1.1 * needed
    assert apart > 1.8 * needed


@pytest.mark.parametrize("count", [1, 40, 5000])
def test_few_small_tensors_take_a_small_slab(count: int) -> None:
    """At most twice their bytes, or the smallest slab."""
    slabs = Slabs(meta)
    sizes = [slabs.cut(torch.empty(100_000, device="meta")).nbytes for _ in range(count)]
    assert slabs.total <= max(SMALLEST_SLAB, 2.1 * sum(sizes))


def test_an_optimizer_in_slabs_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose state lies beside the weights; saved and loaded too, and the old slabs are let go then."""
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)

    def train(slabs: Slabs | None) -> tuple[dict[str, bytes], int]:
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(shape).bfloat16()) for shape in [(70, 64), (300,), (5, 3)]]
        options = {"lr": 1e-2, "betas": OptimConfig().betas, "weight_decay": 0.1, "slabs": slabs, "bucket": 1000}
        optimizer = BucketedAdamW(weights, **options)
        for step in range(4):
            for weight in weights:
                weight.grad = torch.randn(weight.shape).bfloat16()
            optimizer_step(optimizer, lr=1e-2, max_grad_norm=10.0)
            if step == 1:
                tensors = load(save(optimizer_tensors(optimizer)))
                old = [weakref.ref(slab) for slab, _ in slabs.slabs] if slabs else []
                load_optimizer(optimizer, tensors)
                gc.collect()
                assert [slab() for slab in old] == [None] * len(old)
        state = {name: save({"x": tensor.contiguous()}) for name, tensor in optimizer_tensors(optimizer).items()}
        return state | {str(i): save({"x": weight.detach()}) for i, weight in enumerate(weights)}, len(state)

    slabs = Slabs(plain_memory)
    beside, number = train(None)
    assert train(slabs) == (beside, number)
    assert number == 3 * 4
    assert slabs.total == SMALLEST_SLAB
