"""`python -m rlvr` is `rlvr`."""

import sys

from rlvr.commands.cli import main

sys.exit(main())
