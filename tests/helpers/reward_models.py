"""Tiny random reward models, and texts to score."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForSequenceClassification

from rlvr.core.types import Problem
from rlvr.model.load.tiny import tiny_tokenizer

ALPHABET = "0123456789+-=ab \n<|>userassistant"


PAIRS = [(Problem(str(i), f"{i}+{i}="), "a" + "12 " * (7 * i % 5) + "b" * i) for i in range(9)]


def tiny_config(tokenizer, **options) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **options,
    )


def save_model(folder: Path, *, num_labels: int = 1, tokenizer=None, chat_template: str | None = None) -> str:
    """A random sequence classifier of two layers."""
    tokenizer = tokenizer or tiny_tokenizer([ALPHABET])
    tokenizer.chat_template = chat_template
    torch.manual_seed(3)
    Qwen2ForSequenceClassification(tiny_config(tokenizer, num_labels=num_labels)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def scores(verifier, pairs=PAIRS) -> list[float | None]:
    return [verdict.score for verdict in verifier.verify_batch(pairs)]
