"""Distillation: teachers, the feedback in their prompts, and what a step learns from them.

teacher     the teacher: a model in this process, or one on a server (served)
feedback    the verifier's feedback in the teacher's prompt (sdpo)
beside      the teacher's part of a batch: prompts, weights, answers; the loss, the metrics
off_policy  the share of a distillation that is done on demonstrations
"""
