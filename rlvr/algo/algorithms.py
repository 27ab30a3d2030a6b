"""The algorithms: one row each. What distinguishes one algorithm from another is read from its row, never its name.

To add one: write its advantage rule in rlvr/algo/advantages.py (and its loss in rlvr/algo/losses.py, where it has one
of its own), and add a row here. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rlvr.algo import advantages as rules
from rlvr.algo.advantages import BatchRule, Rewards


def per_group(rule: Callable[[Rewards], list[float]]) -> BatchRule:
    """Return the rule of a single group (G rewards) as one of all groups."""
    return lambda groups: [rule(group) for group in groups]


TrainsOn = Literal["signal", "all", "chosen"]

GROUP_MEAN = per_group(rules.dr_grpo)  # r - mean of the group


@dataclass(frozen=True)
class PolicyLoss:
    """A policy loss: whether its ratio is that of a token, of the whole completion, or absent, and what it clips."""

    name: str
    paper: str
    ratio: str | None = "token"
    """"token", "sequence", or None: the loss has no ratio, hence no clipping and no importance correction."""
    dual_clip: bool = False
    """Whether it reads algo.dual_clip."""


@dataclass(frozen=True)
class Algorithm:
    """What an algorithm is made of, and what it needs."""

    name: str
    paper: str
    advantages: BatchRule | None
    """Turn the rewards of all groups (P x G) into advantages. None: from the named parts of the rewards (`gdpo`)."""
    loss: str = "clip"
    """The policy loss, a key of LOSSES, unless algo.loss names another."""
    fixed_loss: bool = False
    """Whether the loss cannot be another than `loss`."""
    scale: str = "none"
    """How advantages are scaled over the batch (a key of advantages.SCALES) unless algo.advantage_scale says."""
    kl_baseline: BatchRule = GROUP_MEAN
    """Baseline of a KL cost that is in the reward: the algorithm's own rule where that is linear."""
    critic: bool = False
    """Trains a critic, which turns the rewards into an advantage for each token (rlvr/algo/gae.py)."""
    reference: bool = False
    """Always holds a reference policy, not only for a KL term."""
    pairs: bool = False
    """The loss compares pairs of completions: the chosen and the rejected one."""
    trains_on: TrainsOn = "signal"
    """Which completions are trained on: "signal", all those of groups whose advantages are not all 0 (the others have
    the gradient zero; they count in the loss's denominator and are not computed, unless a KL term in the loss gives
    them a gradient); "all", those of every group, since a critic learns from them; "chosen", only those whose advantage
    is not 0: the rule chooses completions instead of weighing them."""
    group_relative: bool = True
    """The baseline is that of the group: a group of one, or with equal rewards, has no signal."""

    @property
    def chooses(self) -> bool:
        """Whether the rule chooses completions instead of weighing all of them."""
        return self.trains_on == "chosen"

    @property
    def reads_parts(self) -> bool:
        """Whether the advantages are made of the named parts of the rewards."""
        return self.advantages is None


LOSSES: dict[str, PolicyLoss] = {
    loss.name: loss
    for loss in (
        PolicyLoss("clip", "arXiv:1707.06347", dual_clip=True),
        PolicyLoss("gspo", "arXiv:2507.18071", ratio="sequence", dual_clip=True),
        PolicyLoss("sequence", "arXiv:2402.14740", ratio="sequence", dual_clip=True),
        PolicyLoss("cispo", "arXiv:2506.13585"),
        PolicyLoss("nll", "arXiv:2304.06767", ratio=None),
        PolicyLoss("dpo", "arXiv:2305.18290", ratio=None),
    )
}

ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm("grpo", "arXiv:2402.03300", per_group(rules.grpo)),
        Algorithm("dr_grpo", "arXiv:2503.20783", per_group(rules.dr_grpo)),
        Algorithm("rloo", "arXiv:2402.14740", per_group(rules.rloo), kl_baseline=per_group(rules.rloo)),
        Algorithm(
            "reinforce",
            "Williams 1992",
            rules.reinforce,
            kl_baseline=rules.reinforce,
            group_relative=False,
        ),
        Algorithm("reinforce_pp", "arXiv:2501.03262", rules.reinforce_pp),
        Algorithm("maxrl", "MaxRL", per_group(rules.maxrl)),
        Algorithm("gdpo", "GDPO", None),
        Algorithm(
            "ppo",
            "arXiv:1707.06347",
            per_group(rules.unchanged),
            scale="whiten",
            critic=True,
            trains_on="all",
            group_relative=False,
        ),
        Algorithm("raft", "arXiv:2304.06767", per_group(rules.raft), loss="nll", fixed_loss=True, trains_on="chosen"),
        Algorithm(
            "dpo",
            "arXiv:2402.04792",
            per_group(rules.dpo),
            loss="dpo",
            fixed_loss=True,
            reference=True,
            pairs=True,
            trains_on="chosen",
        ),
    )
}
