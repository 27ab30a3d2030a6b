"""`rlvr report RUN`: curves, tables and rollouts of a run in one HTML file.

`page` writes report.html with the rollouts that report.js browses, `curves` draws curves.png. `compare` is
`rlvr compare`: several runs in one figure and one table.
"""

from .page import main

__all__ = ["main"]
