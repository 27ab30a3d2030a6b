"""Losses: ratio, clipping, KL estimators, normalization; DPO; the critic's loss. Tensors are (b, T) unless noted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rlvr.algo.algorithms import Algorithm, PolicyLoss
from rlvr.algo.batch import Batch


class LossSettings(Protocol):
    """The settings that the losses read; rlvr.config.AlgoSettings has them."""

    @property
    def row(self) -> Algorithm: ...
    @property
    def loss_row(self) -> PolicyLoss: ...
    @property
    def policy_loss(self) -> str: ...
    @property
    def clip_low(self) -> float: ...
    @property
    def clip_high(self) -> float: ...
    @property
    def dual_clip(self) -> float | None: ...
    @property
    def kl_coef(self) -> float: ...
    @property
    def kl_in(self) -> str: ...
    @property
    def estimator(self) -> str: ...
    @property
    def normalizer(self) -> str: ...
    @property
    def importance_cap(self) -> float: ...
    @property
    def beta(self) -> float: ...
    @property
    def desirable_weight(self) -> float: ...
    @property
    def undesirable_weight(self) -> float: ...
    @property
    def sapo_temperature_pos(self) -> float: ...
    @property
    def sapo_temperature_neg(self) -> float: ...
    @property
    def vespo_k_pos(self) -> float: ...
    @property
    def vespo_lambda_pos(self) -> float: ...
    @property
    def vespo_k_neg(self) -> float: ...
    @property
    def vespo_lambda_neg(self) -> float: ...


# exp(20) is 4.9e8. A larger ratio means a broken run; an infinity would spread to every weight.
MAX_LOG_RATIO = 20.0


def token_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return log(pi / pi_old) of each token."""
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) * mask


def gspo_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return the sequence's mean log ratio, on each of its tokens (GSPO, arXiv:2507.18071, eq. 7)."""
    lengths = mask.sum(-1, keepdim=True).clamp(min=1)
    mean = ((logprobs - old_logprobs) * mask).sum(-1, keepdim=True) / lengths
    return mean.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).expand_as(logprobs) * mask


def sequence_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return the sequence's summed log ratio, on each of its tokens: the ratio of RLOO (arXiv:2402.14740)."""
    total = ((logprobs - old_logprobs) * mask).sum(-1, keepdim=True)
    return total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).expand_as(logprobs) * mask


def clipped_surrogate(ratio: Tensor, advantages: Tensor, logprobs: Tensor, algo: LossSettings) -> Tensor:
    """Return PPO's clipped surrogate (arXiv:1707.06347, eq. 7) with separate clips (DAPO, arXiv:2503.14476), per token.

    advantages: (b, 1), or (b, T) with a critic. dual_clip: bound of the unclipped ratio (arXiv:1912.09729; TRL: delta).
    """
    clipped = ratio.clamp(1 - algo.clip_low, 1 + algo.clip_high)
    unclipped = ratio if algo.dual_clip is None else ratio.clamp(max=algo.dual_clip)
    return -torch.min(unclipped * advantages, clipped * advantages)


def cispo(ratio: Tensor, advantages: Tensor, logprobs: Tensor, algo: LossSettings) -> Tensor:
    """Return REINFORCE weighted by the clipped, detached ratio (CISPO, arXiv:2506.13585, eq. 4), per token.

    The cap is 1 + clip_high, as in verl; TRL's epsilon_high is the cap itself. clip_low 1 sets no lower bound.
    """
    weight = ratio.detach().clamp(1 - algo.clip_low, 1 + algo.clip_high)
    return -weight * advantages * logprobs


def sapo(ratio: Tensor, advantages: Tensor, logprobs: Tensor, algo: LossSettings) -> Tensor:
    """Return -(4 / tau) sigmoid(tau (ratio - 1)) A per token: a soft gate instead of the clip (SAPO, arXiv:2511.20347).

    tau is sapo_temperature_pos for A > 0, else sapo_temperature_neg. At ratio 1 the gradient is that of -ratio A.
    """
    tau = torch.where(advantages > 0, algo.sapo_temperature_pos, algo.sapo_temperature_neg)
    return -torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantages


def vespo(ratio: Tensor, advantages: Tensor, logprobs: Tensor, algo: LossSettings) -> Tensor:
    """Return REINFORCE weighted by phi(w) = w^k exp(lambda (1 - w)), detached, per token (VESPO, arXiv:2602.10693).

    w is the ratio of the whole completion, at least 1e-8; phi(1) is 1. k and lambda are vespo_k_pos and
    vespo_lambda_pos for A >= 0, else vespo_k_neg and vespo_lambda_neg.
    """
    weight = ratio.detach().clamp(min=1e-8)
    good = advantages >= 0
    k = torch.where(good, algo.vespo_k_pos, algo.vespo_k_neg)
    decay = torch.where(good, algo.vespo_lambda_pos, algo.vespo_lambda_neg)
    return -(k * weight.log() + decay * (1 - weight)).exp() * advantages * logprobs


def nll(ratio: Tensor, advantages: Tensor, logprobs: Tensor, algo: LossSettings) -> Tensor:
    """Return the negative log-likelihood weighted by the advantage, per token: RAFT's fine-tuning (arXiv:2304.06767).

    The ratio to the old policy does not enter; it only feeds the clip statistics.
    """
    return -advantages * logprobs


LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "clip": (token_log_ratio, clipped_surrogate),
    "gspo": (gspo_log_ratio, clipped_surrogate),
    "luspo": (gspo_log_ratio, clipped_surrogate),
    "sequence": (sequence_log_ratio, clipped_surrogate),
    "sapo": (token_log_ratio, sapo),
    "vespo": (sequence_log_ratio, vespo),
    "cispo": (token_log_ratio, cispo),
    "nll": (token_log_ratio, nll),
}


def k1(logprobs: Tensor, ref_logprobs: Tensor, ratio: Tensor) -> Tensor:
    """Return d = log pi - log ref, of either sign (http://joschu.net/blog/kl-approx.html): the estimator in the reward.

    Its value is unbiased, and as a cost in the reward its expected gradient is that of the reverse KL divergence
    KL(pi || ref) of whole completions. In the loss its expected gradient is zero: the config refuses it there.
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor, ratio: Tensor) -> Tensor:
    """Return d^2 / 2 with d = log pi - log ref: a biased value, with the right gradient in the loss.

    On policy its expected gradient is that of the reverse KL divergence KL(pi || ref) of each token given the sampled
    tokens before it. In further updates on the same rollouts that holds only nearly: their tokens are the old policy's.
    """
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor, ratio: Tensor) -> Tensor:
    """Return exp(-d) - 1 + d with d = log pi - log ref: an unbiased value, never negative (GRPO's).

    In the loss its expected gradient, on policy, is that of the forward KL divergence KL(ref || pi) of each token given
    the sampled tokens before it; near the reference forward and reverse agree.
    """
    difference = (ref_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(difference) - difference


def k3_is(logprobs: Tensor, ref_logprobs: Tensor, ratio: Tensor) -> Tensor:
    """Return k3 times the token's ratio to the policy that sampled it (TRL's use_bias_correction_kl).

    In the loss its expected gradient is that of the reverse KL divergence KL(pi || ref) of each token given the sampled
    tokens before it, in further updates on the same rollouts too. The ratio of a whole completion (gspo, sequence)
    would give another gradient: the config refuses it.
    """
    return ratio * k3(logprobs, ref_logprobs, ratio)


# The default (algo.kl_estimator auto) is k3 where the KL term is in the loss, and k1 where it is in the reward:
# `estimator` in rlvr/config/algo.py.
KL: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "k3_is": k3_is}


def importance_weights(old_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, kind: str, cap: float) -> Tensor:
    """Return truncated importance weights of the trainer's old policy against the sampler's, detached.

    token: min(w_t, cap); token_mask: w_t, or 0 where it is above the cap or below 1/cap (IcePop);
    sequence: min(prod_t w_t, cap) on each token; none: 1.
    """
    log_weight = ((old_logprobs - sampler_logprobs) * mask).detach()
    if kind == "none":
        return torch.ones_like(log_weight)
    if kind == "sequence":
        total = log_weight.sum(-1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return total.exp().clamp(max=cap).expand_as(log_weight)
    weight = log_weight.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if kind == "token":
        return weight.clamp(max=cap)
    return weight * ((weight <= cap) & (weight >= 1 / cap))


def loss_denominator(minibatch: Batch, normalize: str, max_new_tokens: int) -> float:
    """Return what the summed loss of a minibatch is divided by; see `token_weights`. For pairs, the number of pairs.

    It counts sampled rollouts, whether a row is computed or left out because its gradient is zero. token: the tokens of
    the completions that have a score and are not masked; sequence: the number of these completions (TRL counts the
    masked ones too); constant: the number of all completions, including unscored and masked ones (as in TRL), times
    max_new_tokens.
    """
    if minibatch.rows_per_pair > 1:
        return len(minibatch) / minibatch.rows_per_pair
    counts = minibatch.token_counts
    if normalize == "token":
        return float(sum(counts))
    return float(len(counts) * max_new_tokens if normalize == "constant" else sum(n > 0 for n in counts))


def token_weights(mask: Tensor, normalize: str, denominator: float) -> Tensor:
    """Return the weight of each token in the loss. Weighted sums over the microbatches add up to the minibatch mean.

    token: 1 / tokens (DAPO); sequence: 1 / (length * sequences) (GRPO); sum: 1 / sequences (LUSPO, arXiv:2602.05261);
    constant: 1 / (sequences * max_new_tokens) (Dr. GRPO). What is counted: `loss_denominator`.
    """
    weights = mask / max(denominator, 1.0)
    return weights / mask.sum(-1, keepdim=True).clamp(min=1) if normalize == "sequence" else weights


def policy_loss(
    logprobs: Tensor, batch: Batch, algo: LossSettings, denominator: float, importance: str = "none"
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a microbatch, a scalar, and the sums over its tokens for the log.

    denominator: `loss_denominator` of the whole minibatch, so that microbatches add up exactly. Old logprobs are None
    where the batch gets a single update: the present logprobs, detached, are the old ones.
    """
    mask = batch.mask
    old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    log_ratio, surrogate = LOSSES[algo.policy_loss]
    weights = importance_weights(old, batch.sampler_logprobs, mask, importance, algo.importance_cap)
    # The ratio to the sampling engine is the ratio to pi_old times the weights.
    inside = weights.clamp(min=1e-8).log() if algo.loss_row.weights_in_ratio else 0.0
    ratio = log_ratio(logprobs + inside, old, mask).exp()
    advantages = batch.advantages if batch.advantages.dim() == 2 else batch.advantages.unsqueeze(-1)
    per_token = surrogate(ratio, advantages, logprobs, algo)
    per_token = per_token if algo.loss_row.weights_in_ratio else per_token * weights
    stats = {
        "clip_low": ((ratio < 1 - algo.clip_low) & (advantages < 0) & mask).sum(),
        "clip_high": ((ratio > 1 + algo.clip_high) & (advantages > 0) & mask).sum(),
        "importance": (weights * mask).sum(),
        "importance_clipped": ((weights != 1) & ((weights >= algo.importance_cap) | (weights == 0)) & mask).sum(),
    }
    if batch.ref_logprobs is not None:
        # The ratio to the sampling engine: pi / pi_old of the trainer, times pi_old / pi_sampler.
        kl = KL[algo.estimator](logprobs, batch.ref_logprobs, ratio * weights)
        stats["kl"] = (kl.detach() * mask).sum()
        if algo.kl_in == "loss":
            per_token = per_token + algo.kl_coef * kl
    loss = (per_token * token_weights(mask, algo.normalizer, denominator)).sum()
    return loss, stats


def dpo_loss(
    logprobs: Tensor, batch: Batch, algo: LossSettings, denominator: float, importance: str = "none"
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -log sigmoid(beta ((log pi/ref)(chosen) - (log pi/ref)(rejected))), a scalar (arXiv:2305.18290, eq. 7).

    Rows 2i and 2i + 1 are a pair, whose advantages +1 and -1 mark the chosen and the rejected one. Log-probabilities
    are summed over the completion. denominator: the number of pairs of the whole minibatch. The sums for the log:
    margin is the argument of the sigmoid, accuracy counts the pairs where it is positive.
    """
    assert batch.ref_logprobs is not None
    gain = algo.beta * ((logprobs - batch.ref_logprobs) * batch.mask).sum(-1)  # (b,)
    margin = (gain * batch.advantages).view(-1, 2).sum(-1)
    loss = -logsigmoid(margin).sum() / max(denominator, 1.0)
    gain, margin = gain.detach(), margin.detach()
    return loss, {
        "dpo/pairs": torch.tensor(float(len(margin)), device=margin.device),
        "dpo/margin": margin.sum(),
        "dpo/accuracy": (margin > 0).sum(),
        "dpo/chosen": (gain * (batch.advantages > 0)).sum(),
        "dpo/rejected": (gain * (batch.advantages < 0)).sum(),
    }


def kto_loss(
    logprobs: Tensor, batch: Batch, algo: LossSettings, denominator: float, importance: str = "none"
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of w (1 - sigmoid(beta s (g - z))), a scalar (KTO, arXiv:2402.01306, eq. 7 and 8).

    g is log pi/ref of a completion, summed; s is its advantage: +1 for a good one, whose weight w is desirable_weight,
    -1 for a bad one, with undesirable_weight. z is `batch.kl` (b,), an estimate of the KL divergence, without a
    gradient. denominator: the number of completions of the whole minibatch. The sums for the log: the rewards beta g of
    the good and of the bad ones, and how many there are.
    """
    assert batch.ref_logprobs is not None
    assert batch.kl is not None
    gain = ((logprobs - batch.ref_logprobs) * batch.mask).sum(-1)  # (b,)
    good = batch.advantages > 0
    weight = torch.where(good, algo.desirable_weight, algo.undesirable_weight)
    value = torch.sigmoid(algo.beta * batch.advantages * (gain - batch.kl))
    loss = (weight * (1 - value)).sum() / max(denominator, 1.0)
    rewards = algo.beta * gain.detach()
    return loss, {
        "kto/rows": torch.tensor(float(len(gain)), device=gain.device),
        "kto/kl": batch.kl.sum(),
        "kto/good": good.sum(),
        "kto/desirable": (rewards * good).sum(),
        "kto/undesirable": (rewards * ~good).sum(),
    }


PREFERENCES = {"dpo": dpo_loss, "kto": kto_loss}  # losses of whole completions against a reference


def batch_loss(
    logprobs: Tensor, batch: Batch, algo: LossSettings, denominator: float, importance: str = "none"
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the configured loss of a microbatch, and its sums for the log: a policy loss, or one of PREFERENCES."""
    return PREFERENCES.get(algo.policy_loss, policy_loss)(logprobs, batch, algo, denominator, importance)


def value_loss(values: Tensor, batch: Batch, clip: float | None, denominator: float) -> tuple[Tensor, Tensor]:
    """Return 1/2 mean of max((V - R)^2, (V' - R)^2), a scalar; V' is V clipped to within `clip` of the old value.

    As in OpenAI's baselines, TRL and verl. denominator: the token count of the whole minibatch. Also returns the share
    of tokens whose value was clipped.
    """
    assert batch.values is not None
    assert batch.returns is not None
    error = (values - batch.returns).square()
    clipped = torch.zeros_like(batch.mask)
    if clip is not None:
        near = (values.clamp(batch.values - clip, batch.values + clip) - batch.returns).square()
        clipped = (near > error) & batch.mask
        error = torch.max(error, near)
    total = max(denominator, 1.0)
    return 0.5 * (error * batch.mask).sum() / total, clipped.sum() / total
