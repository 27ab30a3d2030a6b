"""Credit per step: by hand, and its mean over all outcomes of a toy against the gradient of the expected return."""

from __future__ import annotations

import itertools

import pytest
import torch

from rlvr.algo import advantages as rules
from rlvr.algo.algorithms import ALGORITHMS, per_group
from rlvr.algo.batch import advantage_tensor
from rlvr.algo.credit import (
    Steps,
    is_flat_in_all_steps,
    step_advantages,
)
from rlvr.algo.gae import token_rewards
from tests.helpers.turns_toy import (
    Episode,
    episodes,
    grpo_outcome,
    mean_estimate,
    mt_grpo,
    true_gradient,
)

CREDITED = [row for row in ALGORITHMS.values() if row.credits_steps and not row.critic]


def steps(*rewards: float) -> Steps:
    return Steps(rewards, (1,) * len(rewards))


def turn_credit(rule):
    """Return the estimator of the toy for a rule of the batch: the group is the whole batch."""

    def estimate(group):
        return [list(a.values) for a in step_advantages([[episode.steps for episode in group]], rule)[0]]

    return estimate


def off_line(estimate: torch.Tensor, gradient: torch.Tensor) -> float:
    """Return how far an estimate is from the nearest multiple of the gradient, relative to its length."""
    along = (estimate @ gradient) / gradient.square().sum() * gradient
    return float((estimate - along).norm() / estimate.norm())


def test_advantages_by_hand():
    """Returns to go: 3, 2 | 1 | 4, 4, 1. The third step is compared with the last returns of the others, 2 and 1."""
    group = [steps(1.0, 2.0), steps(1.0), steps(0.0, 3.0, 1.0)]
    first, second, third = step_advantages([group], per_group(rules.rloo))[0]
    assert first.values == pytest.approx((3 - 2.5, 2 - 2.5))
    assert second.values == pytest.approx((1 - 3.5,))
    assert third.values == pytest.approx((4 - 2, 4 - 1.5, 1 - 1.5))


@pytest.mark.parametrize("row", CREDITED, ids=lambda row: row.name)
def test_one_step_is_the_rule_itself(row):
    """Where every rollout is one step, its advantage is that of the algorithm, an unscored one included."""
    rewards = [[0.3, 1.0, None, 0.1], [None, 0.5, 0.25, 1.0]]
    found = step_advantages([[None if r is None else steps(r) for r in group] for group in rewards], row.advantages)
    plain = row.advantages(rewards)
    assert [[a.values[0] if isinstance(a, Steps) else a for a in group] for group in found] == plain


def test_unscored_rollouts_are_left_out():
    """They are in no baseline: with one other rollout left there is none to compare with."""
    assert step_advantages([[steps(1.0, 2.0), None]], per_group(rules.rloo)) == [[steps(0.0, 0.0), 0.0]]
    with_it = step_advantages([[steps(1.0, 2.0), None, steps(5.0)]], per_group(rules.rloo))[0]
    without = step_advantages([[steps(1.0, 2.0), steps(5.0)]], per_group(rules.rloo))[0]
    assert [with_it[0], with_it[2]] == without


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("row", CREDITED, ids=lambda row: row.name)
def test_mean_over_all_outcomes_is_the_gradient(row, size):
    """Of the expected return; a baseline with the rollout's own return in it makes it (size - 1) / size of that."""
    factor = 1.0 if row.advantages([[1.0, 0.0]])[0][0] == 1.0 else (size - 1) / size
    mean, _ = mean_estimate(turn_credit(row.advantages), size)
    assert torch.allclose(mean, factor * true_gradient(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("known", list(itertools.product([True, False], repeat=3)))
def test_unscored_rollouts_do_not_bias_the_others(known):
    """Whichever rollouts of a group of three have no score, the sum over the others is their number times the gradient.

    With fewer than two of them there is no baseline, and no gradient.
    """

    def estimate(group: list[Episode]) -> list[list[float]]:
        rows = step_advantages(
            [[episode.steps if k else None for episode, k in zip(group, known, strict=True)]], per_group(rules.rloo)
        )
        return [
            list(a.values) if isinstance(a, Steps) else [0.0] * len(e.rewards)
            for a, e in zip(rows[0], group, strict=True)
        ]

    mean, _ = mean_estimate(estimate, 3)
    share = sum(known) / 3 if sum(known) > 1 else 0.0
    assert torch.allclose(mean, share * true_gradient(), rtol=0, atol=1e-12)


def test_credit_of_whole_rollouts_has_the_same_mean():
    """The setting changes what an estimate varies by, never the gradient that it estimates."""
    whole, _ = mean_estimate(
        lambda group: [[a] * len(e.rewards) for e, a in zip(group, rules.rloo([sum(e.rewards) for e in group]))], 3
    )
    assert torch.allclose(whole, true_gradient(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "estimator",
    [grpo_outcome, mt_grpo, turn_credit(per_group(rules.grpo)), turn_credit(per_group(rules.maxrl))],
    ids=["grpo", "mt_grpo", "grpo in each turn", "maxrl in each turn"],
)
@pytest.mark.parametrize("size", [2, 3])
def test_published_normalisations_are_biased(estimator, size):
    """No multiple of the gradient is near their mean: a smaller step would not mend it."""
    assert off_line(mean_estimate(estimator, size)[0], true_gradient()) > 0.02


def test_the_toy_has_episodes_of_each_length():
    """And their probabilities add up to 1."""
    assert {len(episode.rewards) for episode in episodes()} == {1, 2, 3}
    assert sum(episode.probability for episode in episodes()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("group", "flat"),
    [
        ([steps(1.0), steps(1.0)], True),
        ([steps(0.0, 1.0), steps(1.0, 0.0)], False),  # equal in all, earned at different places
        ([steps(0.5, 0.5), steps(0.5, 0.5), None], True),
        ([steps(0.0, 1.0), steps(1.0)], True),
        ([steps(1.0, 1.0), steps(2.0)], False),
        ([steps(1.0, 2.0), None], True),
        ([None, None], True),
    ],
)
def test_a_group_is_flat_where_no_step_has_an_advantage(group, flat):
    """Flat, and all advantages 0, are the same."""
    assert is_flat_in_all_steps(group) is flat
    found = step_advantages([group], per_group(rules.rloo))[0]
    assert all(value == 0 for a in found if isinstance(a, Steps) for value in a.values) is flat


def test_steps_on_tokens():
    """Each token has its step's value, from the row's start on; prompt and padding have none."""
    table = advantage_tensor([Steps((1.0, -2.0), (2, 1)), Steps((3.0,), (1,)), 0.0], [1, 2, 1], 5)
    assert table.tolist() == [[0, 1, 1, -2, 0], [0, 0, 3, 0, 0], [0, 0, 0, 0, 0]]
    assert advantage_tensor([0.5, 1.0], [1, 1], 4).tolist() == [0.5, 1.0]


def test_rewards_of_steps_as_gae_reads_them():
    """On the last token of a step that is trained on; where a reply or a void turn ends it, on the token before."""
    rewards = Steps((1.0, 2.0, 4.0), (2, 3, 1)).on_last_tokens()
    assert rewards.per_token() == [0, 1, 0, 0, 2, 4]
    mask = torch.tensor([[True, False, True, True, False, False]])
    assert token_rewards(torch.tensor([rewards.per_token()]), mask).tolist() == [[1, 0, 0, 6, 0, 0]]
    unheard = torch.tensor([[False, False, True, True, True, True]])
    assert token_rewards(torch.tensor([rewards.per_token()]), unheard).tolist() == [[0, 0, 0, 0, 2, 4]]


@pytest.mark.parametrize(("values", "lengths"), [((), ()), ((1.0,), ()), ((1.0, 2.0), (1,))])
def test_steps_need_a_value_each(values, lengths):
    """Anything else is an error of the caller."""
    with pytest.raises(ValueError, match="expected one of each step"):
        Steps(values, lengths)
