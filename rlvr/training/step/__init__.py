"""From verified groups to optimizer steps.

In order of use: `rewards` (verdicts to rewards, credit and advantages), `prepare` (old and reference logprobs, values,
token advantages, KL costs), `update` (minibatches, gradients, optimizer steps, their size and the sampler's mismatch).
`learner.Learner` holds policy, optimizer, critic and reference policy; it adapts coefficients and resets the reference.
"""
