"""`rlvr simulate-schedule`: how long a step takes, and who waits, with each way to schedule rollouts."""
