"""What the attention of packed tokens is made of; rlvr.model.forward puts it together.

rows         rows of tokens laid end to end: padded and unpadded (Rows, GroupRows), which token sees which (Spans)
operations   norm, rotation, and how scores are changed (window, soft cap, sinks)
varlen       what a GPU computes: two calls of the flash kernel, for rows and for completions on their prompts
flex         what a GPU computes of windows, soft caps, sinks and float32: torch's flex_attention with a block mask
"""
