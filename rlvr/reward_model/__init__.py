"""Learned rewards: the verifiers `reward_model` and `process_reward_model`, and the training of reward models.

`learned` and `process` are the verifiers, `loading` makes their models ready to score.
`text` renders prompt and completion, `scorer` computes scores. `preferences` holds pairs, `training` trains on them.
The first score imports torch, not this package.
"""

from .learned import RewardModel

__all__ = ["RewardModel"]
