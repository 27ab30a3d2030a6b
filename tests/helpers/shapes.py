"""The shapes of models that recipes name."""

from __future__ import annotations

from transformers import Qwen2Config

from rlvr.model.memory.estimate import Shape
from rlvr.model.memory.plan import shape_of_config


def qwen(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, vocabulary: int, *, tied: bool) -> Shape:
    """The shape of a Qwen2.5 model, from its published config.json."""
    settings = Qwen2Config(
        hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=vocabulary, tie_word_embeddings=tied,
    )  # fmt: skip
    return shape_of_config(settings)


QWEN_15B = qwen(1536, 8960, 28, 12, 2, 151_936, tied=True)
QWEN_3B = qwen(2048, 11008, 36, 16, 2, 151_936, tied=True)
QWEN_7B = qwen(3584, 18944, 28, 28, 4, 152_064, tied=False)
QWEN_32B = qwen(5120, 27648, 64, 40, 8, 152_064, tied=False)
