"""`rlvr regrade RUN --verifier V`: judge the stored rollouts of a run again, and compare.

`command` reads the run, runs the verifier, and counts which verdicts and rewards differ.
"""

from .command import main

__all__ = ["main"]
