"""What the trainer computes of given tokens.

scoring.token_logprobs    log-probabilities and entropies
critic.Critic             PPO's values
"""
