"""vLLM in this process or as servers, and how weights reach it.

sampler.VLLMSampler           the sampler, on one of two engines
engine                        what an engine is; options of vLLM; `local` is the one in this process,
servers, server               and these are servers: pushes, losses, routing; one server, its process
transfer, receive, worker     weights on their way: the trainer's end, vLLM's end, loading in place
weights, proof                which weights are pushed; whether an engine has them
doctor                        the checks of `rlvr doctor --model M`
"""
