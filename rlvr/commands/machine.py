"""What a machine lacks for a run, as far as it shows without importing torch, which takes seconds."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path

from rlvr.config.model import EIGHT_BIT_EXTRA, OptimConfig

# The library that torch's CUDA builds load, and what the kernel shows of AMD's GPUs.
CUDA_DRIVER, ROCM = "libcuda.so.1", Path("/dev/kfd")


def check_device(name: str) -> None:
    """Raise ValueError for a kind of GPU without a driver here. torch finds what else is wrong (pick_device)."""
    kind = name.partition(":")[0]
    if kind == "cuda" and not has_cuda_driver():
        raise ValueError(f"device {name!r}: no CUDA GPU here (no driver, {CUDA_DRIVER}); use the device cpu, or auto")
    if kind == "mps" and sys.platform != "darwin":
        raise ValueError(f"device {name!r} is Apple's, and this is {sys.platform}; use the device cpu, or auto")


def has_cuda_driver() -> bool:
    """Return whether torch may find a GPU that it calls cuda: NVIDIA's driver loads, or AMD's is there."""
    if sys.platform != "linux":
        return True  # not known without torch
    try:
        ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return ROCM.exists()
    return True


def check_optimizer_extra(config: OptimConfig) -> None:
    """Raise ValueError, naming the extra, where the optimizer's package is not installed."""
    if config.name == "adamw8bit" and importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError(EIGHT_BIT_EXTRA)
