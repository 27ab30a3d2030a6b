"""Tiny random reward models, and texts to score."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from torch import nn
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen2ForTokenClassification,
)

from rlvr.core.types import Problem
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.reward_model.loading import TWO_LAYERS, with_two_layers

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


# Tiny process reward models of the published forms, with random weights or ones that were fitted to a rule.

CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"


def step_tokenizer(*, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """Return a tokenizer of characters with the tags of both forms: one special, the other a word as others."""
    tokenizer = tiny_tokenizer([f"{ALPHABET}ки"], token_pattern="ки|.|\n")
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<extra_0>", normalized=False)]})
    tokenizer.chat_template = chat_template
    return tokenizer


def save_head(
    folder: Path,
    *,
    chat_template: str | None = CHAT,
    layers: int = 2,
    change: Callable[[Any], None] = lambda model: None,
) -> str:
    """Save a classifier of tokens, with Qwen2.5-Math-PRM's name and head where `layers` is 2."""
    tokenizer = step_tokenizer(chat_template=chat_template)
    torch.manual_seed(5)
    kind = with_two_layers(Qwen2ForTokenClassification) if layers == 2 else Qwen2ForTokenClassification
    model = kind(tiny_config(tokenizer, num_labels=2)).eval()
    change(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if layers == 2:
        name_it(folder, TWO_LAYERS)
    return str(folder)


def save_answers(folder: Path, **options: Any) -> str:
    """Save a language model that answers with + or - behind a tag, as Math-Shepherd."""
    tokenizer = step_tokenizer()
    torch.manual_seed(6)
    Qwen2ForCausalLM(tiny_config(tokenizer, **options)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def name_it(folder: Path, architecture: str) -> None:
    """Write the name of a class into a model's config."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": [architecture]}))


def fit_head(
    right: Callable[[str], bool], texts: list[str], *, separator: str, steps: int = 150
) -> Callable[[Any], None]:
    """Return a change of weights: those of a head that was fitted to say which steps of the texts are right."""

    def fit(model: Any) -> None:
        tokenizer = step_tokenizer()
        tag = tokenizer.convert_tokens_to_ids("<extra_0>")
        rows, labels = [], []
        for text in texts:
            parts = text.split(separator)
            rows.append(tokenizer("<|user|>1+1=\n<|assistant|>" + "".join(f"{p}<extra_0>" for p in parts)).input_ids)
            labels.append([int(right(part)) for part in parts])
        width = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        targets = torch.tensor([label for row in labels for label in row])
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(steps):
            logits = model.score(model.base_model(input_ids=tokens).last_hidden_state)[tokens == tag]
            loss = nn.functional.cross_entropy(logits, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.3

    return fit
