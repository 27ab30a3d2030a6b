"""The page of runs: `rlvr report` writes it as one file, `rlvr view` serves it while the runs train, `rlvr compare`
writes it of several runs.

`page` puts it together, `content` is what it says of a run, `rollouts` its rollouts; page.js draws all of it, with the
plotting library in uplot/.
"""

from .page import main

__all__ = ["main"]
