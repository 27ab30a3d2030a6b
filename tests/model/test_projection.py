"""Linear layers with the weights as the first factor give what the layers give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlvr.model.cpu import linear as projection


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
    linear, x = nn.Linear(256, 320, bias=bias), torch.randn(rows, 256).bfloat16()
    linear.weight.copy_(linear.weight.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        found = projection.project(linear, x, dense=dense)
    assert found.dtype is torch.bfloat16
    assert found.shape == (rows, 320)
    assert found.is_contiguous() or not dense
    assert close(found, nn.functional.linear(x.float(), linear.weight, linear.bias))


@torch.no_grad()
def test_an_mlp_with_a_gate_is_its_own_forward() -> None:
    from transformers import Qwen2Config
    from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP

    torch.manual_seed(0)
    mlp = Qwen2MLP(Qwen2Config(hidden_size=256, intermediate_size=512)).bfloat16()
    x = torch.randn(7, 256).bfloat16()
    assert projection.is_gated(mlp)
    plain, found = mlp(x), projection.project_gated(mlp, x)
    exact = mlp.float()(x.float())
    # Three layers round; ours as often as its own.
    assert (found - exact).norm() <= 1.5 * (plain - exact).norm()


def test_other_layers_are_called_as_they_are() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 256).bfloat16()
    other = Adapted(256, 320).bfloat16()
    with torch.no_grad():
        assert torch.equal(projection.project(other, x), other(x))
        small = nn.Linear(256, 8).bfloat16()
        assert torch.equal(projection.project(small, x), small(x))
        wide = nn.Linear(256, 320)
        assert torch.equal(projection.project(wide, x.float()), wide(x.float()))
    plain = nn.Linear(256, 320).bfloat16()
    projection.project(plain, x).float().sum().backward()  # with a gradient
    assert plain.weight.grad is not None
