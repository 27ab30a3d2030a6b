"""`rlvr regrade RUN --verifier V`: judge the stored rollouts of a run again, and compare.

`command` reads the run and runs the verifier; `changes` counts which verdicts, rewards and advantages differ.
"""

from .command import main

__all__ = ["main"]
