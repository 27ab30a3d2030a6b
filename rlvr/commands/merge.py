"""`rlvr merge ADAPTER OUT`: merge a LoRA adapter into its base model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlvr.core.files.models import Source, find_model

from .arguments import Positional, parse
from .export import check_new, write_new_folder

if TYPE_CHECKING:
    from torch import Tensor

# Allowed difference of logprobs in float32 between adapter and merged model: (W + BA)x and Wx + BAx round differently.
TOLERANCE = 1e-3
CHECK_TOKENS = 64


@dataclass(frozen=True)
class MergeArgs:
    """Merge an adapter into its base and write a full model with its tokenizer, as transformers loads it."""

    adapter: Positional[str]
    """Folder or hub name of an adapter, such as RUN/checkpoints/step-000100."""
    out: Positional[Path]
    """Folder to write: a new or empty one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the written weights; auto: the base model's. The merge itself is computed in float32."""
    revision: str | None = None
    """Branch, tag or commit of an adapter on the hub."""
    trust_remote_code: bool = False
    """Run Python code that comes with the base model."""


def main(argv: Sequence[str]) -> int:
    args = parse(MergeArgs, argv, prog="rlvr merge")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft's and transformers', of each other
        print(merge(args))
    return 0


def merge(args: MergeArgs) -> str:
    """Write the merged model and return a line that says what was written.

    Raise ValueError before anything is written where the adapter does not exist, the folder is not empty, or the merged
    model's logprobs differ from the adapter's.
    """
    source = find_model(args.adapter, args.revision, kind="model")
    if source.adapter is None:
        raise ValueError(f"{args.adapter!r} is a full model, not an adapter: there is nothing to merge")
    check_new(args.out, "rlvr merge:")
    from transformers.utils.logging import disable_progress_bar

    from rlvr.model.load.gguf import find_converted

    disable_progress_bar()
    source = find_converted(args.adapter, args.revision, kind="model")  # the base may be a GGUF file
    checked = ""
    if source.adapter_config.get("task_type") == "SEQ_CLS":
        model, tokenizer = merge_classifier(args)
    else:
        model, tokenizer, difference = merge_causal(args, source)
        checked = f"; before rounding its logprobs differ from the adapter's by {difference:.1g}"
    model = model.to(wanted_dtype(args, source))
    with write_new_folder(args.out) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    dtype = str(model.dtype).removeprefix("torch.")
    return f"{args.out}: {args.adapter} merged into {source.weights.name}, {dtype}{checked}"


def merge_causal(args: MergeArgs, source: Source) -> tuple[Any, Any, float]:
    """Return the merged causal LM, its tokenizer, and the largest difference of a logprob from the adapter's."""
    import torch

    from rlvr.config import ModelConfig
    from rlvr.model.load.lora import load_adapter, merge_adapter
    from rlvr.model.load.policy import load_pretrained
    from rlvr.model.load.pretrained import load_errors_as_value_error, switch_off_dropout

    config = ModelConfig(name=args.adapter, trust_remote_code=args.trust_remote_code)
    tokenizer, base = load_pretrained(source, config, torch.float32)
    with load_errors_as_value_error(args.adapter):
        adapted = load_adapter(base, source, trained=False)
    switch_off_dropout(adapted)
    before = some_logprobs(adapted)
    model = merge_adapter(adapted).eval()
    difference = float((before - some_logprobs(model)).abs().max())
    if not difference <= TOLERANCE:
        raise ValueError(
            f"the merged model differs from the adapter: logprobs by {difference:.3g} (expected at most "
            f"{TOLERANCE:g}); this kind of adapter ({source.adapter_config.get('peft_type')}) cannot be merged exactly"
        )
    return model, tokenizer, difference


def merge_classifier(args: MergeArgs) -> tuple[Any, Any]:
    """Return the merged sequence classifier and its tokenizer; their outputs are not compared."""
    from rlvr.reward_model.scorer import load_classifier

    classifier, tokenizer = load_classifier(
        args.adapter, device="cpu", dtype="float32", revision=args.revision, trust_remote_code=args.trust_remote_code
    )
    return classifier.model, tokenizer


def wanted_dtype(args: MergeArgs, source: Source) -> Any:
    import torch
    from transformers import AutoConfig

    place, trust = source.weights, args.trust_remote_code
    if args.dtype != "auto":
        return getattr(torch, args.dtype)
    stored = AutoConfig.from_pretrained(place.name, trust_remote_code=trust, **place.options()).dtype
    return stored if isinstance(stored, torch.dtype) else torch.float32


def some_logprobs(model: Any) -> Tensor:
    """Return the logprobs (n, V) of a fixed sequence of tokens."""
    import torch

    size = model.get_input_embeddings().num_embeddings
    ids = torch.tensor([[(7 * i + 3) % size for i in range(CHECK_TOKENS)]])
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
