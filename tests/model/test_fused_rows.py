"""Fused attention of long rows equals attention tile by tile, in output and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlvr.model.attention.rows import Spans
from rlvr.model.cpu import attention as blockwise
from rlvr.model.cpu import attention as fused_rows
from rlvr.model.forward.packed import PackedGroups

# Lengths of rows that lie end to end, the first tokens and the lengths of their contexts.
LAYOUTS = {
    "rows without a context": ([40, 40, 9], [0, 0, 0], [0, 0, 0]),
    "one prompt": ([12, 40, 40, 33], [0, 0, 0, 0], [0, 12, 12, 12]),
    "two prompts": ([10, 7, 40, 40, 13, 20], [0, 0, 0, 0, 10, 10], [0, 0, 10, 10, 7, 7]),
    "rows of the prompts in turn": ([10, 7, 20, 20, 20], [0, 0, 0, 10, 0], [0, 0, 10, 7, 10]),
}


def compute(layout, heads: tuple[int, int], dtype: torch.dtype, fused: bool):
    """Return output and gradients of query, key and value for one way to compute a layout."""
    rows = [np.array(column) for column in layout]
    generator = torch.Generator().manual_seed(0)
    shapes = [(int(rows[0].sum()), h, 16) for h in (heads[0], heads[1], heads[1], heads[0])]
    *inputs, grad = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    for x in inputs:
        x.requires_grad_()
    if fused:
        out = fused_rows.attend_by_fused_rows(*inputs, fused_rows.RowsPlan(*rows))
    else:
        out = blockwise.attend_by_tiles(
            *inputs, blockwise.TilePlan(Spans.of_rows(*rows), heads[0], torch.device("cpu"))
        )
    return out, *torch.autograd.grad(out, inputs, grad)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_fused_equals_tiles(layout, heads) -> None:
    expected = compute(layout, heads, torch.float32, False)
    for found, value in zip(compute(layout, heads, torch.float32, True), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_in_bfloat16_the_difference_is_rounding(layout) -> None:
    expected = compute(layout, (4, 2), torch.float32, False)
    tiles, fused = (compute(layout, (4, 2), torch.bfloat16, way) for way in (False, True))
    for exact, ours, theirs in zip(expected, fused, tiles, strict=True):
        assert ours.dtype is torch.bfloat16
        # A gradient sums what was rounded; the tiles round as often.
        assert (ours - exact).norm() <= 2 * (theirs - exact).norm() + 1e-3 * exact.norm()


def test_a_plan_pays_for_long_rows_alone() -> None:
    def pays(lengths: list[int], contexts: list[int]) -> bool:
        return fused_rows.RowsPlan(np.array(lengths), np.zeros(len(lengths), dtype=int), np.array(contexts)).pays

    assert pays([512] * 8, [0] * 8)
    assert pays([300, 100, 100], [0, 300, 300])
    assert not pays([39] * 100, [0] * 100)
    assert not pays([2000, *[1, 2] * 50], [0] * 101)  # too many calls


def test_long_rows_of_a_group_are_fused(monkeypatch) -> None:
    calls = []
    plain = fused_rows.attend_by_fused_rows
    monkeypatch.setattr(fused_rows, "attend_by_fused_rows", lambda *given: calls.append(1) or plain(*given))
    generator = torch.Generator().manual_seed(0)
    for length in (512, 32):
        groups = PackedGroups([[1] * 5], [[[2] * length, [3] * length]], torch.device("cpu"))
        q, k, v = (torch.randn(5 + 2 * length, 2, 16, generator=generator) for _ in range(3))
        found = groups.attend(0, q, k, v, 0.25)
        expected = blockwise.attend_by_tiles(q * 0.25, k, v, groups._plan(None, 2, torch.device("cpu")))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("dtype", "precision", "expected"),
    [
        (torch.float32, "highest", True),
        (torch.float32, "medium", False),
        (torch.bfloat16, "medium", True),
        (torch.float64, "highest", False),
    ],
)
def test_the_kernel_is_used_where_it_is_fast(monkeypatch, dtype, precision, expected) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    x = torch.zeros(4, 2, 16, dtype=dtype)
    assert fused_rows.can_fuse(x, x, x) is expected
    assert not fused_rows.can_fuse(x, x, x[..., :8])
    assert not fused_rows.can_fuse(x.to("meta"), x.to("meta"), x.to("meta"))
