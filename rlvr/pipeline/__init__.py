"""Pipelines: several trainings, samplings and evaluations as one command, `rlvr pipeline RECIPE`.

`stages` runs and skips them and writes report.html, `records` says what is done. `sampled` is what stages share
that sample texts: `revisions` (critique and revision) and `judged_pairs` (pairs labelled by a `pair_judge`).
"""
