"""Loading a tokenizer as it was saved."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config


def load_tokenizer(name: str, **options: Any) -> Any:
    """The tokenizer of a hub name or folder. Raises OSError or ValueError where there is none.

    options: `from_pretrained`'s revision, local_files_only, trust_remote_code.

    One that was saved as a plain pipeline of the `tokenizers` library stays what it is. AutoTokenizer would look at the
    model beside it, and for some (qwen2 among them) put that model's own way of splitting text in its place, which
    loses every character that the saved vocabulary has not got in that form: the tiny model's spaces and newlines.
    """
    place = {key: options[key] for key in ("revision", "local_files_only") if key in options}
    if get_tokenizer_config(name, **place).get("tokenizer_class") == "TokenizersBackend":
        return PreTrainedTokenizerFast.from_pretrained(name, **place)
    return AutoTokenizer.from_pretrained(name, **options)
