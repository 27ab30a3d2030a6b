"""Distillation: how far the policy's next-token distributions are from a teacher's, and the gradient of that.

Both forms are losses of tokens given the sampled tokens before them: no gradient goes through the sampling of these
(GKD, arXiv:2306.13649, section 3.1). Which one a run uses is `--teacher.loss`.

The full form needs no importance weights: given the tokens before, the divergence is a function of the present policy.
"""

from __future__ import annotations

import torch
from torch import Tensor

FULL = -1e-7  # log of the largest mass of a part of the vocabulary: its rest must have a logarithm, too


def sampled_reverse_kl(logprobs: Tensor, teacher_logprobs: Tensor, weights: Tensor) -> Tensor:
    """Return w (log pi - log teacher) log pi, the bracket and w detached: policy gradient of the reverse KL, (b, T).

    The advantage of a sampled token is log teacher - log pi (MiniLLM's single-step part, arXiv:2306.08543; SDPO,
    arXiv:2601.20802). weights: pi over the policy that sampled. With them uncapped the expected gradient is that of
    KL(pi || teacher) of each token, also after the policy has moved. The value is no divergence.
    """
    return weights.detach() * (logprobs - teacher_logprobs).detach() * logprobs


def generalized_js(policy: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Return beta KL(teacher || m) + (1 - beta) KL(policy || m), m = beta teacher + (1 - beta) policy, (n,).

    The generalised Jensen-Shannon divergence of GKD (arXiv:2306.13649, eq. 1). policy, teacher: log-probabilities
    (n, V) that sum to 1. beta 0 is the forward KL(teacher || policy), 1 the reverse KL(policy || teacher), as in TRL:
    the limits of the formula over beta (1 - beta), so that its gradient does not vanish.
    """
    if beta == 0:
        return kl(teacher, policy)
    if beta == 1:
        return kl(policy, teacher)
    share = torch.tensor(beta, dtype=policy.dtype, device=policy.device)
    mixed = torch.logaddexp(policy + torch.log1p(-share), teacher + torch.log(share))
    return beta * kl(teacher, mixed) + (1 - beta) * kl(policy, mixed)


def kl(one: Tensor, other: Tensor) -> Tensor:
    """Return KL(one || other) of log-probabilities (n, V), (n,)."""
    return (one.exp() * (one - other)).sum(-1)


def with_rest(logprobs: Tensor) -> Tensor:
    """Return log-probabilities (n, k) of some tokens with that of all others as one more, (n, k + 1)."""
    mass = logprobs.logsumexp(-1, keepdim=True).clamp(max=FULL)
    return torch.cat([logprobs, torch.log(-torch.expm1(mass))], dim=-1)


def entropy(logprobs: Tensor) -> Tensor:
    """Return the entropy (n,) of log-probabilities (n, V), in nats."""
    return -(logprobs.exp() * logprobs).sum(-1)
