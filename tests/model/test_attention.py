"""Attention of tokens laid end to end: tile by tile on the CPU, and flex_attention's, against a mask of all pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import rlvr.model.cpu.attention
from rlvr.model.attention import flex
from rlvr.model.attention.operations import Scores
from rlvr.model.attention.rows import Spans, tiles
from rlvr.model.cpu import attention as blockwise
from rlvr.model.forward.packed import PackedGroups
from tests.helpers.tensors import LargestTensor

# Rows laid end to end: lengths, and by which row's tokens each is preceded (-1: none).
LENGTHS = np.array([70, 3, 131, 90, 40, 1, 300, 5, 5])
PARENTS = np.array([-1, -1, -1, 0, 0, 1, 2, 2, 1])
FIRST = np.cumsum(LENGTHS) - LENGTHS
CONTEXTS = np.where(PARENTS < 0, 0, FIRST[PARENTS]), np.where(PARENTS < 0, 0, LENGTHS[PARENTS])
WINDOWS = [None, 1, 7, 100, 10_000]


def visible(window: int | None) -> Tensor:
    """Which of all tokens each of them sees, (N, N), by the places of the tokens in their rows."""
    total = int(LENGTHS.sum())
    seen = torch.zeros(total, total, dtype=torch.bool)
    for first, length, context, before in zip(FIRST, LENGTHS, *CONTEXTS):
        keys = [*range(context, context + before), *range(first, first + length)]
        for i in range(length):
            known = keys[: before + i + 1]
            seen[first + i, known if window is None else known[-window:]] = True
    return seen


def inputs(heads: int = 4, kv_heads: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Queries (N, H, 8), keys (N, H_kv, 8), values (N, H_kv, 16), sinks (H,)."""
    generator, total = torch.Generator().manual_seed(0), int(LENGTHS.sum())
    shapes = (total, heads, 8), (total, kv_heads, 8), (total, kv_heads, 16), (heads,)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def by_mask(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, scores: Scores) -> Tensor:
    """The definition: all scores at once."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    found = torch.einsum("qhd,khd->hqk", query, key)
    return torch.einsum("hqk,khd->qhd", scores.probabilities(found, hidden), value)


def results(out: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of a weighted sum of it."""
    weights = torch.linspace(-1, 1, out.numel()).view_as(out)
    grads = torch.autograd.grad(out, tensors, weights.to(out.dtype), allow_unused=True)
    return [out.detach(), *(x for x in grads if x is not None)]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:The .grad attribute")
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("sinks", [False, True], ids=["no sinks", "sinks"])
def test_tiles_and_flex_attention_compute_what_a_mask_of_all_pairs_does(
    window: int | None, softcap: float | None, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and gradients, of keys and sinks too; tiles of several sizes."""
    query, key, value, sink = tensors = inputs()
    scores = Scores(window, softcap, sink if sinks else None)
    expected = results(by_mask(query, key, value, ~visible(window), scores), tensors)
    spans = Spans.of_rows(LENGTHS, *CONTEXTS, window=window)
    for queries, keys in ((16, 32), (128, 128), (1000, 64)):
        monkeypatch.setattr(blockwise, "QUERIES", queries)
        monkeypatch.setattr(blockwise, "MAX_TILE_KEYS", keys)
        monkeypatch.setattr(blockwise, "MIN_TILE_KEYS", min(keys, 128))
        plan = blockwise.TilePlan(spans, 4, torch.device("cpu"))
        found = results(blockwise.attend_by_tiles(query, key, value, plan, scores), tensors)
        assert len(found) == len(expected) == 4 + sinks
        for a, b in zip(found, expected):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)
    # torch refuses gradients on a CPU, where its own definition of them is slow; it is the one that kernels must meet.
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
    plan = flex.FlexPlan(spans, torch.device("cpu"))
    for a, b in zip(results(flex.attention(query, key, value, plan, scores, compiled=False), tensors), expected):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


def test_compiled_flex_attention_agrees() -> None:
    """What a GPU runs, compiled for the CPU (without gradients and sinks), for two lengths by one compiled kernel."""
    query, key, value, _ = (x.detach() for x in inputs())
    scores = Scores(50, 1.5)
    for skipped in (0, 1):
        some = LENGTHS[: len(LENGTHS) - skipped], *(x[: len(LENGTHS) - skipped] for x in CONTEXTS)
        total = int(some[0].sum())
        plan = flex.FlexPlan(Spans.of_rows(*some, window=50), torch.device("cpu"))
        found = flex.attention(query[:total], key[:total], value[:total], plan, scores)
        expected = by_mask(query[:total], key[:total], value[:total], ~visible(50)[:total, :total], scores)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_many_heads_and_short_types(dtype: torch.dtype) -> None:
    """As many key heads as heads; bf16 rounds in the matmuls alone."""
    query, key, value, _ = tensors = inputs(2, 2, dtype)
    expected = results(by_mask(*(x.float() for x in (query, key, value)), ~visible(None), Scores()), tensors)
    plan = blockwise.TilePlan(Spans.of_rows(LENGTHS, *CONTEXTS), 2, torch.device("cpu"))
    found = results(blockwise.attend_by_tiles(query, key, value, plan), tensors)
    assert all(x.dtype is dtype for x in found)
    for a, b in zip(found, expected):
        assert (a.float() - b).abs().max() <= (0.03 if dtype is torch.bfloat16 else 1e-5) * b.abs().max()


@pytest.mark.parametrize("window", WINDOWS)
def test_tiles_hold_every_visible_pair_once_and_skip_what_no_query_sees(window: int | None) -> None:
    """Each pair is in one tile; tiles that claim to be whole are; a short window leaves few tiles."""
    spans, seen = Spans.of_rows(LENGTHS, *CONTEXTS, window=window), visible(window)
    times, size = torch.zeros(seen.shape, dtype=torch.int64), 0
    for first, _, block in tiles(spans, 32, 64):
        for tile in block:
            rows, keys = slice(first + tile.first, first + tile.last), slice(tile.start, tile.end)
            times[rows, keys] += 1
            size += (tile.last - tile.first) * (tile.end - tile.start)
            assert tile.whole <= bool(seen[rows, keys].all())
    assert bool((times[seen] == 1).all())
    assert int(times.max()) == 1
    rows = -(-LENGTHS // 32) + 1
    assert size <= int(seen.sum()) + 32 * (64 + 32) * int(rows.sum())


@pytest.mark.parametrize("size", [16, 128])
@pytest.mark.parametrize("window", WINDOWS)
def test_block_map_names_the_blocks_that_are_seen(window: int | None, size: int) -> None:
    """A block that some query sees is named, one that all see whole is named as such, and no other."""
    seen = visible(window)
    count = -(-len(seen) // size)
    expected = np.zeros((2, count, count), dtype=bool)
    for i, j in itertools.product(range(count), range(count)):
        part = seen[i * size : (i + 1) * size, j * size : (j + 1) * size]
        expected[:, i, j] = bool(part.any()), bool(part.all()) and part.shape[1] == size
    some, whole = Spans.of_rows(LENGTHS, *CONTEXTS, window=window).block_map(size)
    assert np.array_equal(some, expected[0])
    assert np.array_equal(whole, expected[1])


def test_the_result_is_the_same_each_time_and_on_several_threads() -> None:
    """Tiles are added in a fixed order: a resumed run gives the same bits."""
    query, key, value, _ = tensors = inputs()
    plan = blockwise.TilePlan(Spans.of_rows(LENGTHS, *CONTEXTS), 4, torch.device("cpu"))
    runs = [results(blockwise.attend_by_tiles(query, key, value, plan), tensors) for _ in range(3)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0]))


@pytest.mark.parametrize("completions", [1, 12])
def test_a_long_row_and_a_long_shared_prompt_make_no_rectangle(completions: int) -> None:
    """4,000 tokens on four heads, or a prompt of 4,000 under twelve rows: nothing larger than tokens times width."""
    prompts = [[5] * (4000 if completions > 1 else 30), [5] * 9]
    rows = [[[6] * (60 + 7 * g if completions > 1 else 4000) for g in range(completions)], [[6] * 250]]
    layout = PackedGroups(prompts, rows, torch.device("cpu"))
    tokens = layout.ids.shape[1]
    query = torch.randn(tokens, 4, 8, requires_grad=True)
    key = torch.randn(tokens, 2, 8, requires_grad=True)
    assert layout.score_elements * 4 > rlvr.model.cpu.attention.MAX_SCORES
    with LargestTensor() as watch:
        layout.attend(0, query, key, key, 0.3).sum().backward()
    assert watch.elements <= max(tokens * 4 * 8, rlvr.model.cpu.attention.TILE_SCORES)
