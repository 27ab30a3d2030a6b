"""Models in GGUF files (llama.cpp's format), converted once into a folder as transformers writes it.

transformers dequantises the weights and rebuilds tokenizer and chat template. For 135M weights that takes 20 seconds,
so the result is kept. Everything else then reads the folder: the policy, vLLM, adapters, checkpoints.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlvr.core.files.cache import cache_root, make_once
from rlvr.core.files.models import Place, Source, find_model

from .pretrained import load_errors_as_value_error, load_tokenizer

SAMPLE = 2**20  # bytes at both ends of a file that name its copy in the cache, beside its size


def find_converted(name: str, revision: str | None = None, *, kind: str = "causal LM") -> Source:
    """Find the files of a model as `find_model` does; a GGUF file is converted first, into the cache.

    Raises ValueError in one line for a model that does not exist, and for a file that transformers cannot read.
    """
    source = find_model(name, revision, kind=kind)
    places = {place: _convert_once(place) for place in {source.weights, source.tokenizer} if place.is_gguf()}
    return replace(
        source,
        weights=places.get(source.weights, source.weights),
        tokenizer=places.get(source.tokenizer, source.tokenizer),
    )


def cache_folder(file: Path) -> Path:
    """Return where the conversion of a file is kept: in $XDG_CACHE_HOME/rlvr, by its size and content at both ends."""
    with file.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        start = stream.read(SAMPLE)
        stream.seek(max(size - SAMPLE, 0))
        digest = hashlib.sha256(b"%d" % size + start + stream.read(SAMPLE)).hexdigest()
    return cache_root() / "gguf" / f"{file.stem}-{digest[:12]}"


def _convert_once(place: Place) -> Place:
    """Convert a file unless that was done before; return the folder in the cache."""
    file = Path(place.name)
    folder = make_once(cache_folder(file), partial(convert, file))
    return Place(str(folder), converted_from=os.path.abspath(place.name))


@contextmanager
def _struct_errors() -> Iterator[None]:
    """Context in which a header that ends too early raises ValueError, as other broken files do."""
    try:
        yield
    except struct.error as error:
        raise ValueError(f"its header is cut off ({error}); copy it again") from error


def require_gguf(name: str) -> None:
    """Raise ValueError where the package that reads the file `name` is missing."""
    if importlib.util.find_spec("gguf") is None:
        raise ValueError(f"{name}: GGUF files need the package gguf; pip install -e '.[gguf]'")


def convert(file: Path, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Write weights, config, tokenizer and chat template of a GGUF file into a folder; return the model.

    In float32 the weights are those of the dequantised file. Raises ValueError, in one line, for a file that
    transformers cannot read as a causal LM, and where the package gguf is missing.
    """
    from transformers import AutoModelForCausalLM

    require_gguf(file.name)
    with load_errors_as_value_error(str(file)), _struct_errors():
        place: dict[str, Any] = {"gguf_file": file.name}
        tokenizer = load_tokenizer(str(file.parent), **place)
        model = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=dtype, **place)
        # The weights are no longer quantised, and transformers refuses to save what it believes to be.
        model.hf_quantizer = None
        del model.config.quantization_config
        model.config._name_or_path = file.stem
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return model
