"""The optimizer updates of a step, how far they moved the policy, and how far sampler and trainer differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlvr.algo.batch import Batch, choose_rows, collate, minibatches
from rlvr.algo.credit import Advantage
from rlvr.algo.losses import batch_loss, k3, loss_denominator, value_loss
from rlvr.config import Config
from rlvr.core.heartbeat import enter
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Group
from rlvr.distributed import gather, sum_gradients, sum_stats
from rlvr.model.logprobs.scoring import Entropy, of_tokens, token_logprobs
from rlvr.model.optim.health import check_weights, count_not_finite, python_warning
from rlvr.model.optim.optimizer import learning_rate, optimizer_step

from .distillation.teacher_batch import (
    PREFIX,
    average_teacher,
    compare_rows,
    consult_teacher,
    distillation_loss,
    teacher_stat_names,
)
from .learner import Learner
from .prepare import Microbatch, critic_stats, prepare_batch, run_learner
from .rewards import has_signal

TOKEN_STATS = ("clip_low", "clip_high", "importance", "importance_clipped")
KTO_STATS = ("kto/rows", "kto/good", "kto/kl", "kto/desirable", "kto/undesirable")
PAIR_STATS = ("dpo/margin", "dpo/accuracy", "dpo/chosen", "dpo/rejected")
OFF_POLICY = "teacher/off_policy_loss"
VALUE_STATS = ("critic/value_loss", "critic/value_clipped")


def update(
    learner: Learner,
    step: int,
    groups: Sequence[Group],
    advantages: Sequence[Sequence[Advantage]],
    warn: Callable[[str], None] = python_warning,
) -> dict[str, float]:
    """Do all optimizer steps of a step's groups, with their advantages (P x G). Return the metrics.

    Once the updates have moved the policy further than optim.max_update_kl, the rest of the step's updates is left out
    (PPO's target_kl). `warn` gets a line for that, and if the logprobs of sampler and trainer differ too much.

    If no row of a minibatch has signal the gradient is zero, but AdamW still steps. If raft or dpo chose no
    completion there is no minibatch and no optimizer step. Raises NotFinite for trained weights that are not finite.
    """
    config, algo, critic = learner.config, learner.algo, learner.critic
    batch, told = prepare_batch(learner, to_batch(learner, groups, advantages)), dict[str, float]()
    if learner.teacher is not None:
        batch, told = consult_teacher(learner, step + 1, groups, batch)
    enter("update")
    lr = learning_rate(step, config.optim, config.run.steps) * learner.lr_scale
    sums: Counter[str] = Counter()
    norms: list[float] = []
    critic_norms: list[float] = []
    differences: list[Tensor] = []
    policy_learns = critic is None or step >= critic.settings.warmup
    seed = derive_seed(config.run.seed, "minibatches", step)
    first = step * algo.minibatches * algo.epochs
    size, moved, left_out = UpdateSize(learner), 0.0, 0
    rest = enumerate(minibatches(batch, count=algo.minibatches, epochs=algo.epochs, seed=seed))
    for number, minibatch in rest:
        if policy_learns:
            size = UpdateSize(learner)
            found = accumulate_gradient(learner, minibatch, differences, number=first + number, keep=size.keep)
            moved = found.pop("moved", 0.0) / max(found["tokens"], 1)
            if 0 < config.optim.max_update_kl < moved:
                learner.optimizer.zero_grad()
                left_out = 1 + sum(1 for _ in rest)
                break
            sums.update(found)
            norms.append(optimizer_step(learner.optimizer, lr=lr, max_grad_norm=config.optim.max_grad_norm))
        if critic is not None:
            if not (policy_learns and critic.shares_trunk):
                sums.update(accumulate_value_gradient(learner, minibatch))
            critic_norms.append(critic_step(learner, step))
    stats = average_stats(sums, len(norms), len(critic_norms)) | told
    if critic is not None:
        stats |= critic_stats(batch) if len(batch) else {}
        stats["critic/grad_norm"] = sum(critic_norms) / max(len(critic_norms), 1)
        stats["critic/skipped_updates"] = count_not_finite(critic_norms)
    if policy_learns:
        stats |= {"update_kl": moved, "left_out_updates": left_out} if left_out else size.measure()
        warn_of_update(stats, step + 1, config.optim.max_update_kl, warn)
    stats |= mismatch_stats(learner, step, differences, warn)
    if len(batch):  # without rows there was no gradient
        stats["skipped_updates"] = count_not_finite(norms)
    check_trained(learner, step + 1)
    grad_norm = sum(norms) / max(len(norms), 1)
    return {"lr": lr if policy_learns else 0.0, "loss": 0.0, "grad_norm": grad_norm, **stats}


def mismatch_stats(
    learner: Learner, step: int, differences: Sequence[Tensor], warn: Callable[[str], None]
) -> dict[str, float]:
    """Return how far the sampler's logprobs are from the trainer's, and warn where that is too far.

    differences: log pi_old - log pi_sampler of this rank's tokens, one tensor (n,) a microbatch.
    """
    config = learner.config
    # To the CPU first: a tensor of another rank's GPU would open a context there.
    parts = gather([part.cpu() for part in differences], learner.accelerator)
    if not parts:
        return {}
    stats = measure_mismatch(torch.cat(parts))
    # With top-p or top-k the two are logprobs of different distributions.
    if config.rollout.top_p == 1 and config.rollout.top_k == 0:
        bound, sampler = config.sampler.mismatch_alarm, config.sampler.name
        warn_of_mismatch(stats, step + 1, bound, config.staleness(step), sampler, warn)
    return stats


def average_stats(sums: Counter[str], updates: int, critic_updates: int) -> dict[str, float]:
    """Average a step's sums: losses per update, pair statistics per pair, everything else per computed token.

    The loss counts all sampled rows; those without signal add nothing to it. `trained_tokens` counts computed tokens
    over all passes. An average over nothing is left out.
    """
    counts = {"loss": updates, "ptx/loss": updates, **dict.fromkeys(VALUE_STATS, critic_updates)}
    counts |= dict.fromkeys(PAIR_STATS, sums.pop("dpo/pairs", 0))
    rows, good = sums.pop("kto/rows", 0), sums.get("kto/good", 0)
    counts |= {"kto/good": rows, "kto/kl": rows, "kto/desirable": good, "kto/undesirable": rows - good}
    tokens, taught = sums.pop("tokens", 0), average_teacher(sums, updates)
    others = {name: value for name, value in sums.items() if not name.startswith(PREFIX)}
    stats = {name: value / counts.get(name, tokens) for name, value in others.items() if counts.get(name, tokens)}
    stats |= taught
    if "clip_low" in stats:
        stats["clip_fraction"] = stats["clip_low"] + stats["clip_high"]
    return {"trained_tokens": tokens, **stats}


def to_batch(learner: Learner, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]]) -> Batch:
    """Return the rollouts that are trained on, by the algorithm's `trains_on` (rlvr/algo/algorithms.py).

    Rows without signal count in the loss's denominator but are not computed, unless the critic, a KL term or an entropy
    bonus gives them a gradient.
    """
    algo, rollout = learner.config.algo, learner.config.rollout
    mask_truncated, mask_void = rollout.truncated == "mask", rollout.mask_void
    if algo.row.trains_on == "chosen":
        groups, advantages = choose_rows(groups, advantages, mask_truncated=mask_truncated, mask_void=mask_void)
    in_loss = (algo.kl_coef > 0 and algo.kl_place == "loss") or algo.entropy_coef > 0 or algo.entropy_target is not None
    compute_all = algo.row.trains_on == "all" or in_loss
    return collate(
        groups,
        advantages,
        pad_id=learner.policy.pad_id,
        device=learner.policy.device,
        mask_truncated=mask_truncated,
        mask_void=mask_void,
        rows_per_pair=2 if algo.row.pairs else 1,
        computed=[compute_all or has_signal(row) for row in advantages],
    )


def accumulate_gradient(
    learner: Learner,
    minibatch: Batch,
    differences: list[Tensor] | None = None,
    *,
    number: int = 0,
    keep: Callable[[Batch, Tensor, int], None] | None = None,
) -> dict[str, float]:
    """Run forward and backward over a minibatch in microbatches. Return the sums of its statistics over all ranks.

    A critic on the policy's trunk learns in the same pass. `learner.mix` adds the pretraining mix of the `number`-th
    update. `differences` gets log pi_old - log pi_sampler of each microbatch's tokens (n,), `keep` its logprobs (see
    UpdateSize). With old logprobs "moved" is the sum of estimates of KL(old || present).
    """
    config, algo = learner.config, learner.algo
    total = loss_denominator(minibatch, algo.normalizer, config.rollout.max_new_tokens)
    device = minibatch.mask.device
    sums = {name: torch.zeros((), device=device) for name in stat_names(learner, minibatch)}
    arguments = algo.loss_arguments()
    if not algo.loss_row.of_completions:
        arguments["importance"] = importance_kind(config, learner.policy.dtype)

    def compute(part: Microbatch) -> tuple[dict[str, Tensor], Tensor | None]:
        micro = part.rows
        loss, logprobs, entropy, stats = whole_loss(learner, micro, minibatch, total, arguments)
        part.backward(loss * part.weight)
        learner.token_values.keep(micro, logprobs, entropy)
        if keep is not None and part.first:
            keep(micro, logprobs, minibatch.num_completion_tokens // learner.accelerator.num_processes)
        if not part.weight:
            return {}, None
        if micro.old_logprobs is not None:
            stats["moved"] = kl_sum(micro.old_logprobs, logprobs.detach(), micro.mask)
        stats |= {"loss": loss.detach(), "tokens": micro.mask.sum()}
        if entropy is not None:
            stats["entropy"] = (entropy.detach() * micro.mask).sum()
        old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
        return stats, of_tokens(old - micro.sampler_logprobs, micro.scored) if differences is not None else None

    parameters = learner.policy.parameters()
    if learner.critic is not None and learner.critic.shares_trunk:
        parameters += learner.critic.parameters()
    for stats, difference in run_learner(learner, minibatch, compute, parameters):
        for name, value in stats.items():
            sums[name] += value
        if differences is not None and difference is not None:
            differences.append(difference)
    if learner.mix is not None:
        sums["ptx/loss"] += learner.mix(number)
    if learner.teacher is not None and learner.teacher.off_policy is not None:
        sums[OFF_POLICY] += learner.teacher.off_policy(number)
    fill_gradients(parameters, minibatch)
    sum_gradients(parameters, learner.accelerator)
    return sum_stats(to_floats(sums), learner.accelerator, device)


def whole_loss(
    learner: Learner, micro: Batch, minibatch: Batch, total: float, arguments: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor | None, dict[str, Tensor]]:
    """Return a microbatch's loss with all its parts, its logprobs and entropies (b, T), and its sums for the log.

    total, arguments: of `batch_loss`.
    """
    algo, found = learner.algo, None
    if learner.teacher is None:
        logprobs, entropy, values = forward(learner, micro)
    else:
        found = compare_rows(learner, micro)
        logprobs, entropy, values = found.logprobs, found.entropy, None
    loss, stats = batch_loss(logprobs, micro, total, **arguments)
    if algo.entropy_coef:
        loss = loss - algo.entropy_coef * entropy_bonus(entropy, micro, minibatch)
    if values is not None:
        loss = loss + critic_loss(learner, values, micro, minibatch, stats)
    if found is not None:
        distilled, added = distillation_loss(learner, found, micro, total, arguments["importance"])
        loss, stats = loss + distilled, stats | added
    return loss, logprobs, entropy, stats


def to_floats(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Return scalars as numbers, by one transfer from the device."""
    return dict(zip(sums, torch.stack([value.double() for value in sums.values()]).tolist(), strict=True))


def fill_gradients(parameters: Iterable[Tensor], minibatch: Batch) -> None:
    """Set missing gradients to zero where a minibatch has no rows: AdamW would skip weights whose gradient is None."""
    if not len(minibatch):
        for weight in parameters:
            weight.grad = torch.zeros_like(weight, dtype=weight.grad_dtype) if weight.grad is None else weight.grad


def stat_names(learner: Learner, minibatch: Batch) -> list[str]:
    """Return the names of the sums of `accumulate_gradient`: the same on every rank, even one without rows."""
    names = ["loss", "entropy", "tokens"]
    row = learner.config.algo.row
    names += ["dpo/pairs", *PAIR_STATS] if row.pairs else KTO_STATS if row.labels else TOKEN_STATS
    if minibatch.ref_logprobs is not None and not (row.pairs or row.labels):
        names.append("kl")
    if minibatch.old_logprobs is not None:
        names.append("moved")
    if learner.mix is not None:
        names.append("ptx/loss")
    if learner.teacher is not None:
        names += [*teacher_stat_names(learner.teacher), *([OFF_POLICY] if learner.teacher.off_policy else [])]
    if learner.critic is not None and learner.critic.shares_trunk:
        names += VALUE_STATS
    return names


def forward(learner: Learner, micro: Batch) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return logprobs, entropies and, where the critic is a head on the policy, values; each (b, T)."""
    tokens, mask, temperature = micro.tokens, micro.scored, learner.config.rollout.temperature
    wanted: Entropy = "gradient" if learner.algo.entropy_coef else True
    if learner.critic is not None and learner.critic.shares_trunk:
        return learner.critic.logprobs_and_values(tokens, mask, temperature=temperature, with_entropy=wanted)
    return *token_logprobs(learner.policy, tokens, mask, temperature=temperature, with_entropy=wanted), None


def accumulate_value_gradient(learner: Learner, minibatch: Batch) -> dict[str, float]:
    """Backpropagate the value loss into the critic's own weights. A trunk shared with the policy gets no gradient."""
    critic, device = learner.critic, minibatch.mask.device
    assert critic is not None
    sums = {name: torch.zeros((), device=device) for name in VALUE_STATS}

    def compute(part: Microbatch) -> dict[str, Tensor]:
        micro, stats = part.rows, dict[str, Tensor]()
        values = critic.values(micro.tokens, micro.scored, only_head=critic.shares_trunk)
        part.backward(critic_loss(learner, values, micro, minibatch, stats) * part.weight)
        return stats if part.weight else {}

    for stats in run_learner(learner, minibatch, compute, critic.parameters()):
        for name, value in stats.items():
            sums[name] += value
    fill_gradients(critic.parameters(), minibatch)
    sum_gradients(critic.parameters(), learner.accelerator)
    return sum_stats(to_floats(sums), learner.accelerator, device)


def critic_loss(learner: Learner, values: Tensor, micro: Batch, minibatch: Batch, stats: dict[str, Tensor]) -> Tensor:
    """Return the weighted value loss of a microbatch; add the unweighted loss and the clipped share to stats."""
    assert learner.critic is not None
    settings = learner.critic.settings
    loss, clipped = value_loss(values, micro, settings.value_clip, loss_denominator(minibatch, "token", 0))
    for name, value in zip(VALUE_STATS, (loss.detach(), clipped), strict=True):
        stats[name] = stats.get(name, torch.zeros_like(value)) + value
    return settings.value_coef * loss


def critic_step(learner: Learner, step: int) -> float:
    """Do one optimizer step of the critic's own weights. Return the gradient's norm before clipping."""
    config, critic = learner.config, learner.critic
    assert critic is not None
    lr = learning_rate(step, replace(config.optim, lr=critic.settings.lr), config.run.steps)
    return optimizer_step(critic.optimizer, lr=lr, max_grad_norm=config.optim.max_grad_norm)


def entropy_bonus(entropy: Tensor | None, micro: Batch, minibatch: Batch) -> Tensor:
    """Return a microbatch's part of the mean entropy per token, over the minibatch's tokens that are computed."""
    assert entropy is not None
    return (entropy * micro.mask).sum() / max(minibatch.num_completion_tokens, 1)


def importance_kind(config: Config, dtype: torch.dtype = torch.float32) -> str:
    """Return the kind of importance weights, with algo.importance "auto" resolved.

    "auto": "none" if sampler and trainer are one model in float32 with the same weights, or if the loss has no ratio
    (raft, dpo); else "token". In shorter dtypes the torch sampler, which decodes token by token, rounds differently.
    """
    kind = config.algo.importance
    if kind != "auto":
        return kind
    one_engine = config.sampler.name == "torch" and dtype is torch.float32 and not config.sampler.max_staleness
    return "none" if one_engine or config.algo.loss_row.ratio is None else "token"


def check_trained(learner: Learner, step: int) -> None:
    """Raise NotFinite where a trained weight, of the policy or the critic, has become NaN or infinite."""
    config = learner.config
    policy = [(name, weight) for name, weight in learner.policy.model.named_parameters() if weight.requires_grad]
    trained = [("policy", policy, "--optim.lr", config.optim.lr)]
    if learner.critic is not None:
        trained.append(
            ("critic", list(learner.critic.named_parameters().items()), "--critic.lr", learner.critic.settings.lr)
        )
    for name, weights, flag, lr in trained:
        hint = f"look at {flag} ({lr:g}); the checkpoints in {config.run.out_dir} stay"
        check_weights(weights, f"stopped at step {step}, whose updates broke the {name} ({hint})")


# Share of a rank's tokens whose logprobs are computed again after the last update of a step.
SHARE = 1 / 16


def kl_sum(before: Tensor, after: Tensor, mask: Tensor) -> Tensor:
    """Return the sum over tokens of the k3 estimate of KL(before || after), a scalar.

    before, after: logprobs (b, T) of tokens that the policy before has drawn.
    """
    return (k3(before, after, torch.ones_like(after)) * mask).sum()


class UpdateSize:
    """Measures how far a step moves the policy: KL(before || after) per token, on the step's own tokens.

    At pass rates near zero, a learning rate that suits a better policy ruins this one in the first update. Rewards show
    the damage one step later; this measure shows it at once.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.sample: tuple[Batch, Tensor] | None = None

    def keep(self, micro: Batch, logprobs: Tensor, tokens: int) -> None:
        """Keep rows of the first microbatch, about SHARE of `tokens`, and their logprobs (b, T) before the step."""
        if self.sample is None:
            before = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
            counts = micro.scored.sum(-1).cumsum(0)
            rows = torch.arange(max(int((counts <= SHARE * tokens).sum()), 1))
            part = micro.rows(rows)
            self.sample = part, before[: len(rows), : part.tokens.shape[1]]

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return {"update_kl"}, empty if nothing was trained on. Every rank must call this."""
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
    what = f"; updates left out after that: {left_out}" if left_out else ""
    warn(
        f"step {step}: the updates moved the policy by a KL of {kl:.3g} a token (bound {bound:g}, "
        f"--optim.max-update-kl){what}; if rewards fall now, lower --optim.lr or add --optim.warmup-steps"
    )


QUANTILES = {"p01": 0.01, "p50": 0.5, "p99": 0.99}
MAX_VALUES = 2**24  # torch.quantile takes no more


def measure_mismatch(difference: Tensor) -> dict[str, float]:
    """Return metrics of `difference` (n,): log pi_trainer - log pi_sampler of the sampled tokens, at equal weights.

    They are the mean and largest absolute value, quantiles of the ratio w = exp(difference), and the effective sample
    size as a share, (sum w)^2 / (n sum w^2): 1 where both agree.
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

    The bound is multiplied by 1 + staleness, since older rollouts also differ by what the trainer has learned since.
    """
    bound *= 1 + staleness
    if stats["mismatch/mean"] > bound:
        warn(
            f"step {step}: logprobs of sampler and trainer differ by {stats['mismatch/mean']:.3g} on average (largest "
            f"{stats['mismatch/max']:.3g}; bound {bound:g}, --sampler.mismatch-alarm); "
            + WHAT_TO_DO.get(sampler, "`rlvr doctor --model M` checks whether they agree")
        )
