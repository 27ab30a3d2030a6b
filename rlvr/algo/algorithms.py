"""The algorithms: one row each. The trainer reads what distinguishes an algorithm from its row, never from its name.

To add an algorithm, write its advantage rule in rlvr/algo/advantages.py and add a row to ALGORITHMS below: the name,
the paper, the rule, and what it needs beyond the defaults of `Algorithm`. docs/how-to/extend.md has an example. Losses
have a table of their own, in rlvr/algo/losses.py. Neither table imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Literal

from . import advantages as rules
from .advantages import BatchRule, Rewards


def per_group(rule: Callable[[Rewards], list[float]]) -> BatchRule:
    """Return the rule of one group (G rewards) as a rule of all groups, with its name and docstring."""

    @wraps(rule)
    def of_all(groups: Sequence[Rewards]) -> list[list[float]]:
        return [rule(group) for group in groups]

    return of_all


TrainsOn = Literal["signal", "all", "chosen"]

GROUP_MEAN = per_group(rules.dr_grpo)  # r - mean of the group


@dataclass(frozen=True)
class Algorithm:
    """What an algorithm computes, and what it needs."""

    name: str
    paper: str
    advantages: BatchRule | None
    """Turns the rewards of all groups (P x G) into advantages. None: `gdpo`, from the named parts of the rewards."""
    loss: str = "clip"
    """Default of algo.loss: a key of LOSSES in rlvr/algo/losses.py."""
    scale: str = "none"
    """Default of algo.advantage_scale, the scaling of advantages over the batch: a key of advantages.SCALES."""
    kl_baseline: BatchRule = GROUP_MEAN
    """Baseline of the KL costs, for a KL term in the reward: the algorithm's own rule where that is linear."""
    critic: bool = False
    """Trains a critic, which turns the rewards into an advantage for each token (rlvr/algo/gae.py)."""
    reference: bool = False
    """Needs a reference policy even without a KL term."""
    pairs: bool = False
    """The loss compares pairs of completions, a chosen and a rejected one."""
    labels: bool = False
    """The loss compares completions with the reference policy by label: their advantages are +1 (good) or -1."""
    token_returns: bool = False
    """The advantage of a token is its return, which includes the KL costs from that token on. No critic."""
    trains_on: TrainsOn = "signal"
    """Which completions are trained on. "signal": those of groups whose advantages are not all 0. The others have the
    gradient zero: they count in the loss's denominator, and are computed only if a KL term in the loss gives them a
    gradient. "all": those of every group, since a critic learns from them. "chosen": those whose advantage is not 0;
    the rule chooses completions instead of weighing them."""
    credits_steps: bool = False
    """Whether algo.credit may be turn or step: the rule only subtracts a mean (rlvr/algo/credit.py), or a critic's
    advantages are made of the steps' rewards."""
    group_relative: bool = True
    """Compares the completions of a group: a group of one, or with equal rewards, has no signal."""
    teachers: tuple[str, ...] = ()
    """Kinds of teachers that it may distil, its default first (rlvr/config/teacher.py); empty: it has no teacher. The
    advantages are those of the policy loss that the distillation is mixed with."""
    tells: bool = False
    """The teacher reads a prompt of its own, with the verifier's feedback on the completion."""

    @property
    def chooses(self) -> bool:
        """Return whether the rule chooses completions instead of weighing all of them."""
        return self.trains_on == "chosen"

    @property
    def per_token(self) -> bool:
        """Return whether tokens get advantages of their own, made of the rewards when the batch is prepared."""
        return self.critic or self.token_returns

    @property
    def reads_parts(self) -> bool:
        """Return whether the advantages are computed from the named parts of the rewards."""
        return self.advantages is None


ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm("grpo", "arXiv:2402.03300", per_group(rules.grpo)),
        Algorithm("dr_grpo", "arXiv:2503.20783", per_group(rules.dr_grpo), credits_steps=True),
        Algorithm(
            "rloo", "arXiv:2402.14740", per_group(rules.rloo), kl_baseline=per_group(rules.rloo), credits_steps=True
        ),
        Algorithm(
            "reinforce",
            "Williams 1992, doi:10.1007/BF00992696",
            rules.reinforce,
            kl_baseline=rules.reinforce,
            credits_steps=True,
            group_relative=False,
        ),
        Algorithm("reinforce_pp", "arXiv:2501.03262", rules.reinforce_pp),
        Algorithm(
            "reinforce_plus_plus",
            "arXiv:2501.03262",
            per_group(rules.keep_rewards),
            scale="whiten",
            trains_on="all",
            token_returns=True,
            group_relative=False,
        ),
        Algorithm("maxrl", "arXiv:2602.02710", per_group(rules.maxrl)),
        Algorithm("gdpo", "arXiv:2601.05242", None),
        Algorithm(
            "ppo",
            "arXiv:1707.06347",
            per_group(rules.keep_rewards),
            scale="whiten",
            critic=True,
            trains_on="all",
            credits_steps=True,
            group_relative=False,
        ),
        Algorithm("raft", "arXiv:2304.06767", per_group(rules.raft), loss="nll", trains_on="chosen"),
        Algorithm(
            "dpo", "arXiv:2402.04792", per_group(rules.dpo), loss="dpo", reference=True, pairs=True, trains_on="chosen"
        ),
        Algorithm(
            "kto",
            "arXiv:2402.01306",
            per_group(rules.labels),
            loss="kto",
            reference=True,
            labels=True,
            trains_on="all",
            group_relative=False,
        ),
        Algorithm(
            "opd",
            "arXiv:2306.13649",
            per_group(rules.grpo),
            trains_on="all",
            group_relative=False,
            teachers=("model", "server", "base", "start", "ema"),
        ),
        Algorithm(
            "sdpo",
            "arXiv:2601.20802",
            per_group(rules.grpo),
            trains_on="all",
            group_relative=False,
            teachers=("ema", "live", "start", "base", "model", "server"),
            tells=True,
        ),
    )
}
"""The algorithms, by the word of `--algo`."""
