"""The parts of a training run. rlvr.train is the loop; it reads top to bottom.

problems: which problems a step draws. rollout: sample, play and verify them. step: rewards, advantages, the update.
evaluation: pass@k. checkpoint: what lies on the disk. monitor: a second verifier, the reward-hacking alarm, guards.
supervision: signals, hangs, lost ranks. sft: fine-tuning. Here: `run` (a run and its held-out evaluations),
`callbacks`, `records` (what is logged of a step), `saving` (save, restore, roll back).

Nothing is imported here, since some of these modules must load without torch.
"""
