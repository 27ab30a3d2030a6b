"""`rlvr rm RECIPE`: train a reward model on preference pairs.

`command` reads settings, names and files without torch; `training` samples pairs, trains, and measures.
"""

from rlvr.commands.rm.command import main

__all__ = ["main"]
