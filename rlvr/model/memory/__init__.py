"""The memory of a run, from its settings and the model's config.

estimate.Estimate             the formulas; microbatch_tokens cuts microbatches by them
plan.make_plan, advice        what each GPU holds in each stage, and which flags make it fit
plan.known_settings           configs of well-known models, without a network
"""
