"""The rollouts of a step, from problems to verified groups.

`rollout.rollout` samples, `rollout.verify` judges, `rollout.collect` does both for a step with dynamic sampling, and
`rollout.RolloutPrefetcher` samples ahead, `slices.SlicedRollouts` in parts (partial rollouts). `episodes.play` plays
rollouts of several turns in an environment.
"""
