"""Generalized advantage estimation: from token rewards and a critic's values to token advantages and returns."""

from __future__ import annotations

import torch
from torch import Tensor


def token_rewards(scores: Tensor, mask: Tensor, cost: Tensor | None = None) -> Tensor:
    """Return the rewards (B, T) of tokens: scores (B,) on each row's last masked token, minus a cost of each token.

    Scores (B, T) are those of tokens already: one off the mask counts for the last masked token before it, and not at
    all where there is none. The cost is the KL term where it is in the reward (InstructGPT, arXiv:2203.02155, eq. 2).
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    if scores.dim() == 2:
        latest = torch.where(mask, position, -1).cummax(-1).values
        held = torch.where(latest < 0, 0.0, scores.float())
        rewards = torch.zeros(mask.shape, device=mask.device).scatter_add(1, latest.clamp(min=0), held)
        return rewards * mask if cost is None else (rewards - cost) * mask
    last = (position * mask).argmax(-1, keepdim=True)
    rewards = torch.zeros(mask.shape, device=mask.device).scatter(1, last, scores.float().unsqueeze(-1))
    return rewards * mask if cost is None else (rewards - cost) * mask


def generalized_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Return GAE advantages (arXiv:1506.02438, eq. 16) and the returns A + V that the critic learns; 0 off the mask.

        delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lam A_{t+1}

    values[b, t] is the value of the state before token t. After a row's last masked token V and A are 0, even for a
    completion that was truncated at the token limit: the limit is part of the task, and the reward is for what was
    written, so nothing is bootstrapped from the rest.
    """
    steps = mask.shape[1]
    advantages = torch.zeros_like(values)
    following, future = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for t in reversed(range(steps)):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * following - values[:, t]
        future = torch.where(here, delta + gamma * lam * future, future)
        following = torch.where(here, values[:, t], following)
        advantages[:, t] = future
    advantages = advantages * mask
    return advantages, (advantages + values) * mask


def whiten_tokens(advantages: Tensor, mask: Tensor) -> Tensor:
    """Return (A - mean) / sqrt(var + 1e-8) over all masked tokens, var with Bessel's correction (as TRL and verl)."""
    values = advantages[mask]
    if len(values) < 2:
        return torch.zeros_like(advantages)
    return (advantages - values.mean()) * torch.rsqrt(values.var() + 1e-8) * mask


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """Return 1 - var(R - V) / var(R) over the masked tokens: 1 for a perfect critic, 0 for a constant one."""
    found, wanted = values[mask], returns[mask]
    spread = wanted.var(correction=0)
    return float(1 - (wanted - found).var(correction=0) / spread) if len(wanted) > 1 and spread > 1e-12 else 0.0
