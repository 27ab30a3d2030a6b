"""Copies from the CPU to the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def copy_to(value: Tensor | np.ndarray[Any, Any], device: torch.device | str) -> Tensor:
    """Return a tensor or array on a device; on the CPU it is not copied.

    To a GPU it goes through pinned memory, and the CPU does not wait for the copy.
    """
    value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    if value.device.type == "cpu" and torch.device(device).type == "cuda":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)
