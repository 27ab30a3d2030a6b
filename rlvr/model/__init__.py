"""The policy, and how it is computed.

Each folder is one subject; its own head names what it offers. From what others build on to what builds on it:

    text        prompts and replies as token ids; the model's context length
    attention   rows of tokens laid end to end, flex_attention for GPUs, operations of a layer
    cpu         the same computations, faster on a CPU; whoever reads the passes for a GPU need not open it
    forward     the packed forward pass, from token ids to logits
    decode      one token per step for many rows, with a cache of keys and values
    probe       which fast paths reproduce the plain forward pass of a model
    optim       AdamW, weights in shards, checks that numbers are finite
    load        the policy: load, save, LoRA, the tiny model
    logprobs    log-probabilities and values of tokens, for training
    memory      what a run needs, before anything is loaded
"""
