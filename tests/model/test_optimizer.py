"""The optimizer: schedules, the step, AdamW in buckets, short weights, 8-bit moments, a state that lies elsewhere."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from rlvr.config import OptimConfig
from rlvr.model.optim import optimizer as adamw
from rlvr.model.optim.optimizer import (
    BLOCK,
    MASTER,
    Bits8,
    BucketedAdamW,
    Float32,
    check_optimizer,
    learning_rate,
    make_optimizer,
    optimizer_step,
    split_into_buckets,
)
from rlvr.training.checkpoint.checkpoint import load_optimizer, optimizer_tensors

SHAPES = [(70, 64), (300,), (5, 3), (64, 256)]
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="the extra bitsandbytes is not installed"
)


def weights_of(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    """Random weights, always the same."""
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).mul(0.05).to(dtype)) for shape in SHAPES]


def train(weights: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, steps: Iterable[int]) -> None:
    """Take steps towards fixed random targets, with noise that depends on the step."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for weight in weights:
            target = torch.linspace(-1, 1, weight.numel()).view_as(weight)
            noise = torch.randn(weight.shape, generator=generator)
            weight.grad = (weight.detach().float() - target + noise).to(weight.grad_dtype)
        optimizer_step(optimizer, lr=1e-2, max_grad_norm=10.0)


def make_bucketed(weights: list[torch.nn.Parameter], **options) -> BucketedAdamW:
    return BucketedAdamW(weights, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1, **options)


def torchs(weights: list[torch.nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(weights, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1, fused=True)


@pytest.mark.parametrize("bucket", [1, BLOCK, 1000, 10**9])
def test_buckets_hold_every_element_once(bucket: int) -> None:
    """In order, in parts that begin at whole blocks; no bucket is larger than asked for, but for one block."""
    weights = weights_of()
    parts = list(split_into_buckets(weights, bucket))
    seen: dict[int, list[int]] = {}
    for held in parts:
        assert sum(part.stop - part.start for _, part in held) <= max(bucket, BLOCK)
        for weight, part in held:
            assert part.start % BLOCK == 0
            seen.setdefault(id(weight), []).extend(range(part.start, part.stop))
    assert seen == {id(weight): list(range(weight.numel())) for weight in weights}


@pytest.mark.parametrize("bucket", [BLOCK, 1000, 10**9])
def test_float32_weights_get_the_numbers_of_torch(bucket: int) -> None:
    """Bit for bit, however the weights are cut, and the state has the same names and values."""
    ours, theirs = weights_of(), weights_of()
    first, second = make_bucketed(ours, bucket=bucket), torchs(theirs)
    train(ours, first, range(5))
    train(theirs, second, range(5))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    states = optimizer_tensors(first), optimizer_tensors(second)
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bucket", [BLOCK, 1000])
def test_a_state_elsewhere_gives_the_same_numbers(
    dtype: torch.dtype, bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, moments and masters are those of a state beside the weights; a bucket of it is here at a time."""
    out: list[Tensor] = []

    def fetch(part: Tensor, device: torch.device) -> Tensor:
        out.append(part.clone())
        return out[-1]

    ours, theirs = weights_of(dtype), weights_of(dtype)
    second = make_bucketed(theirs)
    train(theirs, second, range(5))
    monkeypatch.setattr(adamw, "fetch", fetch)
    first = make_bucketed(ours, bucket=bucket)
    train(ours, first, range(5))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    states = optimizer_tensors(first), optimizer_tensors(second)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])
    assert max(part.numel() for part in out) <= max(bucket, BLOCK) < sum(weight.numel() for weight in ours)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lr", [1e-6, 3e-6])
def test_updates_far_below_the_weights_resolution_add_up(dtype: torch.dtype, lr: float) -> None:
    """Each step moves a weight of 1 by lr, where bfloat16 resolves 1/256 below 1: rounded at once it would stay."""
    weight = torch.nn.Parameter(torch.ones(1000, dtype=dtype))
    optimizer = make_optimizer([weight], OptimConfig(lr=lr))
    for _ in range(50):
        weight.grad = torch.full_like(weight, 1e-3, dtype=weight.grad_dtype)
        optimizer_step(optimizer, lr=lr, max_grad_norm=1.0)
    assert torch.equal(weight, torch.ones_like(weight))
    master = optimizer.state[weight][MASTER]
    assert float((1 - master).mean()) == pytest.approx(50 * lr, rel=0.1)
    for _ in range(math.ceil(4e-3 / 1e-4)):
        weight.grad = torch.full_like(weight, 1e-3, dtype=weight.grad_dtype)
        optimizer_step(optimizer, lr=1e-4, max_grad_norm=1.0)
    assert bool((weight < 1).all())


def test_a_short_weight_is_the_rounding_of_its_master() -> None:
    """Which follows AdamW in float32 on the same gradients."""
    ours, theirs = (
        weights_of(torch.bfloat16),
        [torch.nn.Parameter(w.detach().float()) for w in weights_of(torch.bfloat16)],
    )
    first, second = make_bucketed(ours, bucket=1000), torchs(theirs)
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        for a, b in zip(ours, theirs):
            a.grad = torch.randn(a.shape, generator=generator).to(a.dtype)
            b.grad = a.grad.float()
        first.step()
        second.step()
    for a, b in zip(ours, theirs):
        assert torch.equal(first.state[a][MASTER], b)
        assert torch.equal(a, b.to(a.dtype))


def check_resumed(make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer], dtype: torch.dtype) -> None:
    """Assert that five steps are the same as three, a save, a load and two, to the last bit."""
    whole, parts, again = weights_of(dtype), weights_of(dtype), weights_of(dtype)
    straight, before, after = make(whole), make(parts), make(again)
    train(whole, straight, range(5))
    train(parts, before, range(3))
    saved = save(optimizer_tensors(before))
    with torch.no_grad():
        for a, b in zip(again, parts):
            a.copy_(b)
    load_optimizer(after, load(saved))
    train(again, after, range(3, 5))
    assert all(torch.equal(a, b) for a, b in zip(whole, again))
    states = optimizer_tensors(straight), optimizer_tensors(after)
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_is_exact(dtype: torch.dtype) -> None:
    """Masters and moments come back bit for bit, from the format on the disk; with torch's own optimizer too."""
    check_resumed(lambda weights: make_bucketed(weights, bucket=1000), dtype)
    check_resumed(lambda weights: make_optimizer(weights, OptimConfig(lr=1e-2)), dtype)


@needs_bitsandbytes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_is_exact_with_8_bits(dtype: torch.dtype) -> None:
    """Codes and scales too."""
    check_resumed(lambda weights: make_bucketed(weights, bucket=1000, moments=Bits8()), dtype)


@needs_bitsandbytes
@pytest.mark.parametrize("bucket", [BLOCK, 1000, 10**9])
def test_8_bits_are_those_of_bitsandbytes(bucket: int) -> None:
    """The same weights as its own optimizer's, however they are cut."""
    from bitsandbytes.optim import AdamW8bit

    ours, theirs = weights_of(), weights_of()
    train(ours, make_bucketed(ours, bucket=bucket, moments=Bits8()), range(5))
    train(theirs, AdamW8bit(theirs, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1), range(5))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@needs_bitsandbytes
def test_8_bits_agree_with_32() -> None:
    """The way of 30 steps differs by a few hundredths; the moments of large weights take a quarter of the memory."""
    start, short, long = weights_of(), weights_of(), weights_of()
    first, second = make_bucketed(short, moments=Bits8()), make_bucketed(long)
    train(short, first, range(30))
    train(long, second, range(30))
    for begin, a, b in zip(start, short, long):
        way = float((b - begin).detach().norm())
        apart = float((a - b).detach().norm()) / way
        assert apart < 0.1
        assert (apart > 1e-4) == (a.numel() >= adamw.SMALLEST)
    large = short[-1]
    sizes = [
        sum(t.nbytes for n, t in o.state[w].items() if n != "step") for o, w in ((first, large), (second, long[-1]))
    ]
    assert sizes[0] == large.numel() * 2 + 2 * 4 * large.numel() // BLOCK
    assert sizes[1] == large.numel() * 8


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes.functional", None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[bitsandbytes\]'"):
        make_optimizer(weights_of(), OptimConfig(name="adamw8bit"))


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_offload_is_refused_without_a_cuda_gpu(device: str) -> None:
    """On a CPU the state is in its memory already."""
    with pytest.raises(ValueError, match=f"optim.offload .* the model is on {device}"):
        check_optimizer(OptimConfig(offload=True), torch.device(device))


@pytest.mark.parametrize(("saved", "name"), [(torch.bfloat16, "master"), (torch.float32, "master")])
def test_a_state_of_other_weights_is_refused(saved: torch.dtype, name: str) -> None:
    """A master that is missing, or is not wanted, is not passed over."""
    other = torch.float32 if saved is torch.bfloat16 else torch.bfloat16
    weights = weights_of(saved)
    optimizer = make_bucketed(weights)
    train(weights, optimizer, range(1))
    with pytest.raises(ValueError, match=rf"weight 0 differs in {name}: .*model\.weights"):
        load_optimizer(make_bucketed(weights_of(other)), optimizer_tensors(optimizer))


def test_plain_settings_keep_torchs_own_optimizer() -> None:
    """So that a default run is bit for bit what it was."""
    assert type(make_optimizer(weights_of(), OptimConfig())) is torch.optim.AdamW
    short = make_optimizer(weights_of(torch.bfloat16), OptimConfig())
    assert isinstance(short, BucketedAdamW)
    assert isinstance(short.moments, Float32)


def rates(config: OptimConfig, steps: int) -> list[float]:
    return [learning_rate(step, config, steps) for step in range(steps)]


def test_schedules_by_hand() -> None:
    """A warm-up of 1/3, 2/3, then the peak; from 1 towards .1 at step 10, then the floor; (1 + .1) / 2 half way."""
    assert rates(OptimConfig(lr=3.0, warmup_steps=2), 5) == pytest.approx([1, 2, 3, 3, 3])
    config = OptimConfig(lr=1.0, schedule="linear", min_lr_ratio=0.1)
    assert [learning_rate(step, config, 10) for step in (0, 1, 2, 10, 99)] == pytest.approx([1.0, 0.91, 0.82, 0.1, 0.1])
    assert learning_rate(5, OptimConfig(lr=1.0, schedule="cosine", min_lr_ratio=0.1), 10) == pytest.approx(0.55)


def test_decay_steps_free_the_schedule_of_the_number_of_steps() -> None:
    """A run that is lengthened later has the same rates."""
    config = OptimConfig(lr=1.0, schedule="linear", decay_steps=10)
    assert rates(config, 4) == rates(config, 20)[:4]


def test_gradient_is_clipped_and_cleared() -> None:
    """Norm 5 is scaled to 1; the value before clipping is returned."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.tensor([3.0, 4.0])
    assert optimizer_step(optimizer, lr=0.1, max_grad_norm=1.0) == pytest.approx(5.0)
    assert weight.tolist() == pytest.approx([-0.06, -0.08], abs=1e-6)
    assert weight.grad is None


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    """One broken batch does not end the weights; its norm is in the log."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = make_optimizer([weight], OptimConfig(lr=1.0))
    weight.grad = torch.tensor([float("nan"), 1.0])
    norm = optimizer_step(optimizer, lr=1.0, max_grad_norm=1.0)
    assert norm != norm
    assert weight.tolist() == [1.0, 1.0]
