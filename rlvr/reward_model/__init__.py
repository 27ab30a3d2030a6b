"""Learned rewards: the verifiers `reward_model` and `process_reward_model`, and the training of reward models.

`verifier` and `process` are the verifiers, `learned` is what they share, `loading` makes their models ready to score.
`text` renders prompt and completion, `scorer` computes scores. `preferences` holds pairs, `training` trains on them.
The first score imports torch, not this package.
"""

from .verifier import RewardModel

__all__ = ["RewardModel"]
