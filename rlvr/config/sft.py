"""Settings of the group `sft`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rlvr.config.group import ADVANCED, Group, Used
from rlvr.config.quantities import COUNT, COUNT_OR_NONE, LEARNING_RATE

WITH_SFT = Used(lambda config: config.sft.steps > 0, "with --sft.steps above 0")
WITH_DEMONSTRATIONS = Used(
    lambda config: config.sft.steps > 0 or config.algo.ptx_coef > 0, "with --sft.steps or --algo.ptx-coef above 0"
)


@dataclass(frozen=True)
class SFTConfig(Group):
    """Supervised fine-tuning on demonstrations before RL (`rlvr sft` does only this)."""

    steps: Annotated[int, COUNT_OR_NONE] = 0
    """Optimizer steps. 0: no fine-tuning."""
    batch_size: Annotated[int, COUNT, WITH_SFT] = 64
    """Demonstrations per step."""
    lr: Annotated[float, LEARNING_RATE, WITH_SFT] = 3e-3
    """Peak learning rate; decays to zero on a cosine."""
    warmup_steps: Annotated[int, COUNT_OR_NONE, ADVANCED, WITH_SFT] = 10
    """Steps of linear warm-up."""
    save_every: Annotated[int, COUNT_OR_NONE, ADVANCED, WITH_SFT] = 100
    """Steps between checkpoints of the fine-tuning, from which the same command goes on; they are deleted when it is
    complete. 0: only where a signal ends it."""
    data: Annotated[Path | None, WITH_DEMONSTRATIONS] = None
    """JSON Lines file with prompt and completion (texts or chat messages) to use instead of the pack's
    demonstrations."""
