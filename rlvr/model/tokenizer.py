"""Load a tokenizer as it was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config


def load_tokenizer(name: str, **options: Any) -> Any:
    """Return the tokenizer of a hub name or folder. Raises OSError or ValueError where there is none.

    options: `from_pretrained`'s revision, local_files_only, trust_remote_code.

    One that was saved as a plain pipeline of the `tokenizers` library is loaded as that. AutoTokenizer would look at
    the model beside it, and for some (qwen2 among them) substitute that model's way of splitting text, which loses
    every character that the saved vocabulary does not have in that form: the tiny model's spaces and newlines.
    """
    place = {key: options[key] for key in ("revision", "local_files_only") if key in options}
    if get_tokenizer_config(name, **place).get("tokenizer_class") == "TokenizersBackend":
        return PreTrainedTokenizerFast.from_pretrained(name, **place)
    return AutoTokenizer.from_pretrained(name, **options)


def use_template(tokenizer: Any, file: Path | None) -> None:
    """Give a tokenizer the chat template in a file; None leaves it as it is. Raise ValueError for an unreadable one."""
    if file is None:
        return
    try:
        text = file.expanduser().read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "expected text in UTF-8"
        raise ValueError(f"model.chat_template {file}: {reason}") from error
    if not text.strip():
        raise ValueError(f"model.chat_template {file}: the file is empty")
    tokenizer.chat_template = text
