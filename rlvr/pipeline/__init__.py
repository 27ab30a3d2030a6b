"""Pipelines: several trainings, samplings and evaluations as one command, `rlvr pipeline RECIPE`.

`stages` runs and skips them, records what is done and writes report.html. `sampled` is what stages share that sample
texts: `revisions` (critique and revision) and `judged_pairs` (pairs labelled by a judge).
"""
