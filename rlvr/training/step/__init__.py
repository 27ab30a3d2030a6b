"""What a step learns from its groups.

In order of use: `rewards` (verdicts to rewards, credit and advantages), `prepare` (old and reference logprobs, values,
token advantages, KL costs), `update` (minibatches, gradients, optimizer steps, their size and the sampler's mismatch).
`learner.Learner` is what is trained, with the coefficients that adapt and the resets of the reference.
"""
