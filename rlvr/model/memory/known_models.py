"""The shapes of well-known models, from their published config.json: `rlvr doctor --plan` needs no network for them."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

# Names with {} for a size and [] for an optional ending; type; context; sizes whose LM head is the embedding. Then by
# size: hidden size, MLP, layers, heads, key heads, vocabulary, size of a head.
FAMILIES = """
Qwen/Qwen2.5-{}[-Instruct] qwen2 32768 0.5B,1.5B,3B
  0.5B 896 4864 24 14 2 151936 64
  1.5B 1536 8960 28 12 2 151936 128
  3B 2048 11008 36 16 2 151936 128
  7B 3584 18944 28 28 4 152064 128
  14B 5120 13824 48 40 8 152064 128
  32B 5120 27648 64 40 8 152064 128
  72B 8192 29568 80 64 8 152064 128
deepseek-ai/DeepSeek-R1-Distill-Qwen-{} qwen2 131072 -
  1.5B 1536 8960 28 12 2 151936 128
  7B 3584 18944 28 28 4 152064 128
  14B 5120 13824 48 40 8 152064 128
  32B 5120 27648 64 40 8 152064 128
Qwen/Qwen3-{} qwen3 40960 0.6B,1.7B,4B
  0.6B 1024 3072 28 16 8 151936 128
  1.7B 2048 6144 28 16 8 151936 128
  4B 2560 9728 36 32 8 151936 128
  8B 4096 12288 36 32 8 151936 128
  14B 5120 17408 40 40 8 151936 128
  32B 5120 25600 64 64 8 151936 128
meta-llama/Llama-3.2-{}[-Instruct] llama 131072 1B,3B
  1B 2048 8192 16 32 8 128256 64
  3B 3072 8192 28 24 8 128256 128
meta-llama/Llama-3.1-{}[-Instruct] llama 131072 -
  8B 4096 14336 32 32 8 128256 128
  70B 8192 28672 80 64 8 128256 128
meta-llama/Meta-Llama-3-{}[-Instruct] llama 8192 -
  8B 4096 14336 32 32 8 128256 128
  70B 8192 28672 80 64 8 128256 128
meta-llama/Llama-3.3-{}-Instruct llama 131072 -
  70B 8192 28672 80 64 8 128256 128
deepseek-ai/DeepSeek-R1-Distill-Llama-{} llama 131072 -
  8B 4096 14336 32 32 8 128256 128
  70B 8192 28672 80 64 8 128256 128
HuggingFaceTB/SmolLM2-{}[-Instruct] llama 8192 135M,360M,1.7B
  135M 576 1536 30 9 3 49152 64
  360M 960 2560 32 15 5 49152 64
  1.7B 2048 8192 24 32 32 49152 64
google/gemma-2-{}[-it] gemma2 8192 2b,9b,27b
  2b 2304 9216 26 8 4 256000 256
  9b 3584 14336 42 16 8 256000 256
  27b 4608 36864 46 32 16 256000 128
google/gemma-3-{} gemma3_text 32768 1b-pt,1b-it
  1b-pt 1152 6912 26 4 1 262144 256
  1b-it 1152 6912 26 4 1 262144 256
mistralai/Mistral-7B-{} mistral 32768 -
  v0.1 4096 14336 32 32 8 32000 128
  v0.3 4096 14336 32 32 8 32768 128
  Instruct-v0.3 4096 14336 32 32 8 32768 128
microsoft/{} phi3 4096 -
  Phi-3-mini-4k-instruct 3072 8192 32 32 32 32064 96
microsoft/{} phi3 16384 -
  phi-4 5120 17920 40 40 10 100352 128
"""
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def known_models() -> dict[str, dict[str, Any]]:
    """Return the settings of all known models by name."""
    known: dict[str, dict[str, Any]] = {}
    for line in FAMILIES.strip().splitlines():
        if not line.startswith(" "):
            template, kind, context, tied = line.split()
            name, _, ending = template.partition("[")
            continue
        size, *numbers = line.split()
        settings = dict(zip((*SIZES, "vocab_size", "head_dim"), map(int, numbers), strict=True))
        settings |= {"tie_word_embeddings": size in tied.split(","), "max_position_embeddings": int(context)}
        for end in dict.fromkeys(("", ending.rstrip("]"))):
            known[name.format(size) + end] = {"model_type": kind, **settings}
    return known


def known_settings(name: str) -> Any | None:
    """Return transformers' config of a well-known model, with the sizes that memory depends on; None for another."""
    settings = known_models().get(name)
    if settings is None:
        return None
    special = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    return AutoConfig.for_model(settings.pop("model_type"), **settings, **special)
