"""Attention of tokens laid end to end: every way to compute it, against a mask of all pairs; how rows are padded."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from rlvr.model.attention import flex, varlen
from rlvr.model.attention.operations import Scores
from rlvr.model.attention.rows import SMALL, GroupRows, Pad, Rows, Spans, rectangles, tiles
from rlvr.model.cpu import attention
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
        monkeypatch.setattr(attention, "QUERIES", queries)
        monkeypatch.setattr(attention, "MAX_TILE_KEYS", keys)
        monkeypatch.setattr(attention, "MIN_TILE_KEYS", min(keys, 128))
        plan = attention.TilePlan(spans, 4, torch.device("cpu"))
        found = results(attention.attend_by_tiles(query, key, value, plan, scores), tensors)
        assert len(found) == len(expected) == 4 + sinks
        for a, b in zip(found, expected):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)
    # torch refuses gradients on a CPU, where its own definition of them is slow; it is the one that kernels must meet.
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
    plan = flex.FlexPlan(spans, torch.device("cpu"))
    for a, b in zip(results(flex.attend(query, key, value, plan, scores, compiled=False), tensors), expected):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)


def flash_forward(query: Tensor, key: Tensor, value: Tensor, rows: varlen.Sequences, *, causal: bool):
    """What the flash kernel returns: outputs, and the logs of the sums (H, N)."""
    out, log_sum = torch.empty_like(query), torch.empty(query.shape[1], len(query), dtype=query.dtype)
    for q, k, scores in sequences(query, key, rows, causal):
        log_sum[:, q] = scores.logsumexp(-1)
        values = value[k].repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        out[q] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out, log_sum


def flash_backward(grad, query, key, value, out, log_sum, rows: varlen.Sequences, *, causal: bool):
    """Its backward pass: probabilities from the given logs, d(score) = p * (dp - sum(grad * out))."""
    shared = query.shape[1] // key.shape[1]
    grads = [torch.zeros_like(x) for x in (query, key, value)]
    for q, k, scores in sequences(query, key, rows, causal):
        keys, values = (x[k].repeat_interleave(shared, dim=1) for x in (key, value))
        p = (scores - log_sum[:, q, None]).exp()
        product = torch.einsum("qhd,khd->hqk", grad[q], values) - (grad[q] * out[q]).sum(-1).t()[..., None]
        grads[0][q] = torch.einsum("hqk,khd->qhd", p * product, keys)
        for into, part in (
            (1, torch.einsum("hqk,qhd->khd", p * product, query[q])),
            (2, torch.einsum("hqk,qhd->khd", p, grad[q])),
        ):
            grads[into][k] += part.unflatten(1, (-1, shared)).sum(2)
    return grads


def sequences(query: Tensor, key: Tensor, rows: varlen.Sequences, causal: bool):
    """Of each sequence: its queries, its keys, and its scores (H, Lq, Lk)."""
    for (a, b), (c, d) in zip(*(itertools.pairwise(x.tolist()) for x in (rows.query_begins, rows.key_begins))):
        assert (b - a, d - c) <= rows.longest
        keys = key[c:d].repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = torch.einsum("qhd,khd->hqk", query[a:b], keys)
        hidden = (
            torch.ones(b - a, d - c, dtype=torch.bool).triu(1)
            if causal
            else torch.zeros(b - a, d - c, dtype=torch.bool)
        )
        yield slice(a, b), slice(c, d), scores.masked_fill(hidden, float("-inf"))


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 8, 7, 3, 6, 4, 5], [0, 1, 2], [2, 6, 7]])
def test_two_calls_of_a_flash_kernel_compute_one_softmax(order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """By stand-ins of torch's kernel, in float32, against all scores at once in float64: rows in several orders."""
    monkeypatch.setattr(varlen, "flash_forward", flash_forward)
    monkeypatch.setattr(varlen, "flash_backward", flash_backward)
    lengths, parents = LENGTHS[order], [order.index(p) if p >= 0 else -1 for p in PARENTS[order]]
    first = np.cumsum(lengths) - lengths
    contexts, before = (np.array([x[p] if p >= 0 else 0 for p in parents]) for x in (first, lengths))
    total = int(lengths.sum())
    seen = torch.zeros(total, total, dtype=torch.bool)
    for a, n, c, m in zip(first, lengths, contexts, before):
        seen[a : a + n, a : a + n] = torch.ones(n, n, dtype=torch.bool).tril()
        seen[a : a + n, c : c + m] = True
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(total, heads, 8, generator=generator).requires_grad_() for heads in (4, 2, 2)]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    plan = varlen.VarlenPlan((lengths, contexts, before), torch.device("cpu"))
    found = results(varlen.attend(*tensors, plan), tensors)
    key, value = (x.repeat_interleave(2, dim=1) for x in exact[1:])
    scores = torch.einsum("qhd,khd->hqk", exact[0], key).masked_fill(~seen, float("-inf"))
    expected = results(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value), exact)
    assert len(found) == len(expected) == 4
    for a, b in zip(found, expected):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("broken", ["", "sees later tokens", "forgets the context", "a gradient is doubled"])
def test_the_trial_of_a_flash_kernel_finds_one_that_is_wrong(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By stand-ins of torch's kernel in bfloat16."""

    def forward(query, key, value, rows, *, causal: bool):
        forgotten, causal = not causal and "forgets" in broken, causal and "later" not in broken
        out, log_sum = flash_forward(query.float(), key.float(), value.float(), rows, causal=causal)
        return out.bfloat16(), log_sum - 1e4 if forgotten else log_sum

    def backward(grad, query, key, value, out, log_sum, rows, *, causal: bool):
        wide = (x.float() for x in (grad, query, key, value, out))
        found = flash_backward(*wide, log_sum, rows, causal=causal)
        return tuple(x.bfloat16() * (2 if "doubled" in broken else 1) for x in found)

    monkeypatch.setattr(varlen, "flash_forward", forward)
    monkeypatch.setattr(varlen, "flash_backward", backward)
    assert varlen.is_right(torch.device("cpu")) is not bool(broken)


def test_compiled_flex_attention_agrees() -> None:
    """What a GPU runs, compiled for the CPU (without gradients and sinks), for two lengths by one compiled kernel."""
    query, key, value, _ = (x.detach() for x in inputs())
    scores = Scores(50, 1.5)
    for skipped in (0, 1):
        some = LENGTHS[: len(LENGTHS) - skipped], *(x[: len(LENGTHS) - skipped] for x in CONTEXTS)
        total = int(some[0].sum())
        plan = flex.FlexPlan(Spans.of_rows(*some, window=50), torch.device("cpu"))
        found = flex.attend(query[:total], key[:total], value[:total], plan, scores)
        expected = by_mask(query[:total], key[:total], value[:total], ~visible(50)[:total, :total], scores)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tiles_of_many_heads_and_short_types(dtype: torch.dtype) -> None:
    """As many key heads as heads; bf16 rounds in the matmuls alone."""
    query, key, value, _ = tensors = inputs(2, 2, dtype)
    expected = results(by_mask(*(x.float() for x in (query, key, value)), ~visible(None), Scores()), tensors)
    plan = attention.TilePlan(Spans.of_rows(LENGTHS, *CONTEXTS), 2, torch.device("cpu"))
    found = results(attention.attend_by_tiles(query, key, value, plan), tensors)
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


def test_tiles_give_the_same_bits_each_time() -> None:
    """Tiles are added in a fixed order: a resumed run gives the same bits."""
    query, key, value, _ = tensors = inputs()
    plan = attention.TilePlan(Spans.of_rows(LENGTHS, *CONTEXTS), 4, torch.device("cpu"))
    runs = [results(attention.attend_by_tiles(query, key, value, plan), tensors) for _ in range(3)]
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
    assert layout.attention.num_scores * 4 > attention.MAX_SCORES
    with LargestTensor() as watch:
        layout.attend(0, query, key, key, 0.3).sum().backward()
    assert watch.elements <= max(tokens * 4 * 8, attention.TILE_SCORES)


# Lengths of rows that lie end to end, the first tokens and the lengths of their contexts.
LAYOUTS = {
    "rows without a context": ([40, 40, 9], [0, 0, 0], [0, 0, 0]),
    "one prompt": ([12, 40, 40, 33], [0, 0, 0, 0], [0, 12, 12, 12]),
    "two prompts": ([10, 7, 40, 40, 13, 20], [0, 0, 0, 0, 10, 10], [0, 0, 10, 10, 7, 7]),
    "rows of the prompts in turn": ([10, 7, 20, 20, 20], [0, 0, 0, 10, 0], [0, 0, 10, 7, 10]),
}


def compute(layout, heads: tuple[int, int], dtype: torch.dtype, *, fused: bool):
    """Output and gradients of query, key and value of a layout, by the fused kernel or by tiles."""
    rows = [np.array(column) for column in layout]
    generator = torch.Generator().manual_seed(0)
    shapes = [(int(rows[0].sum()), h, 16) for h in (heads[0], heads[1], heads[1], heads[0])]
    *inputs, grad = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    for x in inputs:
        x.requires_grad_()
    if fused:
        out = attention.FusedRows.apply(*inputs, attention.FusedPlan(*rows))
    else:
        plan = attention.TilePlan(Spans.of_rows(*rows), heads[0], torch.device("cpu"))
        out = attention.attend_by_tiles(*inputs, plan)
    return out, *torch.autograd.grad(out, inputs, grad)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_fused_kernel_equals_tiles(layout, heads) -> None:
    """In bfloat16 it rounds as often: a gradient sums what was rounded."""
    exact = compute(layout, heads, torch.float32, fused=False)
    for found, value in zip(compute(layout, heads, torch.float32, fused=True), exact, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-4)
    tiled, fused = (compute(layout, heads, torch.bfloat16, fused=way) for way in (False, True))
    for value, ours, theirs in zip(exact, fused, tiled, strict=True):
        assert ours.dtype is torch.bfloat16
        assert (ours - value).norm() <= 2 * (theirs - value).norm() + 1e-3 * value.norm()


@pytest.mark.parametrize(
    ("lengths", "contexts", "pays"),
    [
        ([512] * 8, [0] * 8, True),
        ([300, 100, 100], [0, 300, 300], True),
        ([39] * 100, [0] * 100, False),
        ([2000, *[1, 2] * 50], [0] * 101, False),  # too many calls
    ],
)
def test_the_fused_kernel_pays_for_long_rows_alone(lengths, contexts, pays) -> None:
    starts = np.zeros(len(lengths), dtype=int)
    assert attention.FusedPlan(np.array(lengths), starts, np.array(contexts)).pays is pays


def test_long_rows_of_a_group_are_fused(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(attention, "can_fuse", lambda *given: asked.append(1) or True)
    generator = torch.Generator().manual_seed(0)
    for length in (512, 32):
        groups = PackedGroups([[1] * 5], [[[2] * length, [3] * length]], torch.device("cpu"))
        q, k, v = (torch.randn(5 + 2 * length, 2, 16, generator=generator) for _ in range(3))
        plan = attention.TilePlan(Spans.of_rows(*groups.attention.rows), 2, torch.device("cpu"))
        expected = attention.attend_by_tiles(q * 0.25, k, v, plan)
        torch.testing.assert_close(groups.attend(0, q, k, v, 0.25), expected, rtol=1e-4, atol=1e-4)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("dtype", "precision", "expected"),
    [
        (torch.float32, "highest", True),
        (torch.float32, "medium", False),
        (torch.bfloat16, "medium", True),
        (torch.float64, "highest", False),
    ],
)
def test_the_fused_kernel_is_used_where_it_is_fast(monkeypatch, dtype, precision, expected) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    x = torch.zeros(4, 2, 16, dtype=dtype)
    assert attention.can_fuse(x, x, x) is expected
    assert not attention.can_fuse(x, x, x[..., :8])
    assert not attention.can_fuse(x.to("meta"), x.to("meta"), x.to("meta"))


@pytest.mark.parametrize("prompts", [1, 34], ids=["shared prompt", "own prompts"])
def test_one_long_row_makes_no_rectangle_of_its_length_for_the_others(prompts: int) -> None:
    """8,000 tokens beside 33 rows of 250: at most 1.5 times the query-key pairs of the rows; 22 in one rectangle."""
    lengths = [8000] + [250] * 33
    contexts = [50 + p * 7 for p in range(prompts)]
    groups = [lengths] if prompts == 1 else [[length] for length in lengths]
    layout = PackedGroups(
        [[5] * context for context in contexts],
        [[[6] * length for length in group] for group in groups],
        torch.device("cpu"),
    )
    real = sum(c * c for c in contexts) + sum(n * (n + c) for c, group in zip(contexts, groups) for n in group)
    assert real <= layout.attention.num_scores <= 1.5 * real + 2 * SMALL


@pytest.mark.parametrize("parents", [[0, 0, 2, 2], [0, 0, 1, 1, 1, 2, 3, 3], [3, 1, 1, 3, 0]])
def test_gradient_of_shared_prompts_is_that_of_indexing(parents: list[int]) -> None:
    """Groups of one size, of several that only on average are, and rows in any order; prompts that no row has."""
    lengths, own = np.array([3, 1, 4, 2]), Rows(np.arange(1, len(parents) + 1), torch.device("cpu"))
    starts = np.cumsum(lengths) - lengths
    rows = GroupRows(starts, lengths, np.array(parents), 10, own)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10 + len(own.tokens) * (len(own.tokens) + 1) // 2, 2, 3, generator=generator, requires_grad=True)
    grid = Pad.apply(x, rows)
    weights = torch.randn(grid.shape, generator=generator)
    width, wanted = grid.shape[2] - own.width, torch.zeros_like(x)
    for row, parent in enumerate(parents):
        seen = slice(starts[parent], starts[parent] + lengths[parent])
        torch.testing.assert_close(grid[row, :, : lengths[parent]], x[seen].transpose(0, 1))
        wanted[seen] += weights[row, :, : lengths[parent]].transpose(0, 1)
        first = 10 + row * (row + 1) // 2
        wanted[first : first + row + 1] += weights[row, :, width : width + row + 1].transpose(0, 1)
    (found,) = torch.autograd.grad(grid, x, weights)
    torch.testing.assert_close(found, wanted)


def test_rectangles_hold_every_row_once_and_little_padding() -> None:
    """Over random lengths, drawn evenly on a logarithmic scale as real completions nearly are."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        count = int(generator.integers(1, 60))
        lengths, contexts = (np.exp(generator.uniform(0, 9, count)).astype(np.int64) for _ in range(2))
        parts = rectangles(lengths, contexts)
        assert sorted(np.concatenate(parts).tolist()) == list(range(count))
        for part in parts:
            size = len(part) * lengths[part].max() * (lengths[part].max() + contexts[part].max())
            real = int((lengths[part] * (lengths[part] + contexts[part])).sum())
            assert size <= max(1.5 * real, SMALL)
    assert rectangles(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)) == []
