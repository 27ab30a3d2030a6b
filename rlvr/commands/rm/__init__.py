"""`rlvr rm RECIPE`: train reward models on preference pairs.

`command` reads the command line, `launch` checks settings, names and files without torch, `training` samples pairs,
trains and measures, `folder` is the run's folder.
"""

from rlvr.commands.rm.command import main

__all__ = ["main"]
