"""Which warnings are errors on a GPU; the time when it has done its work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pytest
import torch

Measured = Callable[[str, str], None]

# torch's compiler, Triton and drivers warn of what there is only on a GPU (inductor: that TF32 is off). As an error
# such a warning ends the trial of a kernel, and with it the test. Those of rlvr itself stay errors.
WARNINGS = ("default", r"error:::rlvr\..*")


def tolerate_warnings(items: Iterable[pytest.Item]) -> None:
    """Make warnings errors only where rlvr raises them; a test's own filters still come after these."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings(*WARNINGS), append=False)


def now(device: torch.device) -> float:
    """Return the time when the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
