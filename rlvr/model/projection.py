"""Linear layers of packed tokens, faster where a CPU multiplies bfloat16 weights by a few rows, as in decoding.

Such a product takes the time of reading the weights. oneDNN arranges the second factor of a matmul before it
multiplies, so the weights are made the first: on an AMX processor (W x^T)^T takes two thirds of the time of x W^T, and
needs no copy of the weights. For which rows it pays on others: rlvr.model.processor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlvr.model import processor

# The weights from which it is worth another arrangement of the result.
MANY_WEIGHTS = 2**16
GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}


def project(linear: Any, x: Tensor, *, dense: bool = True) -> Tensor:
    """Return linear(x), x (n, in): (n, out). With `dense` False it may be a transposed view, where that is faster.

    Anything but a plain linear layer is called as it is, as are those whose gradient is wanted.
    """
    if not _turned(linear, x):
        found: Tensor = linear(x)
        return found
    turned = _turned_product(linear.weight, linear.bias, x.to(_dtype(x)))
    return turned.contiguous() if dense else turned


def _turned_product(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    columns = x.t()
    return (torch.mm(weight, columns) if bias is None else torch.addmm(bias[:, None], weight, columns)).t()


def is_gated(mlp: Any) -> bool:
    """Return whether a module has the parts of an MLP with a gate, and no others."""
    return {name for name, _ in mlp.named_children()} == GATED


def gated(mlp: Any, x: Tensor) -> Tensor:
    """Return the output (n, hidden) of an MLP with a gate, x (n, hidden)."""
    gate, up = (project(linear, x, dense=False) for linear in (mlp.gate_proj, mlp.up_proj))
    return project(mlp.down_proj, mlp.act_fn(gate) * up)


def _turned(linear: Any, x: Tensor) -> bool:
    """Return whether the weights are to be the first factor."""
    plain = type(linear) is nn.Linear and not torch.is_grad_enabled()
    return plain and _pays(linear.weight, x, _dtype(x))


def _pays(weight: Tensor, x: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a product in this dtype is faster with the weights as the first factor."""
    large = weight.numel() >= MANY_WEIGHTS and dtype is torch.bfloat16 and x.device.type == "cpu"
    return large and len(x) in processor.rows_with_weights_first()


def _dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which x is multiplied."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
