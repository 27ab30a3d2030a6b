"""What watches the reward.

`monitor.Monitor`: a second verifier that never enters the reward, and its metrics. `alarm`: the signs of reward hacking
in these metrics, the guard on held-out pass@k, and the exceptions that stop a run or roll it back.
"""
