"""Credit per step: the steps of a rollout (its turns, or parts of a turn), returns to go, and their advantages.

The advantage of step k of rollout i is

    A(i, k) = G(i, k) - mean over j != i of G(j, min(k, K_j)),    G(i, k) = r(i, k) + ... + r(i, K_i)

where the outcome is added to the last step's reward. This is RLOO (`rloo` of rlvr/algo/advantages.py) on each column k
of the returns to go; with one step it is RLOO itself. Other rules that subtract a mean are applied in the same way.

The mean of sum_k A(i, k) grad log pi(step k) over all rollouts is the gradient of the expected return. Two things are
known when step k begins, and therefore do not bias it: the rewards before step k, which G leaves out, and the number k,
the only thing in the baseline that depends on rollout i. For this, a step's end and score may depend only on the text
up to its end. A rule that divides by a spread (grpo, or MT-GRPO's normalization, arXiv:2505.11821) has another
gradient: tests/algo/test_credit.py enumerates both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from .advantages import BatchRule, is_flat


@dataclass(frozen=True, slots=True)
class Steps:
    """One rollout in K steps: for each its value (a reward or an advantage) and its number of tokens.

    The lengths add up to the completion's tokens. ValueError if there are no steps, or not one length per value.
    """

    values: tuple[float, ...]
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.lengths) or not self.values:
            raise ValueError(f"{len(self.values)} values of {len(self.lengths)} steps; expected one of each step")

    def per_token(self) -> list[float]:
        """Return the value of each token's step."""
        return [value for value, length in zip(self.values, self.lengths) for _ in range(length)]

    def on_last_tokens(self) -> Steps:
        """Return the values on the last token of each step, and 0 on the others: as GAE reads rewards."""
        values: list[float] = []
        lengths: list[int] = []
        for value, length in zip(self.values, self.lengths):
            values += [0.0, value]
            lengths += [max(length - 1, 0), min(length, 1)]
        return Steps(tuple(values), tuple(lengths))


Advantage: TypeAlias = float | Steps
StepRewards: TypeAlias = Sequence[Steps | None]  # of one group; None: without a score


def returns_to_go(rewards: Sequence[float]) -> list[float]:
    """Return the sum of the rewards from each step on."""
    return list(accumulate(reversed(rewards)))[::-1]


def columns(groups: Sequence[StepRewards]) -> list[list[list[float | None]]]:
    """Return for k = 1, 2, ... up to the longest rollout the returns to go (P x G) from step min(k, K_j) on."""
    returns = [[None if steps is None else returns_to_go(steps.values) for steps in group] for group in groups]
    most = max((len(row) for group in returns for row in group if row is not None), default=0)
    return [
        [[None if row is None else row[min(k, len(row) - 1)] for row in group] for group in returns]
        for k in range(most)
    ]


def step_advantages(groups: Sequence[StepRewards], rule: BatchRule) -> list[list[Advantage]]:
    """Return the advantages (P x G) of all steps by a rule that subtracts a mean; 0.0 without a score.

    The values of `groups` are the rewards of steps. The rule is applied to each of the `columns`.
    """
    ruled = [rule(column) for column in columns(groups)]
    return [
        [
            0.0 if steps is None else Steps(tuple(ruled[k][p][i] for k in range(len(steps.values))), steps.lengths)
            for i, steps in enumerate(group)
        ]
        for p, group in enumerate(groups)
    ]


def is_flat_in_all_steps(group: StepRewards) -> bool:
    """Return whether a group carries no signal: fewer than two rollouts with a score, or equal returns in all steps.

    With equal returns of whole rollouts there may still be signal: they may differ in where the rewards came from.
    """
    found = columns([group])
    return not found or all(is_flat(column[0]) for column in found)
