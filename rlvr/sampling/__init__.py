"""Samplers: completions from the policy's weights.

samplers.open_sampler, make_sampler    by the name of the settings (`--sampler`)
torch_sampler.TorchSampler             the trainer's own model, by continuous batching
vllm                                   vLLM, in this process or as servers
"""
