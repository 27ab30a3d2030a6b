"""Which of several equal computations is the fastest on this machine's CPU, with how many threads. By torch 2.13.

Three kinds differ: those with AMX (Intel since Sapphire Rapids), those that only have the bfloat16 instructions of
AVX-512 (AMD since Zen 4), and those with neither, where bfloat16 products are computed in float32. The choice follows
from what the processor has, never from a measurement at the start of a run: a resumed run has to compute the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

# Scores up to which a softmax of bfloat16 is slower than one of float32, without AMX.
SMALL_SOFTMAX = 3 * 2**20
# Below this many weights, the operations of a decoding step end before a second thread wakes up.
ONE_THREAD_BELOW = 4_000_000
# The bytes that an operation of a decoding step reads from which a second thread is worth waking up.
SEVERAL_THREADS_FROM = 2**23
# An error of a float32 matmul that rounding to float32 explains; to bfloat16 it is a hundred times as large.
PLAIN_ERROR = 1e-5


@cache
def has_amx() -> bool:
    """Return whether the CPU multiplies tiles of bfloat16."""
    return torch.cpu._is_amx_tile_supported()


@cache
def has_bfloat16() -> bool:
    """Return whether the CPU has instructions for products of bfloat16."""
    return has_amx() or torch.cpu._is_avx512_bf16_supported()


def decodes_fused(queries: int) -> bool:
    """Return whether attention of one new token in bfloat16 is faster as one call of torch's flash kernel.

    queries: the heads that share keys. Without AMX two products and a softmax take a sixth to four fifths of its time;
    where bfloat16 is emulated that holds only for heads that share no keys.
    """
    return has_amx() or (queries > 1 and not has_bfloat16())


def puts_keys_first() -> bool:
    """Return whether bfloat16 scores of few queries are faster as keys times queries, (L, D) x (D, R).

    It takes half the time with AMX, and 1.1 to 2.2 times the time without.
    """
    return has_amx()


def rows_with_weights_first() -> range:
    """Return the numbers of rows n for which (W x^T)^T is faster than x W^T in bfloat16, x (n, in)."""
    if has_amx():
        return range(1, 129)
    return range(16, 129) if has_bfloat16() else range(0)


def packs_weights() -> bool:
    """Return whether linear layers in bfloat16 are faster with weights in the order in which oneDNN reads them."""
    return has_bfloat16() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def softmax_dtype(scores: torch.Tensor) -> torch.dtype:
    """Return the dtype in which the softmax of attention scores is the fastest.

    On an AMD EPYC one of few bfloat16 scores takes three to five times as long in bfloat16, and one of many a fifth.
    """
    slow = scores.device.type == "cpu" and has_bfloat16() and not has_amx()
    return torch.float32 if slow and scores.numel() <= SMALL_SOFTMAX else scores.dtype


@contextmanager
def use_one_thread_if_small(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Context in which a small model on a CPU decodes with one thread: measured a third faster than two."""
    small = sum(weight.numel() for weight in model.parameters()) < ONE_THREAD_BELOW
    with use_threads(0 if small else SEVERAL_THREADS_FROM, device):
        yield


@contextmanager
def use_threads(nbytes: float, device: torch.device) -> Iterator[None]:
    """Context with one thread for CPU operations that read few bytes each: waking another thread takes longer."""
    threads = torch.get_num_threads()
    if threads == 1 or nbytes >= SEVERAL_THREADS_FROM or device.type != "cpu":
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def tuned_cpu() -> Iterator[None]:
    """Context with the settings of `tune_cpu`; torch's own are restored, since a program may do more than a run."""
    before = torch.get_float32_matmul_precision()
    tune_cpu()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def tune_cpu() -> None:
    """Choose matmul settings for a run on a CPU; they are global, so no library function calls this.

    "medium" lets oneDNN do float32 matmuls, about twice as fast on some CPUs with AVX-512, with an error near that of
    plain float32. Where that is not so, nothing is changed: CPUs with AMX would round the factors to bfloat16 (which
    the product of two matrices shows), GPUs to TF32. "medium" also makes torch's CPU flash attention in float32
    several times slower; rlvr.model.cpu.attention does not call it then.
    """
    if torch.cuda.is_available():
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    if matmul_error() > PLAIN_ERROR:
        torch.set_float32_matmul_precision(before)


def matmul_error() -> float:
    """Return the largest error of a float32 product of matrices on the CPU, relative to its largest number."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    return float((a @ b - exact).abs().max() / exact.abs().max())
