"""The formulas, one function each, with paper and equation.

algorithms  ALGORITHMS, one row each: the advantage rule, the loss, what the trainer must know
advantages  from rewards to advantages: grpo, rloo, ...
credit      advantages of steps (turns, or parts of a turn); gae: of tokens, from a critic's values
losses      LOSSES, one row each: clip, gspo, ..., dpo, kto; KL estimators, importance weights, normalization
batch       from groups of rollouts to tensors: batches, minibatches, microbatches

Only `batch` and `gae` import torch, so that the settings can read both tables without it.
"""
