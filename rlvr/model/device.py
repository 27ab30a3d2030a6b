"""Device, dtype, threads, and the matmul settings of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Below this many weights, the operations of a decoding step end before a second thread wakes up.
ONE_THREAD_BELOW = 4_000_000
# The bytes that an operation of a decoding step reads from which a second thread is worth waking up.
SEVERAL_THREADS_FROM = 2**23
# An error of a float32 matmul that rounding to float32 explains; to bfloat16 it is a hundred times as large.
PLAIN_ERROR = 1e-5


def pick_device(name: str = "auto") -> torch.device:
    """Return the device. `auto`: cuda, else mps, else cpu. ValueError for one that this machine does not have."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r}: expected auto, cpu, cuda, cuda:1 or mps") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: torch finds no CUDA GPU here; use --model.device cpu")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of the computation. `auto`: bfloat16 on a GPU that has it, else float32."""
    if name == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_bf16 else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


@contextmanager
def decoding_threads(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Use one thread within for a small model on the CPU: measured a third faster than two."""
    threads = torch.get_num_threads()
    small = device.type == "cpu" and sum(weight.numel() for weight in model.parameters()) < ONE_THREAD_BELOW
    try:
        if small and threads > 1:
            torch.set_num_threads(1)
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextmanager
def threads_for(nbytes: float, device: torch.device) -> Iterator[None]:
    """Use one thread within for operations on a CPU that read so few bytes each: waking up another takes longer."""
    threads = torch.get_num_threads()
    if threads == 1 or nbytes >= SEVERAL_THREADS_FROM or device.type != "cpu":
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def tune_cpu() -> None:
    """Choose matmul settings for a command-line run on a CPU; they are global, so no library function calls this.

    "medium" lets oneDNN do float32 matmuls, which makes them about twice as fast on some CPUs with AVX-512, with an
    error near that of plain float32. CPUs with AMX round the factors to bfloat16 then, which is not what float32 says:
    there, as the product of two matrices shows, nothing is changed. "medium" also makes torch's CPU flash attention
    in float32 several times slower, which is why rlvr.model multiplies matrices itself then, and for short rows. On a
    GPU it would round float32 matmuls to TF32: where there is one, nothing is changed.
    """
    if torch.cuda.is_available():
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    if matmul_error() > PLAIN_ERROR:
        torch.set_float32_matmul_precision(before)


@contextmanager
def tuned_cpu() -> Iterator[None]:
    """Have the settings of `tune_cpu` within, and torch's as they were afterwards: a program may do more than a run."""
    before = torch.get_float32_matmul_precision()
    tune_cpu()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def matmul_error() -> float:
    """Return the largest error of a float32 product of matrices on the CPU, relative to its largest number."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    return float((a @ b - exact).abs().max() / exact.abs().max())
