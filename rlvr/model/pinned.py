"""Page-locked memory of the CPU for many tensors.

torch rounds each page-locked allocation up to a power of two: for the optimizer's state of a 7B model, tensor by
tensor, that is nearly twice the bytes. Slabs of such sizes leave over only what no tensor fits into, about a tenth.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SMALLEST, LARGEST = 2**26, 2**32  # bytes of a slab, unless a tensor is larger
ALIGNED = 256  # bytes at a multiple of which a tensor begins


def page_locked(size: int) -> Tensor:
    """Return so many bytes of page-locked memory. Raises RuntimeError where torch finds no GPU."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class Slabs:
    """Tensors cut out of slabs of memory. A slab is as large as all before it together, within SMALLEST and LARGEST.

    make: returns a slab of so many bytes. slabs: each with the bytes of it that are used.
    """

    def __init__(self, make: Callable[[int], Tensor] = page_locked) -> None:
        self.make = make
        self.slabs: list[tuple[Tensor, int]] = []

    @property
    def total(self) -> int:
        """The bytes of all slabs."""
        return sum(len(slab) for slab, _ in self.slabs)

    def cut(self, like: Tensor) -> Tensor:
        """Return memory for a tensor of this dtype and shape, from the first slab that has room; its values are any."""
        size = like.numel() * like.element_size()
        taken = -(-size // ALIGNED) * ALIGNED
        number = next((i for i, (slab, used) in enumerate(self.slabs) if used + taken <= len(slab)), len(self.slabs))
        if number == len(self.slabs):
            wanted = max(taken, SMALLEST, min(self.total, LARGEST))
            self.slabs.append((self.make(1 << (wanted - 1).bit_length()), 0))
        slab, used = self.slabs[number]
        self.slabs[number] = slab, used + taken
        return slab[used : used + size].view(like.dtype).view(like.shape)

    def clear(self) -> None:
        """Let go of all slabs: their memory is free when the tensors are gone that were cut out of them."""
        self.slabs.clear()
