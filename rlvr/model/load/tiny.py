"""The tiny model: untrained, for tasks with a small alphabet; a laptop trains it in minutes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

HEAD = 32  # size of an attention head, which vLLM's kernels take
SPECIAL_TOKENS = ("<pad>", "<eos>", "<unk>")


def tiny_tokenizer(corpus: Iterable[str], token_pattern: str = ".") -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are the matches of `token_pattern` in the corpus (Oniguruma; the dot matches \n).

    The ids depend only on the set of tokens: special tokens first, then sorted. Text between matches is a token of its
    own, so decoding gives the text back. Raises ValueError for an empty corpus.
    """
    split = pre_tokenizers.Split(Regex(f"(?m:{token_pattern})"), behavior="isolated")
    found = {piece for text in corpus for piece, _ in split.pre_tokenize_str(text)}
    if not found:
        raise ValueError(
            "the corpus is empty: the tiny model has the characters of demonstrations and prompts, and there are "
            "neither; name another model"
        )
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *sorted(found.difference(SPECIAL_TOKENS))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="right"
    )


def tiny_config(tokenizer: PreTrainedTokenizerFast, layers: int = 4, width: int = 128) -> Qwen2Config:
    """Return the sizes of the tiny model; width: of the hidden states, a multiple of 32, the size of a head.

    Initial weights are three times transformers' usual .02: at this size the usual ones learn markedly slower.
    """
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD,
        intermediate_size=3 * width,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.06,
        use_cache=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )


def tiny_model(tokenizer: PreTrainedTokenizerFast, seed: int, layers: int = 4, width: int = 128) -> Qwen2ForCausalLM:
    """Return a Qwen2, of 0.86M parameters by default; its weights are a function of the seed and the sizes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(tiny_config(tokenizer, layers, width))
