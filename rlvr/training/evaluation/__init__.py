"""pass@k of a policy on given problems, for held-out evaluations and `rlvr eval`.

`evaluate.evaluate` samples, verifies and summarizes; `answers.Answers` is the file of answers. `passk`: pass@k,
pass^k, maj@k, best@k, paired comparison, and their intervals. `answers` and `passk` load without torch.
"""
