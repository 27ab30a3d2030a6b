"""How many processor cores there are to use."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")


def count_cores() -> int:
    """Return how many cores this process may keep busy: its affinity, the cgroup's quota, of ranks its part of both."""
    quota = cpu_quota()
    cores = bound_cores() if quota is None else min(bound_cores(), math.ceil(quota))
    return max(cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)


def bound_cores() -> int:
    """Return the cores of this process's affinity; where there is none, those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota() -> float | None:
    """Return the cores that the cgroup's cpu.max ("QUOTA PERIOD", or "max PERIOD") allows; None: no limit."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = QUOTA.read_text().split()
        return int(quota) / int(period)
    return None
