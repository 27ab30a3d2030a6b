"""Which of several equal computations is the fastest on this machine's processor. Measured with torch 2.13.

Three kinds differ: those with AMX (Intel since Sapphire Rapids), those that only have the bfloat16 instructions of
AVX-512 (AMD since Zen 4), and those with neither, where bfloat16 products are computed in float32. The choice follows
from what the processor has, never from a measurement at the start of a run: a resumed run has to compute the same bits.
"""

from __future__ import annotations

from functools import cache

import torch

# Scores up to which a softmax of bfloat16 is slower than one of float32, without AMX.
SMALL_SOFTMAX = 3 * 2**20


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


def takes_few_columns(columns: int) -> bool:
    """Return whether a bfloat16 product of weights with so few columns is fast: W x, x (in, columns).

    Without AMX one with 2 to 15 takes 1.2 to 3 times as long as x^T W^T.
    """
    return has_amx() or columns >= 16


def softmax_dtype(scores: torch.Tensor) -> torch.dtype:
    """Return the dtype in which the softmax of attention scores is the fastest.

    On an AMD EPYC one of few bfloat16 scores takes three to five times as long in bfloat16, and one of many a fifth.
    """
    slow = scores.device.type == "cpu" and has_bfloat16() and not has_amx()
    return torch.float32 if slow and scores.numel() <= SMALL_SOFTMAX else scores.dtype
