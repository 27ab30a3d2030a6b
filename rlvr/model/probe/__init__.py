"""Which fast paths reproduce a model's plain forward pass, tried on a few tokens.

trial.PackedTrial          whether rows are packed, for which lengths
trial.Decoders             which decoder samples rows of a length
trial.check_causal         whether a model is a causal LM whose logits are known
small_copy                 runs these checks on a two-layer copy, where the real model is sharded
"""
