"""Supervised fine-tuning, and the pretraining mix of RL.

`sft.sft`: the loop. `sft.SupervisedCheckpoints`: its checkpoints, which reward models use too. `sft.accumulate_mix`:
demonstrations beside the policy's loss. `demonstrations`: those of a user's file; loads without torch.
"""
