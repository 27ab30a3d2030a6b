"""`rlvr watch RUN`: a run's figures and rollouts in the terminal.

`state` follows the files of the run; `view` turns them into text and has the command.
"""

from .view import main

__all__ = ["main"]
