"""How far the updates of a step move the policy: KL(before || after) per token, on the step's own tokens.

From pass rates near zero a learning rate that is right for a better policy ruins it in its first update. The rewards
show that only in the next step; this shows it at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlvr.algo.batch import Batch
from rlvr.algo.losses import k3
from rlvr.distributed import sum_stats
from rlvr.model.logprobs import token_logprobs
from rlvr.training.learner import Learner

# The share of a process's tokens that is computed once more after the last update of a step.
SHARE = 1 / 16


def kl_sum(before: Tensor, after: Tensor, mask: Tensor) -> Tensor:
    """Return the sum over tokens of the k3 estimate of KL(before || after), a scalar.

    before, after: logprobs (b, T) of tokens that the policy before has drawn.
    """
    return (k3(before, after, torch.ones_like(after)) * mask).sum()


class UpdateSize:
    """Measures a step. `keep` gets the logprobs of this process's microbatches before the step's only update."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.sample: tuple[Batch, Tensor] | None = None

    def keep(self, micro: Batch, logprobs: Tensor, tokens: int) -> None:
        """Keep rows of the first microbatch, so many that they hold SHARE of `tokens`, and at least one.

        logprobs (b, T): of the microbatch. They are those before the step, where it has no old logprobs.
        """
        if self.sample is None:
            before = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
            counts = micro.scored.sum(-1).cumsum(0)
            rows = torch.arange(max(int((counts <= SHARE * tokens).sum()), 1))
            part = micro.rows(rows)
            self.sample = part, before[: len(rows), : part.tokens.shape[1]]

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return {"update_kl"}, empty where nothing was trained on. All processes must call this."""
        learner, device = self.learner, self.learner.policy.device
        sums = {"kl": 0.0, "tokens": 0.0}
        if self.sample is not None:
            batch, before = self.sample
            after, _ = token_logprobs(
                learner.policy, batch.tokens, batch.scored, temperature=learner.config.rollout.temperature
            )
            sums = {"kl": float(kl_sum(before, after.float(), batch.mask)), "tokens": float(batch.mask.sum())}
        sums = sum_stats(sums, learner.accelerator, device)
        return {"update_kl": sums["kl"] / sums["tokens"]} if sums["tokens"] else {}


def warn_of_update(stats: dict[str, float], step: int, bound: float, warn: Callable[[str], None]) -> None:
    """Warn where a step (from 1) has moved the policy further than the bound, or left updates out at it."""
    kl, left_out = stats.get("update_kl", 0.0), int(stats.get("left_out_updates", 0))
    if not bound or (kl <= bound and not left_out):
        return
    what = f"; {left_out} of its updates were left out" if left_out else ""
    warn(
        f"step {step}: the updates moved the policy by a KL of {kl:.3g} a token (bound {bound:g}, "
        f"--optim.max-update-kl){what}; if rewards fall now, lower --optim.lr or add --optim.warmup-steps"
    )
