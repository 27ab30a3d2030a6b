"""Losses: ratios, clipping, KL estimators, normalization; DPO and KTO; the critic's. Tensors are (b, T) unless noted.

A loss is a function and its row in LOSSES. Its keyword-only arguments are settings: `--algo.sapo-temperature-pos` is
the argument `sapo_temperature_pos` of `sapo`, read only where that loss is chosen. So a new loss touches two places:

1. here, the function with its row;
2. for a setting of its own, a field of `AlgoConfig` in rlvr/config/algo.py, marked READ_BY_LOSS.

Importing this module does not import torch: the settings read LOSSES, and `--help` must be fast. The functions
therefore use methods of tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from .batch import Batch

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


def choose(condition: Tensor, yes: float, no: float) -> Tensor:
    """Return `yes` where the condition holds, else `no`: torch.where of two numbers, in float32."""
    return condition.float().fill_(no).masked_fill(condition, yes)


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None
) -> Tensor:
    """Return PPO's clipped surrogate (arXiv:1707.06347, eq. 7) with separate clips (DAPO, arXiv:2503.14476), per token.

    advantages: (b, 1), or (b, T) with a critic. dual_clip: bound of the unclipped ratio (arXiv:1912.09729; TRL: delta).
    """
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    unclipped = ratio if dual_clip is None else ratio.clamp(max=dual_clip)
    return -(unclipped * advantages).minimum(clipped * advantages)


def cispo(ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Return REINFORCE weighted by the clipped, detached ratio (CISPO, arXiv:2506.13585, eq. 4), per token.

    The cap is 1 + clip_high, as in verl; TRL's epsilon_high is the cap itself. clip_low 1 sets no lower bound.
    """
    weight = ratio.detach().clamp(1 - clip_low, 1 + clip_high)
    return -weight * advantages * logprobs


def sapo(
    ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, sapo_temperature_pos: float, sapo_temperature_neg: float
) -> Tensor:
    """Return -(4 / tau) sigmoid(tau (ratio - 1)) A per token: a soft gate instead of the clip (SAPO, arXiv:2511.20347).

    tau is sapo_temperature_pos for A > 0, else sapo_temperature_neg. At ratio 1 the gradient is that of -ratio A.
    """
    tau = choose(advantages > 0, sapo_temperature_pos, sapo_temperature_neg)
    return -(tau * (ratio - 1)).sigmoid() * 4 / tau * advantages


def vespo(
    ratio: Tensor,
    advantages: Tensor,
    logprobs: Tensor,
    *,
    vespo_k_pos: float,
    vespo_lambda_pos: float,
    vespo_k_neg: float,
    vespo_lambda_neg: float,
) -> Tensor:
    """Return REINFORCE weighted by phi(w) = w^k exp(lambda (1 - w)), detached, per token (VESPO, arXiv:2602.10693).

    w is the ratio of the whole completion, at least 1e-8; phi(1) is 1. k and lambda are vespo_k_pos and
    vespo_lambda_pos for A >= 0, else vespo_k_neg and vespo_lambda_neg.
    """
    weight = ratio.detach().clamp(min=1e-8)
    good = advantages >= 0
    k = choose(good, vespo_k_pos, vespo_k_neg)
    decay = choose(good, vespo_lambda_pos, vespo_lambda_neg)
    return -(k * weight.log() + decay * (1 - weight)).exp() * advantages * logprobs


def nll(ratio: Tensor, advantages: Tensor, logprobs: Tensor) -> Tensor:
    """Return the negative log-likelihood weighted by the advantage, per token: RAFT's fine-tuning (arXiv:2304.06767).

    The ratio to the old policy does not enter; it only feeds the clip statistics.
    """
    return -advantages * logprobs


def k1(logprobs: Tensor, ref_logprobs: Tensor, ratio: Tensor) -> Tensor:
    """Return d = log pi - log ref, of either sign (http://joschu.net/blog/kl-approx.html): the estimator in the reward.

    Its value is unbiased, and as a cost in the reward its expected gradient is that of the reverse KL divergence
    KL(pi || ref) of whole completions. In the loss its expected gradient is zero: the config refuses it there.
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor, ratio: Tensor) -> Tensor:
    """Return d^2 / 2 with d = log pi - log ref: a biased value, with the right gradient in the loss.

    On policy its expected gradient is that of the reverse KL divergence KL(pi || ref) of each token given the sampled
    tokens before it. In further updates on the same rollouts this holds only nearly: the old policy drew their tokens.
    """
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor, ratio: Tensor) -> Tensor:
    """Return exp(-d) - 1 + d with d = log pi - log ref: an unbiased value, never negative (GRPO's).

    In the loss its expected gradient, on policy, is that of the forward KL divergence KL(ref || pi) of each token given
    the sampled tokens before it. Near the reference, forward and reverse KL agree.
    """
    difference = (ref_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.expm1() - difference


def k3_is(logprobs: Tensor, ref_logprobs: Tensor, ratio: Tensor) -> Tensor:
    """Return k3 times the token's ratio to the policy that sampled it (TRL's use_bias_correction_kl).

    In the loss its expected gradient is that of the reverse KL divergence KL(pi || ref) of each token given the sampled
    tokens before it, in further updates on the same rollouts too. The ratio of a whole completion (gspo, sequence)
    would give another gradient: the config refuses it.
    """
    return ratio * k3(logprobs, ref_logprobs, ratio)


# AlgoConfig.estimator (rlvr/config/algo.py) says which one `auto` stands for.
KL: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "k3_is": k3_is}
"""The KL estimators, by the word of `--algo.kl-estimator`."""


def importance_weights(
    old_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, kind: str, cap: float, versions: Tensor | None = None
) -> Tensor:
    """Return truncated importance weights of the trainer's old policy against the sampler's, detached.

    token: min(w_t, cap); token_mask: w_t, or 0 where it is above the cap or below 1/cap (IcePop);
    sequence: min(prod_t w_t, cap) on each token; none: 1. version: min(prod_u w_u, cap) over the tokens u up to the
    last one that was sampled under the same version of the weights (per-decision importance sampling, Precup et al.
    2000, with a completion's parts as decisions). versions: (b, T), ascending; None: all tokens have the same.
    """
    log_weight = ((old_logprobs - sampler_logprobs) * mask).detach()
    if kind == "none":
        return log_weight.new_ones(log_weight.shape)
    if kind == "sequence":
        total = log_weight.sum(-1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return total.exp().clamp(max=cap).expand_as(log_weight)
    if kind == "version":
        return sum_to_version_end(log_weight, versions).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap)
    weight = log_weight.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if kind == "token":
        return weight.clamp(max=cap)
    return weight * ((weight <= cap) & (weight >= 1 / cap))


def sum_to_version_end(values: Tensor, versions: Tensor | None) -> Tensor:
    """Return for each token the sum of the row's values (b, T) up to the last token of its version."""
    from torch import searchsorted  # which has no method

    sums = values.cumsum(-1)
    if versions is None:
        return sums[:, -1:].expand_as(values)
    return sums.gather(-1, searchsorted(versions, versions, right=True) - 1)


def loss_denominator(minibatch: Batch, normalize: str, max_new_tokens: int) -> float:
    """Return what the summed loss of a minibatch is divided by; see `token_weights`. For pairs, the number of pairs.

    token: the tokens of the completions that have a score and are not masked; sequence and sum: the number of these
    completions (TRL counts the masked ones too); constant: the number of all completions, including unscored and masked
    ones (as in TRL), times max_new_tokens. Completions that are not computed (their gradient is zero) count too.
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
    logprobs: Tensor,
    batch: Batch,
    denominator: float,
    *,
    loss: Loss,
    settings: Mapping[str, Any],
    normalize: str,
    clip: tuple[float, float],
    kl_coef: float,
    kl_estimator: str,
    kl_in: str,
    importance: str,
    importance_cap: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a microbatch, a scalar, and the sums over its tokens for the log.

    denominator: `loss_denominator` of the whole minibatch, so that microbatches add up exactly. settings: the arguments
    of the loss's own function. clip: (clip_low, clip_high). In the log, a token counts as clipped if its advantage is
    negative and its ratio below 1 - clip_low, or its advantage is positive and its ratio above 1 + clip_high. If the
    batch gets a single update, it has no old logprobs: the present ones, detached, take their place.
    """
    mask = batch.mask
    old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    weights = importance_weights(old, batch.sampler_logprobs, mask, importance, importance_cap, batch.versions)
    # The ratio to the sampling engine is the ratio to pi_old times the weights.
    inside = weights.clamp(min=1e-8).log() if loss.weights_in_ratio else 0.0
    ratio = LOG_RATIOS[loss.ratio or "token"](logprobs + inside, old, mask).exp()
    advantages = batch.advantages if batch.advantages.dim() == 2 else batch.advantages.unsqueeze(-1)
    per_token = loss.function(ratio, advantages, logprobs, **settings)
    per_token = per_token if loss.weights_in_ratio else per_token * weights
    low, high = clip
    stats = {
        "clip_low": ((ratio < 1 - low) & (advantages < 0) & mask).sum(),
        "clip_high": ((ratio > 1 + high) & (advantages > 0) & mask).sum(),
        "importance": (weights * mask).sum(),
        "importance_clipped": ((weights != 1) & ((weights >= importance_cap) | (weights == 0)) & mask).sum(),
    }
    if batch.ref_logprobs is not None:
        # The ratio to the sampling engine: pi / pi_old of the trainer, times pi_old / pi_sampler.
        kl = KL[kl_estimator](logprobs, batch.ref_logprobs, ratio * weights)
        stats["kl"] = (kl.detach() * mask).sum()
        if kl_in == "loss":
            per_token = per_token + kl_coef * kl
    return (per_token * token_weights(mask, normalize, denominator)).sum(), stats


def dpo_loss(logprobs: Tensor, batch: Batch, denominator: float, *, beta: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -log sigmoid(beta ((log pi/ref)(chosen) - (log pi/ref)(rejected))), a scalar (arXiv:2305.18290, eq. 7).

    Rows 2i and 2i + 1 are a pair, whose advantages +1 and -1 mark the chosen and the rejected one. Log-probabilities
    are summed over the completion. denominator: the number of pairs of the whole minibatch. The sums for the log:
    margin is the argument of the sigmoid, accuracy counts the pairs where it is positive.
    """
    from torch.nn.functional import logsigmoid  # which has no method

    assert batch.ref_logprobs is not None
    gain = beta * ((logprobs - batch.ref_logprobs) * batch.mask).sum(-1)  # (b,)
    margin = (gain * batch.advantages).view(-1, 2).sum(-1)
    loss = -logsigmoid(margin).sum() / max(denominator, 1.0)
    gain, margin = gain.detach(), margin.detach()
    return loss, {
        "dpo/pairs": margin.new_tensor(float(len(margin))),
        "dpo/margin": margin.sum(),
        "dpo/accuracy": (margin > 0).sum(),
        "dpo/chosen": (gain * (batch.advantages > 0)).sum(),
        "dpo/rejected": (gain * (batch.advantages < 0)).sum(),
    }


def kto_loss(
    logprobs: Tensor,
    batch: Batch,
    denominator: float,
    *,
    beta: float,
    desirable_weight: float,
    undesirable_weight: float,
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
    weight = choose(good, desirable_weight, undesirable_weight)
    value = (beta * batch.advantages * (gain - batch.kl)).sigmoid()
    loss = (weight * (1 - value)).sum() / max(denominator, 1.0)
    rewards = beta * gain.detach()
    return loss, {
        "kto/rows": gain.detach().new_tensor(float(len(gain))),
        "kto/kl": batch.kl.sum(),
        "kto/good": good.sum(),
        "kto/desirable": (rewards * good).sum(),
        "kto/undesirable": (rewards * ~good).sum(),
    }


def value_loss(values: Tensor, batch: Batch, clip: float | None, denominator: float) -> tuple[Tensor, Tensor]:
    """Return 1/2 mean of max((V - R)^2, (V' - R)^2), a scalar; V' is V clipped to within `clip` of the old value.

    As in OpenAI's baselines, TRL and verl. denominator: the token count of the whole minibatch. Also returns the share
    of tokens whose value was clipped.
    """
    assert batch.values is not None
    assert batch.returns is not None
    error = (values - batch.returns).square()
    clipped = batch.mask.new_zeros(batch.mask.shape)
    if clip is not None:
        near = (values.clamp(batch.values - clip, batch.values + clip) - batch.returns).square()
        clipped = (near > error) & batch.mask
        error = error.maximum(near)
    total = max(denominator, 1.0)
    return 0.5 * (error * batch.mask).sum() / total, clipped.sum() / total


@dataclass(frozen=True)
class Loss:
    """A row of LOSSES: a loss's function, and what the trainer and the settings must know about it."""

    name: str
    paper: str
    function: Callable[..., Any]
    """Returns the loss per token from (ratio, advantages, logprobs); with `of_completions` what `batch_loss` returns,
    from (logprobs, batch, denominator). Its keyword-only arguments are settings of the group `algo`."""
    ratio: Literal["token", "mean", "sum"] | None = "token"
    """The probability ratio, a key of LOG_RATIOS. None: the loss has no ratio, and by default no importance correction;
    the token ratio then only feeds the clip statistics."""
    normalize: str = "token"
    """What algo.normalize auto means."""
    fixed: bool = False
    """Whether `normalize` must stay as it is: the ratio of a whole completion is repeated on each of its tokens, so
    that an average over tokens would weight completions by length."""
    weights_in_ratio: bool = False
    """Whether the tokens' importance weights enter the completion's ratio, instead of multiplying the loss."""
    of_completions: bool = False
    """Whether it compares whole completions with a reference policy. `algo.loss` cannot choose it; it comes with the
    algorithm whose row names it."""

    @cached_property
    def settings(self) -> tuple[str, ...]:
        """Return the names of the settings that the function reads."""
        parameters = inspect.signature(self.function).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    @property
    def of_sequence(self) -> bool:
        """Return whether the ratio is that of a whole completion."""
        return self.ratio in ("mean", "sum")


LOG_RATIOS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "token": token_log_ratio,
    "mean": gspo_log_ratio,
    "sum": sequence_log_ratio,
}
LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("clip", "arXiv:1707.06347", clipped_surrogate),
        Loss("gspo", "arXiv:2507.18071", clipped_surrogate, ratio="mean", normalize="sequence", fixed=True),
        Loss("luspo", "arXiv:2602.05261", clipped_surrogate, ratio="mean", normalize="sum", fixed=True),
        Loss("sequence", "arXiv:2402.14740", clipped_surrogate, ratio="sum", normalize="sequence", fixed=True),
        Loss("cispo", "arXiv:2506.13585", cispo),
        Loss("sapo", "arXiv:2511.20347", sapo, normalize="sequence"),
        Loss("vespo", "arXiv:2602.10693", vespo, ratio="sum", weights_in_ratio=True),
        Loss("nll", "arXiv:2304.06767", nll, ratio=None),
        Loss("dpo", "arXiv:2305.18290", dpo_loss, ratio=None, of_completions=True),
        Loss("kto", "arXiv:2402.01306", kto_loss, ratio=None, normalize="sequence", of_completions=True),
    )
}
"""The losses, by the word of `--algo.loss`."""


def batch_loss(
    logprobs: Tensor, batch: Batch, denominator: float, *, loss: Loss, settings: Mapping[str, Any], **more: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a microbatch, and its sums for the log. The arguments are those of `policy_loss`.

    `AlgoConfig.loss_arguments` gives them. A loss of completions reads `settings` alone.
    """
    if loss.of_completions:
        found: tuple[Tensor, dict[str, Tensor]] = loss.function(logprobs, batch, denominator, **settings)
        return found
    return policy_loss(logprobs, batch, denominator, loss=loss, settings=settings, **more)
