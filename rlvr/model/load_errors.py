"""Turn transformers', peft's and safetensors' errors about a model that they cannot load into one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from huggingface_hub import errors
from safetensors import SafetensorError

# The HTTP client's own, of which the hub's are a kind: which client it is differs by version.
HTTP_ERROR = cast(type[Exception], errors.HfHubHTTPError.__bases__[0])
# What a broken or foreign file makes the libraries raise: they read fields and build modules before they check.
LOADING_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    ImportError,
    AttributeError,
    TypeError,
    RuntimeError,
    ZeroDivisionError,
    SafetensorError,
    HTTP_ERROR,
)
NEEDS_TRUST = (
    "it brings its own code, which runs only with --model.trust-remote-code (reward_model: "
    "trust_remote_code=true); read that code first"
)


@contextmanager
def load_errors_as_value_error(name: str, kind: str = "causal LM") -> Iterator[None]:
    """Turn load errors of the libraries within into one-line ValueErrors that name the model."""
    try:
        yield
    except LOADING_ERRORS as error:
        where = "folder" if Path(name).expanduser().exists() else "model"
        reason = NEEDS_TRUST if "trust_remote_code" in str(error) else first_line(error)
        raise ValueError(f"{where} {name!r} is not a {kind} that transformers can load: {reason}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, with the error's type where that says little (a key), or all."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return (
        f"{type(error).__name__}: {line}"
        if isinstance(error, KeyError | AttributeError | TypeError)
        else line or (type(error).__name__)
    )
