"""The pipelines of the recipes, cut down to seconds: settings for `--set`."""

from __future__ import annotations

from tests.helpers.files import GOLDEN

ANSWERED = "num_train=24 num_test=1 num_demonstrations=1"


def _read() -> dict[str, tuple[str, ...]]:
    """Return the settings of each recipe: a block of lines below its name."""
    found = {}
    for block in (GOLDEN / "quick_pipelines.txt").read_text(encoding="utf-8").split("\n\n"):
        name, *settings = block.strip().split("\n")
        found[name.removeprefix("# ")] = tuple(settings)
    return found


QUICK = _read()
