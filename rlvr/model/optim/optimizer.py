"""AdamW, its schedule, and one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from rlvr.config import OptimConfig
from rlvr.model.optim.adamw import Beside, Bits8, BucketedAdamW, Float32, Pinned, bitsandbytes_functional
from rlvr.model.optim.sharding import full


def make_optimizer(parameters: Iterable[Tensor], config: OptimConfig) -> torch.optim.Optimizer:
    """Return AdamW over the trainable parameters; its learning rate is set at each step.

    Weights stored in fewer than 32 bits are updated through a float32 copy in the optimizer's state. Raises ValueError
    as `check_optimizer` does.
    """
    weights = list(parameters)
    if config.name == "adamw" and not config.offload and all(weight.dtype is torch.float32 for weight in weights):
        return torch.optim.AdamW(
            weights, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )
    for device in {weight.device for weight in weights}:
        check_optimizer(config, device)
    return BucketedAdamW(
        weights,
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        moments=Bits8() if config.name == "adamw8bit" else Float32(),
        place=Pinned() if config.offload else Beside(),
    )


def check_optimizer(config: OptimConfig, device: torch.device) -> None:
    """Raise ValueError where an extra is not installed, or the state cannot be kept away from the device."""
    if config.name == "adamw8bit":
        bitsandbytes_functional()
    if config.offload:
        check_place(device)


def check_place(device: torch.device) -> None:
    """Raise ValueError where the optimizer's state cannot be kept away from a device."""
    if device.type != "cuda":
        raise ValueError(
            f"optim.offload keeps the optimizer's state in the CPU's memory, and the model is on {device}; leave it out"
        )


def learning_rate(step: int, config: OptimConfig, num_steps: int) -> float:
    """Return the learning rate of a step (from 0): linear warm-up, then the schedule down to min_lr_ratio.

    The decay ends at config.decay_steps, or at num_steps where that is 0.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    end = config.decay_steps or num_steps
    progress = min((step - config.warmup_steps) / max(end - config.warmup_steps, 1), 1.0)
    shape = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
    floor = 1.0 if config.schedule == "constant" else config.min_lr_ratio
    return config.lr * (floor + (1 - floor) * shape[config.schedule])


def optimizer_step(optimizer: torch.optim.Optimizer, *, lr: float, max_grad_norm: float) -> float:
    """Clip the gradient, step, clear. Return the gradient's norm before clipping.

    A gradient that is not finite is dropped, and its norm returned, so that one bad batch does not ruin the weights.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm, foreach=True)
    value = float(full(norm))
    if math.isfinite(value):
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return value
