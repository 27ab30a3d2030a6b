"""Where a policy comes from and goes to.

policy.load_policy, Policy     a causal LM with its tokenizer
policy.load_rendering          its prompts alone, without weights
lora                           adapters: make, load, merge, save
tiny                           the built-in model that a laptop trains
pretrained                     what transformers loads; devices and dtypes
"""
