"""Distillation: teachers, what they are told, and what a step learns from them.

teacher     who teaches: a model in this process, or a server (served), with what it is told (feedback)
beside      a batch beside its teacher: what it reads, the loss, the metrics
off_policy  the share of a distillation that is done on demonstrations
"""
