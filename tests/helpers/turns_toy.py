"""A toy of several turns, small enough that every outcome of a group can be enumerated; in float64.

States are histories of actions. The policy is tabular: a softmax over the actions of each state, with its own logits.
Episodes have one, two or three turns; each turn may have a reward, and the end an outcome.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlvr.algo.advantages import EPSILON, sample_std
from rlvr.algo.credit import Steps

# Number of actions in each state; a history that is no state is an end.
STATES: dict[tuple[int, ...], int] = {(): 3, (1,): 2, (2,): 3, (2, 1): 2}
# By history after the action: the reward of the turn; by the whole history: the outcome.
TURN_REWARDS = {(0,): 0.3, (1,): -0.4, (2,): 0.2, (1, 0): 0.7, (2, 1): -0.6, (2, 1, 0): 0.1, (2, 2): 0.5}
OUTCOMES = {(0,): 0.6, (1, 0): 0.0, (1, 1): 1.0, (2, 0): 0.2, (2, 1, 0): 1.0, (2, 1, 1): 0.1, (2, 2): 0.0}
LOGITS = (0.2, -0.5, 0.4, 0.9, -0.3, 0.6, -0.7, 0.1, -0.2, 0.8)


def make_theta() -> Tensor:
    """Return the logits of all states, one after the other: (10,) float64, with a gradient."""
    return torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)


@dataclass(frozen=True)
class Episode:
    """One whole history: its turns' rewards (the outcome in the last), its probability, its scores d log pi (K, 10)."""

    actions: tuple[int, ...]
    rewards: tuple[float, ...]
    probability: float
    scores: Tensor = field(repr=False)

    @property
    def outcome(self) -> float:
        return OUTCOMES[self.actions]

    @property
    def steps(self) -> Steps:
        """Its rewards as the estimator takes them, each turn one token."""
        return Steps(self.rewards, (1,) * len(self.rewards))


def action_logprob(theta: Tensor, state: tuple[int, ...], action: int) -> Tensor:
    """Return log pi(action | state)."""
    start = 0
    for other, count in STATES.items():
        if other == state:
            return torch.log_softmax(theta[start : start + count], 0)[action]
        start += count
    raise KeyError(state)


def histories(state: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield every whole history."""
    if state not in STATES:
        yield state
        return
    for action in range(STATES[state]):
        yield from histories((*state, action))


def rewards_of(actions: tuple[int, ...]) -> tuple[float, ...]:
    """Return the rewards of the turns of a history, the outcome in the last."""
    rewards = [TURN_REWARDS.get(actions[: k + 1], 0.0) for k in range(len(actions))]
    rewards[-1] += OUTCOMES[actions]
    return tuple(rewards)


def episodes() -> list[Episode]:
    """Return all episodes."""
    theta, found = make_theta(), []
    for actions in histories():
        logprobs = [action_logprob(theta, actions[:k], action) for k, action in enumerate(actions)]
        scores = torch.stack([torch.autograd.grad(logprob, theta, retain_graph=True)[0] for logprob in logprobs])
        found.append(Episode(actions, rewards_of(actions), float(torch.stack(logprobs).detach().sum().exp()), scores))
    return found


def true_gradient() -> Tensor:
    """Return the gradient of the expected return, from its definition: a sum over all episodes."""
    theta = make_theta()
    expected = torch.zeros((), dtype=torch.float64)
    for actions in histories():
        logprob = torch.stack([action_logprob(theta, actions[:k], a) for k, a in enumerate(actions)]).sum()
        expected = expected + logprob.exp() * sum(rewards_of(actions))
    return torch.autograd.grad(expected, theta)[0]


Estimator = Callable[[Sequence[Episode]], list[list[float]]]  # advantages of the turns of each rollout of a group


def mean_estimate(estimator: Estimator, size: int) -> tuple[Tensor, float]:
    """Return mean (10,) and total variance of 1/size sum_i sum_k A(i, k) d log pi(i, k) over all groups of a size."""
    mean, square = torch.zeros(len(LOGITS), dtype=torch.float64), 0.0
    for group in itertools.product(episodes(), repeat=size):
        weight = float(torch.tensor([episode.probability for episode in group], dtype=torch.float64).prod())
        estimate = torch.zeros_like(mean)
        for episode, advantages in zip(group, estimator(group), strict=True):
            estimate += torch.tensor(advantages, dtype=torch.float64) @ episode.scores / size
        mean += weight * estimate
        square += weight * float(estimate.square().sum())
    return mean, square - float(mean.square().sum())


def z_scores(values: Sequence[float]) -> list[float]:
    """Return (x - mean) / (std + 1e-4), as GRPO does."""
    mean = sum(values) / len(values)
    return [(value - mean) / (sample_std(values) + EPSILON) for value in values]


def grpo_outcome(group: Sequence[Episode]) -> list[list[float]]:
    """GRPO: the whole return, divided by the group's standard deviation, in all turns."""
    return [[a] * len(e.rewards) for e, a in zip(group, z_scores([sum(e.rewards) for e in group]), strict=True)]


def mt_grpo(group: Sequence[Episode]) -> list[list[float]]:
    """MT-GRPO (arXiv:2505.11821): a turn's reward and the outcome, each normalised, and added; the last the outcome's.

    A turn's rewards are normalised over the rollouts that have the turn.
    """
    outcomes = z_scores([episode.outcome for episode in group])
    rows = [[outcome] * len(episode.rewards) for episode, outcome in zip(group, outcomes, strict=True)]
    for k in range(max(len(episode.rewards) for episode in group)):
        there = [i for i, episode in enumerate(group) if len(episode.rewards) > k + 1]
        if there:
            own = z_scores([TURN_REWARDS.get(group[i].actions[: k + 1], 0.0) for i in there])
            for i, a in zip(there, own, strict=True):
                rows[i][k] += a
    return rows
