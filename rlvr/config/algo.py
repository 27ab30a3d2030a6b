"""Settings of the group `algo`: `--algo NAME` chooses the class. Algorithms with special settings have their own.

An algorithm is a row of rlvr/algo/algorithms.py; every row without a class in `OWN_SETTINGS`, which
rlvr/config/own_algos.py fills, takes AlgoConfig.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rlvr.algo.algorithms import ALGORITHMS, LOSSES, Algorithm, PolicyLoss
from rlvr.config.settings import (
    ADVANCED,
    COUNT,
    COUNT_OR_NONE,
    POSITIVE,
    POSITIVE_SHARE,
    SHARE,
    WEIGHT,
    Group,
    Rules,
    Used,
    Words,
)
from rlvr.core.registry import did_you_mean

WITH_KL = Used(lambda config: config.algo.kl_coef > 0, "with --algo.kl-coef above 0")
WITH_CLIP = Used(lambda config: config.algo.loss_row.clips, "with a loss that clips (--algo.loss auto)")
WITH_KL_TARGET = Used(lambda config: config.algo.kl_target is not None, "with --algo.kl-target")
WITH_ENTROPY_TARGET = Used(lambda config: config.algo.entropy_target is not None, "with --algo.entropy-target")
WITH_RESETS = Used(lambda config: config.algo.reference_every > 0, "with --algo.reference-every 1 or more")
WITH_PTX = Used(lambda config: config.algo.ptx_coef > 0, "with --algo.ptx-coef above 0")
WITH_SAPO = Used(lambda config: config.algo.policy_loss == "sapo", "with --algo.loss sapo")
WITH_VESPO = Used(lambda config: config.algo.policy_loss == "vespo", "with --algo.loss vespo")
WITH_DUAL_CLIP = Used(
    lambda config: config.algo.loss_row.dual_clip,
    f"with --algo.loss {' or '.join(loss.name for loss in LOSSES.values() if loss.dual_clip)}",
)

OFFERED_LOSSES = Words(lambda: ("auto", *(loss.name for loss in LOSSES.values() if loss.offered)))


def is_weighted(config: Any) -> bool:
    """Return whether importance weights may differ from 1."""
    kind, algo = config.algo.importance, config.algo
    if algo.loss_row.ratio is None and kind == "auto":
        return False
    # In bfloat16, which dtype auto may choose, the torch sampler rounds otherwise than the trainer.
    one_engine = config.sampler.name == "torch" and config.model.dtype == "float32"
    return kind != "none" and (kind != "auto" or not one_engine)


WITH_WEIGHTS = Used(is_weighted, "with --algo.importance token or sequence")


# Algorithms with settings of their own, by the name of their row.
OWN_SETTINGS: dict[str, type[AlgoSettings]] = {}


class AlgoDefaults:
    """Values that are read for settings that an algorithm does not have."""

    credit: str = "outcome"
    advantage_scale: str = "auto"
    reward_weights: tuple[str, ...] = ()
    gamma: float = 1.0
    gae_lambda: float = 1.0
    beta: float = 0.1
    loss: str = "auto"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    kl_coef: float = 0.0
    kl_estimator: str = "auto"
    kl_in: str = "loss"
    kl_target: float | None = None
    kl_horizon: int = 10_000
    entropy_coef: float = 0.0
    entropy_target: float | None = None
    entropy_coef_delta: float = 0.005
    entropy_coef_max: float = 1.0
    reference_every: int = 0
    reference_mix: float = 1.0
    importance: str = "none"
    importance_cap: float = 2.0
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0


@dataclass(frozen=True)
class AlgoSettings(AlgoDefaults, Group):
    """Settings of all algorithms."""

    name: str = "grpo"
    """Training algorithm (table: rlvr/algo/algorithms.py); it brings its own settings."""
    epochs: Annotated[int, COUNT] = 1
    """Passes over each batch of rollouts (num_iterations in TRL)."""
    minibatches: Annotated[int, COUNT] = 1
    """Optimizer updates per pass."""
    ptx_coef: Annotated[float, WEIGHT, ADVANCED] = 0.0
    """Weight of the language-model loss on demonstrations, which is added to each update (PPO-ptx of InstructGPT,
    arXiv:2203.02155). They are the pack's, or those of sft.data. 0: none."""
    ptx_batch_size: Annotated[int, COUNT, ADVANCED, WITH_PTX] = 32
    """Demonstrations per update."""

    @property
    def row(self) -> Algorithm:
        """Return the algorithm's row of the table."""
        return ALGORITHMS[self.name]

    @property
    def loss_row(self) -> PolicyLoss:
        """Return the policy loss's row of its table."""
        return LOSSES[self.policy_loss]

    @property
    def policy_loss(self) -> str:
        """Return the name of the loss, with auto resolved."""
        return self.row.loss if self.loss == "auto" else self.loss

    @property
    def scale(self) -> str:
        """Return `advantage_scale` with auto resolved."""
        if self.advantage_scale != "auto":
            return self.advantage_scale
        return "none" if self.kl_coef and self.kl_in == "reward" else self.row.scale

    @property
    def estimator(self) -> str:
        """Return `kl_estimator` with auto resolved."""
        if self.kl_estimator != "auto":
            return self.kl_estimator
        return "k1" if self.kl_in == "reward" else "k3"

    @property
    def normalizer(self) -> str:
        """Return `normalize` with auto resolved."""
        return self.loss_row.normalize

    @property
    def needs_reference(self) -> bool:
        """Return whether a reference policy is held."""
        return self.kl_coef > 0 or self.row.reference

    def rules(self, at: str) -> Rules:
        """Return rules about the name, which must be an algorithm with this class of settings."""
        kind = type(self).__name__
        return [
            (self.name in ALGORITHMS, f"{at}name {self.name!r}; {did_you_mean(self.name, ALGORITHMS)}"),
            (
                type(self) is class_of(self.name),
                f"{at}name {self.name} with {kind}; its settings are {class_of(self.name).__name__}",
            ),
        ]


@dataclass(frozen=True)
class NormalizeSetting(AlgoSettings):
    """How the loss is averaged."""

    normalize: Literal["auto", "token", "sequence", "sum", "constant"] = "auto"
    """Average the loss over tokens (DAPO), over sequences (GRPO), over sequences but sum it over their tokens (sum), or
    divide by sequences x max_new_tokens (Dr. GRPO). Groups without signal count too. auto: sequence with the losses
    gspo, sequence and sapo, sum with luspo, else token."""

    @property
    def normalizer(self) -> str:
        """Return `normalize` with auto resolved."""
        return super().normalizer if self.normalize == "auto" else self.normalize


@dataclass(frozen=True)
class ImportanceSettings(AlgoSettings):
    """The correction of what sampler and trainer differ in."""

    importance: Literal["auto", "none", "token", "token_mask", "sequence"] = "auto"
    """Truncated importance sampling, to correct the mismatch between sampler and trainer. auto: token; none for the
    torch sampler in float32, which has no mismatch."""
    importance_cap: Annotated[float, POSITIVE, ADVANCED, WITH_WEIGHTS] = 2.0
    """Upper bound of the importance weights."""


@dataclass(frozen=True)
class PolicyGradientSettings(ImportanceSettings, NormalizeSetting):
    """Settings of algorithms that weigh every rollout by its advantage."""

    loss: Annotated[str, OFFERED_LOSSES] = "auto"
    """Policy loss: clip (PPO's clipped ratio per token), gspo, luspo or sequence (one ratio per completion), cispo,
    sapo and vespo (soft gates of the ratio per token, per completion), nll (no ratio). auto: clip."""
    clip_low: Annotated[float, SHARE, WITH_CLIP] = 0.2
    """The ratio is clipped below at 1 - clip_low (epsilon in TRL)."""
    clip_high: Annotated[float, WEIGHT, WITH_CLIP] = 0.2
    """The ratio is clipped above at 1 + clip_high (epsilon_high in TRL; DAPO: 0.28, CISPO: 4)."""
    dual_clip: Annotated[float | None, POSITIVE, ADVANCED, WITH_DUAL_CLIP] = None
    """Dual-clip PPO: bound of the ratio for negative advantages, e.g. 3. None: no bound."""
    kl_coef: Annotated[float, WEIGHT] = 0.0
    """Weight of the KL divergence to the reference policy (beta in TRL). 0: no reference model is loaded."""
    kl_target: Annotated[float | None, POSITIVE, ADVANCED, WITH_KL] = None
    """KL divergence per token that kl_coef is adapted to, after each step (arXiv:1909.08593, section 2.2; verl:
    adaptive). None: kl_coef stays."""
    kl_horizon: Annotated[int, COUNT, ADVANCED, WITH_KL_TARGET] = 10_000
    """Completions after which kl_coef has grown by a factor of about exp(e) where the KL divergence is 1 + e times the
    target; e counts as .2 at most."""
    reference_every: Annotated[int, COUNT_OR_NONE, ADVANCED, WITH_KL] = 0
    """Steps after which the reference policy is set to the present policy, again and again (DeepSeek-R1: 400). 0:
    never."""
    reference_mix: Annotated[float, POSITIVE_SHARE, ADVANCED, WITH_RESETS] = 1.0
    """Share of the present policy in the new reference policy's weights; the rest is the old one's (TRL:
    ref_model_mixup_alpha)."""
    entropy_coef: Annotated[float, WEIGHT, ADVANCED] = 0.0
    """Weight of the entropy bonus: the mean entropy per token, whatever the loss is averaged over. 0: none."""
    entropy_target: Annotated[float | None, POSITIVE, ADVANCED] = None
    """Entropy per token, in nats, at or below which the bonus is given, with a weight that then grows step by step, and
    else shrinks (arXiv:2505.22312). None: always, with entropy_coef."""
    entropy_coef_delta: Annotated[float, POSITIVE, ADVANCED, WITH_ENTROPY_TARGET] = 0.005
    """What the weight of the entropy bonus grows or shrinks by, each step."""
    entropy_coef_max: Annotated[float, POSITIVE, ADVANCED, WITH_ENTROPY_TARGET] = 1.0
    """Upper bound of the weight of the entropy bonus."""
    sapo_temperature_pos: Annotated[float, POSITIVE, ADVANCED, WITH_SAPO] = 1.0
    """SAPO's temperature for advantages above 0."""
    sapo_temperature_neg: Annotated[float, POSITIVE, ADVANCED, WITH_SAPO] = 1.05
    """SAPO's temperature for the others: a higher one damps ratios far from 1 more."""
    vespo_k_pos: Annotated[float, WEIGHT, ADVANCED, WITH_VESPO] = 2.0
    """VESPO's exponent k for advantages of 0 or more."""
    vespo_lambda_pos: Annotated[float, POSITIVE, ADVANCED, WITH_VESPO] = 3.0
    """VESPO's decay lambda for advantages of 0 or more."""
    vespo_k_neg: Annotated[float, WEIGHT, ADVANCED, WITH_VESPO] = 3.0
    """VESPO's exponent k for negative advantages."""
    vespo_lambda_neg: Annotated[float, POSITIVE, ADVANCED, WITH_VESPO] = 2.0
    """VESPO's decay lambda for negative advantages."""
    kl_estimator: Annotated[Literal["auto", "k1", "k2", "k3", "k3_is"], WITH_KL] = "auto"
    """KL estimator (http://joschu.net/blog/kl-approx.html); k3_is: k3 times the ratio. auto: k3 in the loss, k1 in the
    reward. In the loss, k2 and k3_is have the gradient of the reverse KL, k3 of the forward KL."""

    def rules(self, at: str) -> Rules:
        """Return rules about clipping, the KL estimator's place, and the average that fits the ratio."""
        kl_in = self.kl_in if self.kl_coef > 0 else None
        held = super().rules(at)
        if not all(holds for holds, _ in held):
            return held  # the rules below read its row
        whole = self.loss_row.ratio == "sequence"
        return [
            *held,
            (
                self.dual_clip is None or self.dual_clip > 1 + self.clip_high,
                f"{at}dual_clip {self.dual_clip}: expected a number above 1 + {at}clip_high ({1 + self.clip_high:g}), "
                "below which it would bound the ratio of good completions too",
            ),
            (
                self.dual_clip is None or self.loss_row.dual_clip,
                f"{at}dual_clip with {at}loss {self.policy_loss}, which does not read it; leave it out",
            ),
            (
                kl_in != "loss" or self.estimator != "k1",
                f"{at}kl_estimator k1 with {at}kl_in loss: its expected gradient is zero; set k2, k3 or k3_is, or "
                f"--{at}kl-in reward",
            ),
            (
                kl_in != "reward" or self.estimator == "k1",
                f"{at}kl_estimator {self.estimator} with {at}kl_in reward: its expected gradient there is not that of "
                f"a KL divergence, and drives the policy away from the reference; set k1, or --{at}kl-in loss",
            ),
            (
                kl_in != "loss" or self.estimator != "k3_is" or not whole,
                f"{at}kl_estimator k3_is with {at}loss {self.policy_loss}, whose ratio is that of a whole completion "
                "and not of the token; set k2 or k3",
            ),
            (
                self.kl_coef > 0 or (self.kl_target is None and self.reference_every == 0),
                f"{at}{'reference_every' if self.kl_target is None else 'kl_target'} with {at}kl_coef 0, which has no "
                f"reference policy; set {at}kl_coef above 0, or leave it out",
            ),
            (
                not self.loss_row.fixed or self.normalizer == self.loss_row.normalize,
                f"{at}normalize {self.normalize} with {at}loss {self.policy_loss}, whose ratio is that of a whole "
                "completion: counted once for each token it would weigh a completion by its length; set auto or "
                f"{self.loss_row.normalize}",
            ),
            (
                not self.loss_row.weights_in_ratio or self.importance != "sequence",
                f"{at}importance sequence with {at}loss {self.policy_loss}, whose ratio is that of a whole completion "
                "and has the importance weights of its tokens in it; set token",
            ),
        ]


@dataclass(frozen=True)
class RewardSettings(PolicyGradientSettings):
    """Settings of algorithms whose advantages are made of whole rewards."""

    credit: Annotated[Literal["outcome", "turn", "step"], ADVANCED] = "outcome"
    """What a token is credited with: the reward of its whole rollout; that of its turn and the turns after it; or of
    its step and what follows, where a verifier scores the steps of a turn. The expected gradient is the same."""
    advantage_scale: Annotated[Literal["auto", "none", "batch_std", "whiten"], ADVANCED] = "auto"
    """Scale advantages over the batch: divide by the standard deviation of its rewards, or whiten (PPO: over its
    tokens). auto: whiten for PPO without a KL term in the reward, else none. The KL term is never scaled."""
    kl_in: Annotated[Literal["loss", "reward"], WITH_KL] = "loss"
    """Add the KL term to the loss (per token) or to the reward (PPO: per token; else summed over the completion, with
    its own baseline, after the task's rewards are normalised)."""

    def rules(self, at: str) -> Rules:
        """Return rules about credit per step, whose gradient is that of the expected return."""
        held = super().rules(at)
        if self.credit == "outcome" or not all(holds for holds, _ in held):
            return held
        fitting = " or ".join(row.name for row in ALGORITHMS.values() if row.credits_steps)
        return [
            *held,
            (
                self.row.credits_steps,
                f"{at}credit {self.credit} with {self.name}, whose rule does not only subtract a mean: credit per "
                f"step would be biased; set --algo {fitting}",
            ),
            (
                self.row.critic or self.scale == "none",
                f"{at}advantage_scale {self.scale} with {at}credit {self.credit}: it scales whole rollouts; set none",
            ),
            (
                self.loss_row.ratio != "sequence",
                f"{at}credit {self.credit} with {at}loss {self.policy_loss}, whose ratio is that of a whole completion "
                "and not of a step; set clip, cispo or nll",
            ),
        ]


@dataclass(frozen=True)
class AlgoConfig(RewardSettings):
    """Advantages and policy loss (rlvr/algo/advantages.py and losses.py: one function each)."""


def class_of(name: str) -> type[AlgoSettings]:
    """Return the class of an algorithm's settings."""
    return OWN_SETTINGS.get(name, AlgoConfig)


def make_algo(name: str = "grpo", **settings: Any) -> AlgoSettings:
    """Return the settings of an algorithm, by its name. TypeError for one that it does not have."""
    kind = class_of(name)
    return kind(name, **settings) if kind is AlgoConfig else kind(**settings)
