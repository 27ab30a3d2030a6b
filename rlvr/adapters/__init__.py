"""Verdicts of rlvr for other programs: trainers, evaluators, and environments of theirs.

`judge` makes what each adapter takes; the adapters are the modules of this package, named after what they adapt to.
Nothing of another program is imported before its adapter is used.
"""

from .judges import Judge, Unscored, judge, messages

__all__ = ["Judge", "Unscored", "judge", "messages"]
