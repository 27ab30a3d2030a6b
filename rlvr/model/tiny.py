"""The tiny model: untrained, for tasks with a small alphabet; a laptop trains it in minutes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL_TOKENS = ("<pad>", "<eos>", "<unk>")


def tiny_tokenizer(corpus: Iterable[str], token_pattern: str = ".") -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are the matches of `token_pattern` in the corpus (Oniguruma; the dot matches \n).

    The ids depend only on the set of tokens: special tokens first, then sorted. Text between matches is a token of its
    own, so decoding gives the text back. Raises ValueError for an empty corpus.
    """
    split = pre_tokenizers.Split(Regex(f"(?m:{token_pattern})"), behavior="isolated")
    found = {piece for text in corpus for piece, _ in split.pre_tokenize_str(text)}
    if not found:
        raise ValueError("the tiny model's tokenizer is built from a corpus, and the corpus is empty")
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *sorted(found.difference(SPECIAL_TOKENS))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="right"
    )


def tiny_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2Config:
    """Return the sizes of the tiny model.

    Initial weights are three times transformers' usual .02: at this size the usual ones learn markedly slower.
    """
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=384,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.06,
        use_cache=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )


def tiny_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen2ForCausalLM:
    """Return a Qwen2 of 0.86M parameters; its weights are a function of the seed and the vocabulary size."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(tiny_config(tokenizer))
