"""Checkpoints on the disk.

`folders`: where they lie, which are whole, which measured best. `checkpoint`: write and load one, optimizer state and
rollouts sampled ahead included. `resume`: which settings may change when a run is resumed, and run.start_from.
`folders` loads without torch.
"""
