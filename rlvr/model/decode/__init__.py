"""Decoding: one token per step for many rows. rlvr.sampling draws the tokens.

decoders    SharedDecoder, PreparedDecoder, CacheDecoder, WholeDecoder: `start`, `step`, `keep`
cache       keys and values of prompts and rows, and the attention of new tokens
"""
