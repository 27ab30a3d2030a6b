"""The update of the weights.

optimizer    make_optimizer, learning_rate, optimizer_step; BucketedAdamW for short dtypes and offloaded state
sharding     weights in shards (FSDP2): shard, gather, fill
health       numbers that are not finite, and the end of a run that they would ruin
"""
