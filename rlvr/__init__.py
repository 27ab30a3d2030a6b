"""rlvr: reinforcement learning with verifiable rewards."""

from rlvr.core.registry import register, register_environment, register_task
from rlvr.core.types import Completion, Problem, Reply, Status, Task, Verdict

__version__ = "0.1.0"

__all__ = [
    "Completion",
    "Problem",
    "Reply",
    "Status",
    "Task",
    "Verdict",
    "register",
    "register_environment",
    "register_task",
]
