"""The update of the weights.

optimizer    make_optimizer, learning_rate, optimizer_step
adamw        AdamW in buckets: weights in bfloat16, moments in 8 bits, state in the CPU's memory
sharding     weights in shards (FSDP2): shard, gather, fill
health       numbers that are not finite, and the end of a run that they would ruin
"""
