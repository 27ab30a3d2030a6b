"""Finding and checking a model's files: in a folder or on the hub, full weights or an adapter on a base model.

Only headers are read, and huggingface_hub is imported only to ask the hub. So a mistyped folder is reported at once.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..printable import kind_of
from ..registry import did_you_mean
from .hub import why_unreachable

ADAPTER_CONFIG = "adapter_config.json"
# A base model that exists nowhere else (the built-in tiny model) is saved in this folder of its adapter.
OWN_BASE = "base"
# Beside a reward model of `rlvr rm`: how texts are rendered, and its metrics.
SETTINGS = "reward_model.json"
GGUF, GGUF_START = ".gguf", b"GGUF"
HUB_SECONDS = 10.0
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
TOKENIZER_FILES = ("token*", "vocab*", "*.model", "merges.txt", "*.tiktoken")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, a GGUF file, or a hub name with its revision.

    cached_only: the hub is unreachable, and the model is in the cache. converted_from: of a folder in the cache, the
    GGUF file.
    """

    name: str
    revision: str | None = None
    cached_only: bool = False
    converted_from: str | None = None

    def is_gguf(self) -> bool:
        """Return whether it is a GGUF file, which rlvr.model.load.gguf converts before it is loaded."""
        return self.name.endswith(GGUF) and Path(self.name).is_file()

    def options(self) -> dict[str, Any]:
        """Return arguments of transformers' `from_pretrained` besides the name."""
        options: dict[str, Any] = {"revision": self.revision} if self.revision else {}
        return options | ({"local_files_only": True} if self.cached_only else {})

    def model_options(self) -> dict[str, Any]:
        """Return those of an AutoModel, which needs the same setting again for an adapter."""
        return self.options() | ({"adapter_kwargs": {"local_files_only": True}} if self.cached_only else {})


@dataclass(frozen=True, slots=True)
class Source:
    """Where to read a model's parts. With an `adapter`, `weights` is the base model.

    own_base: the base is in the adapter's folder.
    """

    weights: Place
    tokenizer: Place
    adapter: Place | None = None
    adapter_config: dict[str, Any] = field(default_factory=dict)
    own_base: bool = False


def find_model(name: str, revision: str | None = None, *, kind: str = "causal LM") -> Source:
    """Find the files of the model `name`, a folder or a hub name; it may be an adapter.

    The hub is asked once, for at most HUB_SECONDS. If it is unreachable, the cache is used. Raises ValueError in one
    line if there is no such model, or one of its files is broken.
    """
    source = _locate(name, revision, kind)
    if Path(source.tokenizer.name).is_dir():
        with _about(name, kind):
            check_tokenizer(Path(source.tokenizer.name))
    return source


def _locate(name: str, revision: str | None, kind: str) -> Source:
    """Return what `find_model` does, without checking the tokenizer."""
    folder = Path(name).expanduser()
    if folder.exists() or not is_hub_name(name):
        check_path(name)
        with _about(name, kind):
            return _in_folder(folder, name)
    place = on_hub(name, revision)
    adapter = _hub_adapter(place)
    if adapter is None:
        return Source(place, place)
    with _about(name, kind):
        return _in_folder(adapter, name)


@contextmanager
def _about(name: str, kind: str) -> Iterator[None]:
    """Turn a ValueError with a reason into one that names the folder or hub model."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"{kind_of_place(name)} {name!r} is not a {kind} that transformers can load: {error}"
        ) from error


def kind_of_place(name: str) -> str:
    """Return what messages call the place of a model: a folder, a file, or a model (of the hub)."""
    path = Path(name).expanduser()
    return "folder" if path.is_dir() else "file" if path.is_file() else "model"


def is_adapter(name: str) -> bool:
    """Return whether a folder holds an adapter. The hub is not asked."""
    return (Path(name).expanduser() / ADAPTER_CONFIG).is_file()


def is_hub_name(name: str) -> bool:
    """Return whether a name has the form of a hub name: NAME or ORG/NAME."""
    return bool(HUB_NAME.fullmatch(name)) and not name.startswith(".") and not name.endswith(GGUF)


def check_path(name: str | None) -> None:
    """Raise ValueError for a file, and for a missing folder whose name cannot be a hub name. None and "tiny" pass."""
    if name is None:
        return
    folder = Path(name).expanduser()
    if folder.is_file() and folder.suffix != GGUF:
        raise ValueError(f"model {name!r} is a file; expected the folder that holds it, a {GGUF} file, or a hub name")
    if folder.exists() or is_hub_name(name):
        return
    advice = "expected a folder, or a hub name such as Qwen/Qwen2.5-0.5B-Instruct"
    kind = "file" if folder.suffix == GGUF else "folder"
    raise ValueError(f"model {name!r}: no such {kind}{_siblings(folder)}; {advice}")


def _siblings(folder: Path) -> str:
    """Return a hint with similar names beside a missing folder, empty without any."""
    try:
        names = [path.name for path in folder.parent.iterdir() if path.is_dir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(folder.name, names, n=3, cutoff=0.6)
    return f" ({did_you_mean(folder.name, near)})" if near else ""


def _in_folder(folder: Path, name: str) -> Source:
    """Return the source in a folder or GGUF file after checking it. ValueError with a reason without its name."""
    if folder.is_file():
        with folder.open("rb") as file:
            if file.read(4) != GGUF_START:
                raise ValueError("it does not begin with the letters GGUF; copy it again")
        return Source(Place(str(folder)), Place(str(folder)))
    config = folder / ADAPTER_CONFIG
    if config.is_file():
        check_weights(folder)
        return _with_base(folder, read_object(config))
    if not (folder / "config.json").is_file():
        raise ValueError("it holds no config.json")
    if "model_type" not in read_object(folder / "config.json") and (folder / "checkpoints").is_dir():
        raise ValueError(f"it is a run, not a model; name one of its checkpoints{_checkpoints(folder, name)}")
    check_weights(folder)
    return Source(Place(str(folder)), Place(str(folder)))


def _checkpoints(folder: Path, name: str) -> str:
    """Return the last checkpoint in a run's folder as an example."""
    found = sorted(path.name for path in (folder / "checkpoints").glob("step-*") if path.is_dir())
    return f", such as {Path(name) / 'checkpoints' / found[-1]}" if found else "; it has none yet"


def _with_base(folder: Path, config: dict[str, Any]) -> Source:
    """Return the source of an adapter. Raises ValueError where the base model named in its config cannot be found."""
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ValueError(f"{ADAPTER_CONFIG} names no base model; set base_model_name_or_path in it")
    own = base == OWN_BASE and (folder / OWN_BASE / "config.json").is_file()
    try:
        base_source = _locate(str(folder / OWN_BASE) if own else base, config.get("revision"), "model")
    except ValueError as error:
        raise ValueError(
            f"its base model: {error} (base_model_name_or_path in {ADAPTER_CONFIG} says where the base is)"
        ) from error
    if base_source.adapter is not None:
        raise ValueError(f"its base {base!r} is an adapter too; `rlvr merge` that one first")
    adapter = Place(str(folder))
    brings = any(next(folder.glob(pattern), None) for pattern in TOKENIZER_FILES)
    return Source(base_source.weights, adapter if brings else base_source.tokenizer, adapter, config, own)


def read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not text in UTF-8; copy it again") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} is not JSON ({error.msg} in line {error.lineno}); copy it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds {kind_of(content)}; expected a JSON object")
    return content


def check_weights(folder: Path) -> None:
    """Raise ValueError for a truncated or broken safetensors file, and for a missing shard."""
    for index in folder.glob("*.safetensors.index.json"):
        shards = set(read_object(index).get("weight_map", {}).values())
        missing = sorted(shard for shard in shards if not (folder / shard).is_file())
        if missing:
            raise ValueError(f"{missing[0]} is missing ({len(missing)} of {len(shards)} files); copy it again")
    for path in sorted(folder.glob("*.safetensors")):
        check_safetensors(path)


def check_safetensors(path: Path) -> None:
    """Raise ValueError unless a safetensors file is as long as its header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start.startswith(b"version "):
            raise ValueError(f"{path.name} is a Git LFS pointer, not the weights; run `git lfs pull`")
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise ValueError(f"{path.name} is truncated or not a safetensors file ({size} bytes); copy it again")
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path.name} has a broken header; copy it again") from error
    whole = 8 + length + max(ends, default=0)
    if size != whole:
        raise ValueError(f"{path.name} has {size} bytes and should have {whole}; copy it again")


def check_tokenizer(folder: Path) -> None:
    """Raise ValueError for a folder without tokenizer files, and for a broken one."""
    if not any(next(folder.glob(pattern), None) for pattern in TOKENIZER_FILES):
        raise ValueError("it has no tokenizer (tokenizer.json, tokenizer_config.json); copy those of its base model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            read_object(folder / name)


def on_hub(name: str, revision: str | None) -> Place:
    """Return the place of a hub name. The hub is asked once: its own client would retry for half a minute.

    Raises ValueError where the hub has no such model, or is unreachable and the cache does not have it either.
    """
    from huggingface_hub import constants, errors, get_hf_file_metadata, get_token, hf_hub_url, try_to_load_from_cache

    http_error: Any = errors.HfHubHTTPError.__bases__[0]  # the HTTP library's; which library depends on the version
    files = ("config.json", ADAPTER_CONFIG)
    cached = any(isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in files)
    if constants.HF_HUB_OFFLINE:
        if cached:
            return Place(name, revision, cached_only=True)
        raise ValueError(f"{_neither(name)} in the cache, and HF_HUB_OFFLINE keeps it from being downloaded")
    reason = why_unreachable()
    try:
        if reason:
            raise OSError(reason)
        url = hf_hub_url(name, "config.json", revision=revision)
        get_hf_file_metadata(url, token=get_token(), timeout=HUB_SECONDS)
    except errors.EntryNotFoundError:
        pass  # an adapter, or something that transformers will refuse
    except errors.GatedRepoError as error:
        raise ValueError(f"model {name!r} is gated: accept its terms on the hub, then `hf auth login`") from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"model {name!r} has no revision {revision!r} on the hub") from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(f"{_neither(name)} on the hub (or it is private: `hf auth login`)") from error
    except (http_error, OSError) as error:
        if cached:
            return Place(name, revision, cached_only=True)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{_neither(name)} in the cache, and the hub ({constants.ENDPOINT}) cannot be reached: {reason}"
        ) from error
    return Place(name, revision)


def _neither(name: str) -> str:
    """Return the start of a message about a name that was found nowhere."""
    return f"model {name!r} is neither a folder in {os.getcwd()}{_siblings(Path(name))} nor a model"


def _hub_adapter(place: Place) -> Path | None:
    """Return the cache folder with an adapter's files, None for a hub name that is not an adapter.

    Downloads them here, since peft would ask the hub again.
    """
    from huggingface_hub import errors, hf_hub_download, snapshot_download, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(place.name, "config.json", revision=place.revision), str):
        return None
    try:
        hf_hub_download(place.name, ADAPTER_CONFIG, **place.options())
    except errors.EntryNotFoundError:
        return None
    patterns = ["adapter_*", *TOKENIZER_FILES, "special_tokens*", "added_tokens*", "chat_template*", SETTINGS]
    return Path(snapshot_download(place.name, allow_patterns=patterns, **place.options()))
