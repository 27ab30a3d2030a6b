"""The difference between the logprobs of the sampler's engine and of the trainer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlvr.model.health import python_warning

QUANTILES = {"p01": 0.01, "p50": 0.5, "p99": 0.99}
MAX_VALUES = 2**24  # torch.quantile takes no more


def mismatch(difference: Tensor) -> dict[str, float]:
    """Return metrics of `difference` (n,): log pi_trainer - log pi_sampler of the sampled tokens, at equal weights.

    Its mean and largest absolute value; quantiles of the ratio exp(difference); and the effective sample size
    (sum w)^2 / (n sum w^2) of the ratios as a share: 1 where both agree.
    """
    difference = difference.double()
    ratio = difference.clamp(-20, 20).exp()
    probabilities = torch.tensor(list(QUANTILES.values()), dtype=ratio.dtype, device=ratio.device)
    quantiles = ratio[:MAX_VALUES].quantile(probabilities).tolist()
    return {
        "mismatch/mean": float(difference.abs().mean()),
        "mismatch/max": float(difference.abs().max()),
        **{f"mismatch/ratio_{name}": value for name, value in zip(QUANTILES, quantiles)},
        "mismatch/effective_samples": float(ratio.sum() ** 2 / (len(ratio) * ratio.square().sum())),
    }


WHAT_TO_DO = {"torch": "compute in float32 (--model.dtype float32)"}


def warn_of_mismatch(
    stats: dict[str, float],
    step: int,
    bound: float,
    staleness: int = 0,
    sampler: str = "vllm",
    warn: Callable[[str], None] = python_warning,
) -> None:
    """Warn where the mean difference exceeds the bound: stale weights, or an engine that computes something else.

    Rollouts with a policy lag of `staleness` steps also differ by what the trainer has learned since: the bound is
    multiplied by 1 + staleness.
    """
    bound *= 1 + staleness
    if stats["mismatch/mean"] > bound:
        warn(
            f"step {step}: logprobs of sampler and trainer differ by {stats['mismatch/mean']:.3g} on average (largest "
            f"{stats['mismatch/max']:.3g}; bound {bound:g}, --sampler.mismatch-alarm); "
            + WHAT_TO_DO.get(sampler, "`rlvr doctor --model M` checks whether they agree")
        )
