"""The group `algo`: one class for all algorithms and losses. `--algo NAME` chooses the algorithm.

A setting that only some algorithms or losses have carries a mark: `of_algorithms(...)` reads the algorithm's row
(rlvr/algo/algorithms.py), READ_BY_LOSS the arguments of the loss's function (rlvr/algo/losses.py). So a new row, or a
new loss whose arguments are settings already, needs no change here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from rlvr.algo.algorithms import ALGORITHMS, Algorithm
from rlvr.algo.losses import LOSSES, Loss
from rlvr.core.registry import did_you_mean

from .settings import (
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
    settings_of,
)


@dataclass(frozen=True)
class OfAlgorithms(Used):
    """The setting exists with some algorithms only: those for whose row `has` is true."""

    has: Callable[[Algorithm], bool]


def of_algorithms(has: Callable[[Algorithm], bool]) -> Used:
    """Return the mark of a setting that exists only with algorithms for whose row `has` is true."""
    names = [row.name for row in ALGORITHMS.values() if has(row)]
    return OfAlgorithms(lambda config: has(config.algo.row), f"with --algo {join_words(names)}", has)


def READ_BY_LOSS(name: str) -> Used:
    """Return the mark of a setting that is an argument of some losses' functions: it is read with these losses."""
    readers = [loss for loss in LOSSES.values() if name in loss.settings]
    if all(loss.of_completions for loss in readers):  # which only an algorithm brings
        return of_algorithms(lambda row: name in LOSSES[row.loss].settings)
    flags = f"with --algo.loss {join_words([loss.name for loss in readers])}"
    return Used(lambda config: name in config.algo.loss_row.settings, flags)


def join_words(words: list[str]) -> str:
    """Return words as a choice: `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def is_weighted(config: Any) -> bool:
    """Return whether importance weights may differ from 1."""
    kind, algo = config.algo.importance, config.algo
    if algo.loss_row.ratio is None and kind == "auto":
        return False
    # In bfloat16, which dtype auto may choose, the torch sampler rounds otherwise than the trainer.
    one_engine = config.sampler.name == "torch" and config.model.dtype == "float32" and not config.sampler.max_staleness
    return kind != "none" and (kind != "auto" or not one_engine)


# Algorithms that weight rollouts by advantages, and do not choose or label them. WHOLE: those among them whose
# advantages are made of whole rewards, not of parts or of tokens' returns.
WEIGHING = of_algorithms(lambda row: not (row.chooses or row.labels))
WHOLE = of_algorithms(lambda row: not (row.chooses or row.labels or row.reads_parts or row.token_returns))
# Algorithms whose loss is a sum over tokens.
BY_TOKEN = of_algorithms(lambda row: not LOSSES[row.loss].of_completions)

WITH_KL = Used(lambda config: config.algo.kl_coef > 0, "with --algo.kl-coef above 0")
WITH_KL_TARGET = Used(lambda config: config.algo.kl_target is not None, "with --algo.kl-target")
WITH_ENTROPY_TARGET = Used(lambda config: config.algo.entropy_target is not None, "with --algo.entropy-target")
WITH_RESETS = Used(lambda config: config.algo.reference_every > 0, "with --algo.reference-every 1 or more")
WITH_PTX = Used(lambda config: config.algo.ptx_coef > 0, "with --algo.ptx-coef above 0")
WITH_WEIGHTS = Used(is_weighted, "with --algo.importance token or sequence")
OFFERED_LOSSES = Words(lambda: ("auto", *(loss.name for loss in LOSSES.values() if not loss.of_completions)))


@dataclass(frozen=True)
class AlgoConfig(Group):
    """Advantages and policy loss (rlvr/algo/advantages.py and losses.py: one function each)."""

    name: str = "grpo"
    """Training algorithm (table: rlvr/algo/algorithms.py); it brings its own settings."""
    loss: Annotated[str, OFFERED_LOSSES, WEIGHING] = "auto"
    """Policy loss. clip: PPO's clipped ratio per token. gspo, luspo, sequence: one clipped ratio per completion. cispo:
    the clipped ratio is a weight of the logprob. sapo, vespo: a soft gate of the ratio, per token and per completion.
    nll: no ratio. auto: clip."""
    epochs: Annotated[int, COUNT] = 1
    """Passes over each batch of rollouts (num_iterations in TRL)."""
    minibatches: Annotated[int, COUNT] = 1
    """Optimizer updates per pass."""
    normalize: Annotated[Literal["auto", "token", "sequence", "sum", "constant"], BY_TOKEN] = "auto"
    """What the loss is averaged over. token: all tokens (DAPO). sequence: each completion's tokens, then completions
    (GRPO). sum: completions, each the sum of its tokens (LUSPO). constant: completions x max_new_tokens (Dr. GRPO).
    Groups without signal count too. auto: sequence with the losses gspo, sequence and sapo, sum with luspo, else
    token."""
    clip_low: Annotated[float, SHARE, READ_BY_LOSS] = 0.2
    """The ratio is clipped below at 1 - clip_low (epsilon in TRL)."""
    clip_high: Annotated[float, WEIGHT, READ_BY_LOSS] = 0.2
    """The ratio is clipped above at 1 + clip_high (epsilon_high in TRL; DAPO: 0.28, CISPO: 4)."""
    dual_clip: Annotated[float | None, POSITIVE, ADVANCED, READ_BY_LOSS] = None
    """Dual-clip PPO: bound of the ratio for negative advantages, e.g. 3. None: no bound."""
    importance: Annotated[Literal["auto", "none", "token", "token_mask", "version", "sequence"], BY_TOKEN] = "auto"
    """Truncated importance sampling, to correct the mismatch between sampler and trainer. auto: token; none for the
    torch sampler in float32, which has no mismatch. version (with --sampler.slice-tokens): the product over the
    completion's tokens up to the last one that the same version of the weights sampled."""
    importance_cap: Annotated[float, POSITIVE, ADVANCED, BY_TOKEN, WITH_WEIGHTS] = 2.0
    """Upper bound of the importance weights."""
    kl_coef: Annotated[float, WEIGHT, BY_TOKEN] = 0.0
    """Weight of the KL divergence to the reference policy (beta in TRL). 0: no reference model is loaded."""
    kl_in: Annotated[Literal["auto", "loss", "reward"], WHOLE, WITH_KL] = "auto"
    """Where the KL term enters. loss: it is added to each token's loss. reward: it is subtracted from the reward, per
    token with PPO, else summed over the completion, with its own baseline, after the task's rewards are normalised.
    auto: the loss; the reward with raft and reinforce_plus_plus."""
    kl_estimator: Annotated[Literal["auto", "k1", "k2", "k3", "k3_is"], WEIGHING, WITH_KL] = "auto"
    """KL estimator (http://joschu.net/blog/kl-approx.html); k3_is: k3 times the ratio. auto: k3 in the loss, k1 in the
    reward. In the loss, k2 and k3_is have the gradient of the reverse KL, k3 of the forward KL."""
    kl_target: Annotated[float | None, POSITIVE, ADVANCED, WEIGHING, WITH_KL] = None
    """Target of the KL divergence per token: after each step kl_coef is adapted towards it (arXiv:1909.08593, section
    2.2; verl: adaptive). None: kl_coef stays fixed."""
    kl_horizon: Annotated[int, COUNT, ADVANCED, WEIGHING, WITH_KL_TARGET] = 10_000
    """After each step kl_coef is multiplied by 1 + e n / kl_horizon. n: scored completions of the step; e: KL /
    kl_target - 1, clipped to [-.2, .2]."""
    reference_every: Annotated[int, COUNT_OR_NONE, ADVANCED, WEIGHING, WITH_KL] = 0
    """Steps between resets of the reference policy to the present policy (DeepSeek-R1: 400). 0: never."""
    reference_mix: Annotated[float, POSITIVE_SHARE, ADVANCED, WEIGHING, WITH_RESETS] = 1.0
    """Share of the present policy in the new reference policy's weights; the rest is the old one's (TRL:
    ref_model_mixup_alpha)."""
    entropy_coef: Annotated[float, WEIGHT, ADVANCED, WEIGHING] = 0.0
    """Weight of the entropy bonus: the mean entropy per token, whatever the loss is averaged over. 0: none."""
    entropy_target: Annotated[float | None, POSITIVE, ADVANCED, WEIGHING] = None
    """Entropy per token in nats. At or below it the bonus is given and its weight grows by entropy_coef_delta each
    step; above it there is no bonus, and the weight shrinks by as much (arXiv:2505.22312). None: the bonus is always
    given, with the weight entropy_coef."""
    entropy_coef_delta: Annotated[float, POSITIVE, ADVANCED, WEIGHING, WITH_ENTROPY_TARGET] = 0.005
    """How much the weight of the entropy bonus grows or shrinks each step."""
    entropy_coef_max: Annotated[float, POSITIVE, ADVANCED, WEIGHING, WITH_ENTROPY_TARGET] = 1.0
    """Upper bound of the weight of the entropy bonus."""
    credit: Annotated[Literal["outcome", "turn", "step"], ADVANCED, WHOLE] = "outcome"
    """Which rewards a token is credited with. outcome: all of its rollout. turn: those of its turn and of later turns.
    step: those of its step and of later steps, if the verifier scores the steps of a turn. The expected gradient is the
    same."""
    advantage_scale: Annotated[Literal["auto", "none", "batch_std", "whiten"], ADVANCED, WHOLE] = "auto"
    """Scale advantages over the batch: divide by the standard deviation of its rewards, or whiten (PPO: over its
    tokens). auto: whiten for PPO without a KL term in the reward, else none. The KL term is never scaled."""
    reward_weights: Annotated[tuple[str, ...], of_algorithms(lambda row: row.reads_parts)] = ()
    """Weights of the reward's parts, as part=weight; 1 for those that are not named."""
    gamma: Annotated[float, POSITIVE_SHARE, of_algorithms(lambda row: row.per_token)] = 1.0
    """Discount per token."""
    gae_lambda: Annotated[float, SHARE, of_algorithms(lambda row: row.critic)] = 0.95
    """GAE lambda: 1 is return minus value, 0 the one-step TD error."""
    beta: Annotated[float, POSITIVE, READ_BY_LOSS] = 0.1
    """How strongly DPO and KTO hold the policy to the reference policy."""
    desirable_weight: Annotated[float, WEIGHT, READ_BY_LOSS] = 1.0
    """KTO: weight of the loss of good completions (a reward of 1/2 or more)."""
    undesirable_weight: Annotated[float, WEIGHT, READ_BY_LOSS] = 1.0
    """KTO: weight of the loss of bad completions. The paper sets the weights so that good and bad ones count about the
    same: desirable_weight x (number of good ones) is 1 to 4/3 of undesirable_weight x (number of bad ones)."""
    sapo_temperature_pos: Annotated[float, POSITIVE, ADVANCED, READ_BY_LOSS] = 1.0
    """SAPO's temperature for advantages above 0."""
    sapo_temperature_neg: Annotated[float, POSITIVE, ADVANCED, READ_BY_LOSS] = 1.05
    """SAPO's temperature for advantages of 0 or less. A higher one damps ratios far from 1 more."""
    vespo_k_pos: Annotated[float, WEIGHT, ADVANCED, READ_BY_LOSS] = 2.0
    """VESPO's exponent k for advantages of 0 or more."""
    vespo_lambda_pos: Annotated[float, POSITIVE, ADVANCED, READ_BY_LOSS] = 3.0
    """VESPO's decay lambda for advantages of 0 or more."""
    vespo_k_neg: Annotated[float, WEIGHT, ADVANCED, READ_BY_LOSS] = 3.0
    """VESPO's exponent k for negative advantages."""
    vespo_lambda_neg: Annotated[float, POSITIVE, ADVANCED, READ_BY_LOSS] = 2.0
    """VESPO's decay lambda for negative advantages."""
    ptx_coef: Annotated[float, WEIGHT, ADVANCED] = 0.0
    """Weight of the language-model loss on demonstrations, which is added to each update (PPO-ptx of InstructGPT,
    arXiv:2203.02155). The demonstrations are the pack's, or those of sft.data. 0: none."""
    ptx_batch_size: Annotated[int, COUNT, ADVANCED, WITH_PTX] = 32
    """Demonstrations per update."""

    @property
    def row(self) -> Algorithm:
        return ALGORITHMS[self.name]

    @property
    def loss_row(self) -> Loss:
        return LOSSES[self.policy_loss]

    # Settings whose value may be auto, resolved.

    @property
    def policy_loss(self) -> str:
        return self.row.loss if self.loss == "auto" else self.loss

    @property
    def normalizer(self) -> str:
        return self.loss_row.normalize if self.normalize == "auto" else self.normalize

    @property
    def kl_place(self) -> str:
        """Return `kl_in` with auto resolved. raft: chosen rollouts would not estimate the divergence in the loss."""
        if self.kl_in != "auto":
            return self.kl_in
        return "reward" if self.row.chooses or self.row.token_returns else "loss"

    @property
    def estimator(self) -> str:
        if self.kl_estimator != "auto":
            return self.kl_estimator
        return "k1" if self.kl_place == "reward" else "k3"

    @property
    def scale(self) -> str:
        """Return `advantage_scale` with auto resolved. REINFORCE++ whitens the KL term too, as published."""
        if self.advantage_scale != "auto":
            return self.advantage_scale
        in_reward = self.kl_coef > 0 and self.kl_place == "reward" and not self.row.token_returns
        return "none" if in_reward else self.row.scale

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0 or self.row.reference

    @property
    def corrects_mismatch(self) -> bool:
        """Return whether the loss has importance weights."""
        return self.importance != "none" and not self.loss_row.of_completions

    def loss_arguments(self) -> dict[str, Any]:
        """Return the arguments of `batch_loss` (rlvr/algo/losses.py) that are settings, except `importance`."""
        row = self.loss_row
        arguments = {"loss": row, "settings": {name: getattr(self, name) for name in row.settings}}
        if row.of_completions:
            return arguments
        return arguments | {
            "normalize": self.normalizer,
            "clip": (self.clip_low, self.clip_high),
            "kl_coef": self.kl_coef,
            "kl_estimator": self.estimator,
            "kl_in": self.kl_place,
            "importance_cap": self.importance_cap,
        }

    def for_algorithm(self, name: str) -> AlgoConfig:
        """Return the settings of another algorithm: those that both have are kept."""
        other = replace(self, name=name)
        return replace(other, **{setting: default for setting, default, _ in other._foreign()})

    def _foreign(self) -> list[tuple[str, Any, Used]]:
        """Return name, default and mark of each changed setting that the algorithm does not have."""
        defaults = {field.name: field.default for field in fields(self)}
        found: list[tuple[str, Any, Used]] = []
        for setting in settings_of(type(self)):
            unmet = next((u for u in setting.uses if isinstance(u, OfAlgorithms) and not u.has(self.row)), None)
            if unmet is not None and getattr(self, setting.name) != defaults[setting.name]:
                found.append((setting.name, defaults[setting.name], unmet))
        return found

    def rules(self, at: str) -> Rules:
        if self.name not in ALGORITHMS:
            return [(False, f"{at}name {self.name!r}; {did_you_mean(self.name, ALGORITHMS)}")]
        foreign = [
            (False, f"{at}{name} {getattr(self, name)} is read only {used.flags}; leave it out")
            for name, _, used in self._foreign()
        ]
        weights = [
            (is_weight(item), f"{at}reward_weights {item!r}: expected part=weight") for item in self.reward_weights
        ]
        return [*foreign, *self._loss_rules(at), *self._kl_rules(at), *self._credit_rules(at), *weights]

    def _loss_rules(self, at: str) -> Rules:
        return [
            (
                self.dual_clip is None or self.dual_clip > 1 + self.clip_high,
                f"{at}dual_clip {self.dual_clip}: expected a number above 1 + {at}clip_high ({1 + self.clip_high:g}), "
                "below which it would bound the ratio of good completions too",
            ),
            (
                self.dual_clip is None or "dual_clip" in self.loss_row.settings,
                f"{at}dual_clip with {at}loss {self.policy_loss}, which does not read it; leave it out",
            ),
            (
                not self.loss_row.fixed or self.normalizer == self.loss_row.normalize,
                f"{at}normalize {self.normalize} with {at}loss {self.policy_loss}, whose ratio is that of a whole "
                "completion: counted once for each token it would weigh a completion by its length; set auto or "
                f"{self.loss_row.normalize}",
            ),
            (
                not self.loss_row.weights_in_ratio or self.importance not in ("version", "sequence"),
                f"{at}importance {self.importance} with {at}loss {self.policy_loss}, whose ratio is that of a whole "
                "completion and has the importance weights of its tokens in it; set token",
            ),
        ]

    def _kl_rules(self, at: str) -> Rules:
        kl_in = self.kl_place if self.kl_coef > 0 else None
        return [
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
                kl_in != "loss" or self.estimator != "k3_is" or not self.loss_row.of_sequence,
                f"{at}kl_estimator k3_is with {at}loss {self.policy_loss}, whose ratio is that of a whole completion "
                "and not of the token; set k2 or k3",
            ),
            (
                self.kl_coef > 0 or (self.kl_target is None and self.reference_every == 0),
                f"{at}{'reference_every' if self.kl_target is None else 'kl_target'} with {at}kl_coef 0, which has no "
                f"reference policy; set {at}kl_coef above 0, or leave it out",
            ),
            (
                not self.row.critic or kl_in != "reward" or self.scale == "none",
                f"{at}advantage_scale {self.scale} with {self.name} and {at}kl_in reward: it would scale the KL term "
                f"with the rewards of the task; set auto or none, or --{at}kl-in loss",
            ),
        ]

    def _credit_rules(self, at: str) -> Rules:
        by_step = self.credit != "outcome"
        fitting = " or ".join(row.name for row in ALGORITHMS.values() if row.credits_steps)
        return [
            (
                not by_step or self.row.credits_steps,
                f"{at}credit {self.credit} with {self.name}, whose rule does not only subtract a mean: credit per "
                f"step would be biased; set --algo {fitting}",
            ),
            (
                not by_step or self.row.critic or self.scale == "none",
                f"{at}advantage_scale {self.scale} with {at}credit {self.credit}: it scales whole rollouts; set none",
            ),
            (
                not by_step or not self.loss_row.of_sequence,
                f"{at}credit {self.credit} with {at}loss {self.policy_loss}, whose ratio is that of a whole completion "
                "and not of a step; set clip, cispo or nll",
            ),
            (
                not self.row.critic or self.advantage_scale != "batch_std",
                f"{at}advantage_scale batch_std with {self.name}, whose advantages belong to tokens; set none or "
                "whiten",
            ),
        ]


def is_weight(item: str) -> bool:
    name, _, weight = item.partition("=")
    try:
        return bool(name) and math.isfinite(float(weight))
    except ValueError:
        return False
