"""The formulas, one function each, with paper and equation.

algorithms    ALGORITHMS, one row each: the advantage rule, the loss, what the trainer must know
advantages    from rewards to advantages: grpo, rloo, ...
credit        advantages of steps (turns, or parts of a turn); gae: of tokens, from a critic's values
losses        LOSSES, one row each: clip, gspo, ..., dpo, kto; KL estimators, importance weights, normalization
distillation  divergences from a teacher, and the policy gradient of the reverse KL
batch         from groups of rollouts to tensors: batches, minibatches, microbatches

Only `batch`, `gae` and `distillation` import torch, so that the settings can read both tables without it.
"""
