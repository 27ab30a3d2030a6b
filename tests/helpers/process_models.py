"""Tiny process reward models of the published forms, with random weights or ones that were fitted to a rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM, Qwen2ForTokenClassification

from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.reward_model.loading import TWO_LAYERS, with_two_layers
from tests.helpers.reward_models import ALPHABET, tiny_config

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


def fitted(
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
