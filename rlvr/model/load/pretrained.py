"""What transformers loads of a hub name or folder: tokenizer and weights, on which device, in which dtype.

And its errors, as one line that names the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import init_empty_weights
from huggingface_hub import errors
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from rlvr.config import ModelConfig
from rlvr.core.files.models import Place, kind_of_place

from ..optim.sharding import fill

# The base class of the hub's errors in its HTTP client, which differs by version.
HTTP_ERROR = cast(type[Exception], errors.HfHubHTTPError.__bases__[0])
# Raised by the libraries for broken or foreign files: they read fields and build modules before they check.
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
    """Context that turns the libraries' load errors into one-line ValueErrors that name the model."""
    try:
        yield
    except LOADING_ERRORS as error:
        reason = NEEDS_TRUST if "trust_remote_code" in str(error) else first_line(error)
        where = kind_of_place(name)
        raise ValueError(f"{where} {name!r} is not a {kind} that transformers can load: {reason}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; with the error's type where the text says little (a key) or nothing."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    kind = type(error).__name__
    return f"{kind}: {line}" if isinstance(error, KeyError | AttributeError | TypeError) else line or kind


def check_decoder(config: Any, name: str) -> None:
    """Raise ValueError for the config of an encoder-decoder: as a causal LM it would be a decoder without its input."""
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder ({config.model_type}); expected a causal language model")


def load_tokenizer(name: str, **options: Any) -> Any:
    """Return the tokenizer of a hub name or folder. Raises OSError or ValueError where there is none.

    options: `from_pretrained`'s revision, local_files_only, trust_remote_code, gguf_file.

    One that was saved as a plain pipeline of the `tokenizers` library is loaded as that. AutoTokenizer would look at
    the model beside it, and for some (qwen2 among them) substitute that model's way of splitting text, which loses
    every character that the saved vocabulary does not have in that form: the tiny model's spaces and newlines.
    """
    place = {key: options[key] for key in ("revision", "local_files_only") if key in options}
    if "gguf_file" not in options and get_tokenizer_config(name, **place).get("tokenizer_class") == "TokenizersBackend":
        return PreTrainedTokenizerFast.from_pretrained(name, **place)
    return AutoTokenizer.from_pretrained(name, **options)


def _as_jinja(value: Any) -> str:
    """Return a value that JSON can hold as it is written in a chat template."""
    if isinstance(value, list):
        return f"[{', '.join(map(_as_jinja, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_as_jinja(held)}" for key, held in value.items()) + "}"
    return "none" if value is None else json.dumps(value)


def use_template(tokenizer: Any, file: Path | None, options: Sequence[str] = ()) -> None:
    """Give a tokenizer the chat template in a file (None: its own), with variables that are set at its start.

    options: name=value, with a value in JSON. Raises ValueError for an unreadable file, for variables without a
    template, and for a value that is no JSON.
    """
    if file is not None:
        try:
            text = file.expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "expected text in UTF-8"
            raise ValueError(f"model.chat_template {file}: {reason}") from error
        if not text.strip():
            raise ValueError(f"model.chat_template {file}: the file is empty")
        tokenizer.chat_template = text
    if options and not isinstance(tokenizer.chat_template, str):
        raise ValueError("model.chat_option, and the tokenizer has no chat template; set model.chat_template, too")
    for name, _, value in (option.partition("=") for option in options):
        try:
            written = _as_jinja(json.loads(value))
        except ValueError as error:
            advice = 'expected JSON: true, 3 or "text" in quotation marks'
            raise ValueError(f"model.chat_option {name}={value}: {advice}") from error
        line = "{%- set " + f"{name} = {written}" + " -%}\n"
        if not tokenizer.chat_template.startswith(line):  # as saved by a run that this one goes on with
            tokenizer.chat_template = line + tokenizer.chat_template


def make_empty_model(place: Place, config: ModelConfig, dtype: torch.dtype) -> Any:
    """Return the causal LM of a folder or hub name with its weights on the meta device, as transformers makes it."""
    trust = {"trust_remote_code": config.trust_remote_code}
    attention = {} if config.attention == "auto" else {"attn_implementation": config.attention}
    settings = AutoConfig.from_pretrained(place.name, **place.options(), **trust)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(settings, dtype=dtype, **trust, **attention)
    with suppress(OSError):  # there may be none
        model.generation_config = GenerationConfig.from_pretrained(place.name, **place.options())
    model.tie_weights()
    return model


def weight_files(place: Place) -> list[Path]:
    """Return the safetensors files of a folder or hub name; none where it has weights in another format."""
    options = {**place.options(), "_raise_exceptions_for_missing_entries": False}
    single = cached_file(place.name, SAFE_WEIGHTS_NAME, **options)
    if single is not None:
        return [Path(single)]
    index = cached_file(place.name, SAFE_WEIGHTS_INDEX_NAME, **options)
    if index is None:
        return []
    return [Path(file) for file in get_checkpoint_shard_files(place.name, index, **place.options())[0]]


def holds_every_weight(model: Any, files: list[Path]) -> bool:
    """Return whether files hold every weight of a model by its name and in its shape.

    They need not: transformers renames weights, and joins those of experts.
    """
    shapes: dict[str, list[int]] = {}
    for file in files:
        with safe_open(file, "pt") as stored:
            shapes |= {name: stored.get_slice(name).get_shape() for name in stored.keys()}  # noqa: SIM118
    persistent = [
        name for name in model.state_dict() if name not in dict(model.named_parameters(remove_duplicate=False))
    ]
    weights = {name: list(weight.shape) for name, weight in model.named_parameters()}
    return not persistent and all(shapes.get(name) == shape for name, shape in weights.items())


def read_weights(model: Any, files: list[Path]) -> None:
    """Fill the weights of a model from files that hold every weight, reading of each what this rank holds."""
    with ExitStack() as stack:
        opened = [stack.enter_context(safe_open(file, "pt")) for file in files]
        where = {name: stored for stored in opened for name in stored.keys()}  # noqa: SIM118
        for name, weight in model.named_parameters():
            fill(weight, where[name].get_slice(name))


def shorten(causal: Any, dtype: torch.dtype) -> None:
    """Store the weights of linear layers in the dtype that autocast gives them at each use: the results are the same.

    Embeddings, an LM head that is tied to them, and norms stay as they are.
    """
    embeddings = causal.get_input_embeddings().weight
    for module in causal.modules():
        if isinstance(module, nn.Linear) and module.weight is not embeddings:
            module.to(dtype)


def store_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Store a model's weights in a dtype. Buffers, such as the frequencies of rotary embeddings, stay as they are."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)


def set_attention(model: Any, attention: str) -> None:
    """Choose a model's attention implementation; auto leaves it. ValueError for one that it does not have."""
    if attention != "auto":
        try:
            model.set_attn_implementation(attention)
        except (ValueError, ImportError) as error:
            raise ValueError(f"model.attention {attention!r}: {first_line(error)}") from error


def recompute_activations(model: Any, *, lora: bool) -> None:
    """Switch gradient checkpointing on, by the name that the installed transformers has for it."""
    if lora:
        # Otherwise no input of a recomputed block requires a gradient, and the adapters would get none.
        model.enable_input_require_grads()
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable()
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def switch_off_dropout(model: Any) -> None:
    """Set all dropout to 0: it would put noise into the ratio of new to old probabilities."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def pick_device(name: str = "auto") -> torch.device:
    """Return the device. `auto`: cuda, else mps, else cpu. ValueError for one that this machine does not have.

    cuda:1 becomes torch's current device, on which kernels and pinned copies of this process then run.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r}: expected auto, cpu, cuda, cuda:1 or mps") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: torch finds no CUDA GPU here; use --model.device cpu")
    if device.type == "cuda" and device.index is not None:
        if device.index >= torch.cuda.device_count():
            raise ValueError(f"device {name!r}: torch finds {torch.cuda.device_count()} GPUs here, counted from 0")
        torch.cuda.set_device(device)
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of the computation. `auto`: bfloat16 on a GPU that has it, else float32."""
    if name == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if has_bf16 else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
