"""The shapes of well-known models, from their published config.json: `rlvr doctor --plan` needs no network for them."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

# hidden size, MLP, layers, heads, key heads, vocabulary, size of a head
_Sizes = tuple[int, int, int, int, int, int, int]
_QWEN25: dict[str, _Sizes] = {
    "0.5B": (896, 4864, 24, 14, 2, 151_936, 64),
    "1.5B": (1536, 8960, 28, 12, 2, 151_936, 128),
    "3B": (2048, 11008, 36, 16, 2, 151_936, 128),
    "7B": (3584, 18944, 28, 28, 4, 152_064, 128),
    "14B": (5120, 13824, 48, 40, 8, 152_064, 128),
    "32B": (5120, 27648, 64, 40, 8, 152_064, 128),
    "72B": (8192, 29568, 80, 64, 8, 152_064, 128),
}
_QWEN3: dict[str, _Sizes] = {
    "0.6B": (1024, 3072, 28, 16, 8, 151_936, 128),
    "1.7B": (2048, 6144, 28, 16, 8, 151_936, 128),
    "4B": (2560, 9728, 36, 32, 8, 151_936, 128),
    "8B": (4096, 12288, 36, 32, 8, 151_936, 128),
    "14B": (5120, 17408, 40, 40, 8, 151_936, 128),
    "32B": (5120, 25600, 64, 64, 8, 151_936, 128),
}
_LLAMA3: dict[str, _Sizes] = {
    "1B": (2048, 8192, 16, 32, 8, 128_256, 64),
    "3B": (3072, 8192, 28, 24, 8, 128_256, 128),
    "8B": (4096, 14336, 32, 32, 8, 128_256, 128),
    "70B": (8192, 28672, 80, 64, 8, 128_256, 128),
}
_SMOLLM2: dict[str, _Sizes] = {
    "135M": (576, 1536, 30, 9, 3, 49_152, 64),
    "360M": (960, 2560, 32, 15, 5, 49_152, 64),
    "1.7B": (2048, 8192, 24, 32, 32, 49_152, 64),
}
_GEMMA2: dict[str, _Sizes] = {
    "2b": (2304, 9216, 26, 8, 4, 256_000, 256),
    "9b": (3584, 14336, 42, 16, 8, 256_000, 256),
    "27b": (4608, 36864, 46, 32, 16, 256_000, 128),
}


def _named(template: str, sizes: dict[str, _Sizes], kind: str, tied: str, context: int) -> dict[str, dict[str, Any]]:
    """Return the settings of a family by name. tied: sizes whose LM head is the embedding, separated by spaces."""
    return {
        template.format(size): {
            "model_type": kind,
            **_settings(shape),
            "tie_word_embeddings": size in tied.split(),
            "max_position_embeddings": context,
        }
        for size, shape in sizes.items()
    }


def _settings(shape: _Sizes) -> dict[str, int]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return dict(zip((*names, "vocab_size", "head_dim"), shape))


def _of(sizes: dict[str, _Sizes], *names: str) -> dict[str, _Sizes]:
    return {name: sizes[name] for name in names}


_MISTRAL, _MISTRAL_03 = (4096, 14336, 32, 32, 8, 32_000, 128), (4096, 14336, 32, 32, 8, 32_768, 128)
_PHI3, _PHI4 = (3072, 8192, 32, 32, 32, 32_064, 96), (5120, 17920, 40, 40, 10, 100_352, 128)
_GEMMA3 = (1152, 6912, 26, 4, 1, 262_144, 256)

KNOWN: dict[str, dict[str, Any]] = {
    **{
        name: settings
        for end in ("", "-Instruct")
        for name, settings in (
            *_named("Qwen/Qwen2.5-{}" + end, _QWEN25, "qwen2", "0.5B 1.5B 3B", 32_768).items(),
            *_named("meta-llama/Llama-3.2-{}" + end, _of(_LLAMA3, "1B", "3B"), "llama", "1B 3B", 131_072).items(),
            *_named("meta-llama/Llama-3.1-{}" + end, _of(_LLAMA3, "8B", "70B"), "llama", "", 131_072).items(),
            *_named("meta-llama/Meta-Llama-3-{}" + end, _of(_LLAMA3, "8B", "70B"), "llama", "", 8192).items(),
            *_named("HuggingFaceTB/SmolLM2-{}" + end, _SMOLLM2, "llama", "135M 360M 1.7B", 8192).items(),
        )
    },
    **_named("meta-llama/Llama-3.3-{}-Instruct", _of(_LLAMA3, "70B"), "llama", "", 131_072),
    **_named("Qwen/Qwen3-{}", _QWEN3, "qwen3", "0.6B 1.7B 4B", 40_960),
    **_named("google/gemma-2-{}", _GEMMA2, "gemma2", "2b 9b 27b", 8192),
    **_named("google/gemma-2-{}-it", _GEMMA2, "gemma2", "2b 9b 27b", 8192),
    **_named("google/gemma-3-{}", {"1b-pt": _GEMMA3, "1b-it": _GEMMA3}, "gemma3_text", "1b-pt 1b-it", 32_768),
    **_named("mistralai/Mistral-7B-v0.{}", {"1": _MISTRAL}, "mistral", "", 32_768),
    **_named("mistralai/Mistral-7B-{}v0.3", {"": _MISTRAL_03, "Instruct-": _MISTRAL_03}, "mistral", "", 32_768),
    **_named("microsoft/Phi-3-mini-{}-instruct", {"4k": _PHI3}, "phi3", "", 4096),
    **_named("microsoft/{}", {"phi-4": _PHI4}, "phi3", "", 16_384),
    **_named("deepseek-ai/DeepSeek-R1-Distill-Qwen-{}", _of(_QWEN25, "1.5B", "7B", "14B", "32B"), "qwen2", "", 131_072),
    **_named("deepseek-ai/DeepSeek-R1-Distill-Llama-{}", _of(_LLAMA3, "8B", "70B"), "llama", "", 131_072),
}


def known_settings(name: str) -> Any | None:
    """Return transformers' config of a well-known model, with the sizes that memory depends on; None for another."""
    if name not in KNOWN:
        return None
    settings = dict(KNOWN[name])
    special = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    return AutoConfig.for_model(settings.pop("model_type"), **settings, **special)
