"""Schedules and the optimizer step."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save

from rlvr.config import OptimConfig
from rlvr.model.optim.optimizer import learning_rate, make_optimizer, optimizer_step
from rlvr.training.checkpoint.checkpoint import load_optimizer, optimizer_tensors


def rates(config, steps):
    return [learning_rate(step, config, steps) for step in range(steps)]


def test_constant_schedule_warms_up():
    """1/3, 2/3, then the peak."""
    assert rates(OptimConfig(lr=3.0, warmup_steps=2), 5) == pytest.approx([1, 2, 3, 3, 3])


def test_linear_schedule_falls_to_the_floor():
    """From 1 towards .1 at step 10; beyond, the floor."""
    config = OptimConfig(lr=1.0, schedule="linear", min_lr_ratio=0.1)
    assert rates(config, 10)[:3] == pytest.approx([1.0, 0.91, 0.82])
    assert learning_rate(10, config, 10) == pytest.approx(0.1)
    assert learning_rate(99, config, 10) == pytest.approx(0.1)


def test_cosine_schedule_is_half_way_in_the_middle():
    """(1 + .1) / 2."""
    assert learning_rate(5, OptimConfig(lr=1.0, schedule="cosine", min_lr_ratio=0.1), 10) == pytest.approx(0.55)


def test_decay_steps_free_the_schedule_of_the_number_of_steps():
    """A run that is lengthened later has the same rates."""
    config = OptimConfig(lr=1.0, schedule="linear", decay_steps=10)
    assert rates(config, 4) == rates(config, 20)[:4]


def test_gradient_is_clipped_and_cleared():
    """Norm 5 is scaled to 1; the value before clipping is returned."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.tensor([3.0, 4.0])
    assert optimizer_step(optimizer, lr=0.1, max_grad_norm=1.0) == pytest.approx(5.0)
    assert weight.tolist() == pytest.approx([-0.06, -0.08], abs=1e-6)
    assert weight.grad is None


def test_a_gradient_that_is_not_finite_moves_nothing():
    """One broken batch does not end the weights; its norm is in the log."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = make_optimizer([weight], OptimConfig(lr=1.0))
    weight.grad = torch.tensor([float("nan"), 1.0])
    norm = optimizer_step(optimizer, lr=1.0, max_grad_norm=1.0)
    assert norm != norm
    assert weight.tolist() == [1.0, 1.0]


def test_optimizer_state_survives_the_disk_format():
    """Moments and step counts come back: the next step is the same."""
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizers = [make_optimizer([w], OptimConfig(lr=0.1)) for w in weights]
    weights[0].grad = torch.tensor([1.0, -2.0, 0.5])
    optimizer_step(optimizers[0], lr=0.1, max_grad_norm=10.0)
    with torch.no_grad():
        weights[1].copy_(weights[0])
    load_optimizer(optimizers[1], load(save(optimizer_tensors(optimizers[0]))))
    for weight, optimizer in zip(weights, optimizers, strict=True):
        weight.grad = torch.tensor([0.1, 0.2, 0.3])
        optimizer_step(optimizer, lr=0.1, max_grad_norm=10.0)
    assert torch.equal(weights[0], weights[1])
