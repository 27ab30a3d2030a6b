"""The forward pass on packed tokens: no padding is computed, and a prompt once for all its completions.

packed.PackedGroups         prompts and completions laid end to end, and their attention
packed.pack, unpack         give a transformers model this attention
passes.hidden_states        last hidden states, by the model's own forward or the one for Llama-like models
passes.output_logits        from hidden states to logits
"""
