"""Settings of the group `eval`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlvr.config.group import ADVANCED, Used
from rlvr.config.quantities import COUNT, COUNT_OR_NONE, MOST, POSITIVE_SHARE, Bound
from rlvr.config.run import WITH_EVALUATIONS
from rlvr.config.shared import Ks, PassKSettings, Samples

WITH_MONITOR = Used(lambda config: config.monitor is not None, "with --monitor NAME")
EVERY_SOME_STEPS = Used(lambda config: config.eval.every > 0, "with --eval.every 1 or more")


@dataclass(frozen=True)
class EvalConfig(PassKSettings):
    """Evaluation on held-out problems during training."""

    USES: ClassVar = dict.fromkeys(("samples", "k", "temperature", "threshold"), WITH_EVALUATIONS)

    every: Annotated[int, Bound(-1, MOST)] = 0
    """Steps between evaluations. 0: only before the first and after the last step. -1: never."""
    patience: Annotated[int, COUNT_OR_NONE, ADVANCED, EVERY_SOME_STEPS] = 0
    """Evaluations in a row without a better held-out pass@k, of the smallest k, that end the run. 0: never."""
    num_problems: Annotated[int, COUNT_OR_NONE, WITH_EVALUATIONS] = 128
    """Number of held-out problems, from the start of the test split."""
    samples: Samples = 8
    k: Ks = (1, 8)
    on_regression: Annotated[Literal["warn", "stop", "rollback"], WITH_EVALUATIONS] = "warn"
    """What to do where held-out pass@k, of the smallest k, falls below the start's 95 % interval: warn; stop after a
    checkpoint; or go back to the best checkpoint and on with a quarter of the learning rate (three times at most)."""
    top_p: Annotated[float, POSITIVE_SHARE, ADVANCED, WITH_EVALUATIONS] = 1.0
    """Nucleus sampling in evaluations. 1: off."""
    max_new_tokens: Annotated[int | None, COUNT, ADVANCED, WITH_EVALUATIONS] = None
    """Maximum number of tokens in a completion. None: as in rollouts."""
    verifier: Annotated[Literal["reward", "monitor"], WITH_MONITOR] = "reward"
    """Verifier that decides what is correct: that of the reward, or the monitor."""
