"""vLLM in this process or as servers, and how weights reach it.

sampler.VLLMSampler           the sampler, on one of two engines
engine, local                 the protocol Engine, options of vLLM; the engine in this process
servers, server               the engine on servers: pushes, lost servers, routing; one server and its process
transfer, receive, worker     a push of weights: the trainer's end, vLLM's end, loading in place
weights, proof                which weights are pushed; the check that a server has them
doctor                        the checks of `rlvr doctor --model M`
"""
