"""Verdicts of rlvr for other programs: trainers, evaluators, and environments of theirs.

`judge` makes what each adapter takes; the adapters are the modules of this package, named after what they adapt to.
Nothing of another program is imported before its adapter is used.
"""

from rlvr.adapters.judging import Judge, Unscored, judge
from rlvr.adapters.spoken import messages

__all__ = ["Judge", "Unscored", "judge", "messages"]
