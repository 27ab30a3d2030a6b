"""`rlvr merge ADAPTER OUT`: an adapter's weights added to its base's, as a model of its own."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from rlvr.commands.arguments import parse
from rlvr.files.models import Source, find_model

if TYPE_CHECKING:
    from torch import Tensor

# Largest difference of a logprob between adapter and merged model in float32: the rounding of W + BA against Wx + BAx.
TOLERANCE = 1e-3
PROOF_TOKENS = 64


@dataclass(frozen=True)
class MergeArgs:
    """Merges an adapter into its base and writes a whole model with its tokenizer, as transformers loads it."""

    adapter: Positional[str]
    """Folder or hub name of an adapter, such as RUN/checkpoints/step-000100."""
    out: Positional[Path]
    """Folder to write; it must not exist, or be empty."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the written weights; auto: that of the base. Merging is done in float32."""
    revision: str | None = None
    """Branch, tag or commit of an adapter of the hub."""
    trust_remote_code: bool = False
    """Run the Python code that the base model brings with it."""


def main(argv: Sequence[str]) -> int:
    """`rlvr merge ADAPTER OUT [--dtype T]`."""
    args = parse(MergeArgs, argv, prog="rlvr merge")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft's and transformers', of each other
        print(merge(args))
    return 0


def check_out(out: Path, source: Source) -> None:
    """Raises ValueError where the folder to write holds something, or is the adapter's or its base's."""
    for place in (source.adapter, source.weights):
        if place is not None and Path(place.name).exists() and out.resolve() == Path(place.name).resolve():
            raise ValueError(f"{out} is what is to be merged; name another folder to write")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; expected a folder to write")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; name a folder that does not exist")


def merge(args: MergeArgs) -> str:
    """Writes the merged model. Returns a line that says what was written.

    Raises ValueError where there is no such adapter or the folder is taken, and where the merged model does not give
    the adapter's logprobs; nothing is written then.
    """
    source = find_model(args.adapter, args.revision, kind="model")
    if source.adapter is None:
        raise ValueError(f"{args.adapter!r} is a whole model and no adapter: there is nothing to merge")
    check_out(args.out, source)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    classifier = source.adapter_config.get("task_type") == "SEQ_CLS"
    model, tokenizer, difference = (merged_classifier if classifier else merged_causal)(args, source)
    dtype = str(model.dtype).removeprefix("torch.")
    write(model, tokenizer, args.out)
    proof = (
        "" if difference is None else f"; before rounding its logprobs differ from the adapter's by {difference:.1g}"
    )
    return f"{args.out}: {args.adapter} merged into {source.weights.name}, {dtype}{proof}"


def merged_causal(args: MergeArgs, source: Source) -> tuple[Any, Any, float | None]:
    """The merged model in the type that was asked for, its tokenizer, and the largest difference of a logprob."""
    import torch

    from rlvr.config import ModelConfig
    from rlvr.model.load_errors import load_errors_as_value_error
    from rlvr.model.lora import load_adapter, merge_adapter
    from rlvr.model.policy import load_pretrained, switch_off_dropout

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
            f"the merged model is not the adapter: logprobs differ by {difference:.3g} (expected at most "
            f"{TOLERANCE:g}); this kind of adapter ({source.adapter_config.get('peft_type')}) cannot be merged exactly"
        )
    return model.to(wanted_dtype(args, source)), tokenizer, difference


def merged_classifier(args: MergeArgs, source: Source) -> tuple[Any, Any, float | None]:
    """The same for an adapter of a sequence classifier; without the proof."""
    from rlvr.reward_model.scorer import load_classifier

    classifier, tokenizer = load_classifier(
        args.adapter,
        device="cpu",
        dtype="float32",
        revision=args.revision,
        trust_remote_code=args.trust_remote_code,
    )
    return classifier.model.to(wanted_dtype(args, source)), tokenizer, None


def wanted_dtype(args: MergeArgs, source: Source) -> Any:
    """The torch type of the written weights."""
    import torch
    from transformers import AutoConfig

    place, trust = source.weights, args.trust_remote_code
    if args.dtype != "auto":
        return getattr(torch, args.dtype)
    stored = AutoConfig.from_pretrained(place.name, trust_remote_code=trust, **place.options()).dtype
    return stored if isinstance(stored, torch.dtype) else torch.float32


def some_logprobs(model: Any) -> Tensor:
    """Logprobs (n, V) of a fixed sequence of tokens."""
    import torch

    size = model.get_input_embeddings().num_embeddings
    ids = torch.tensor([[(7 * i + 3) % size for i in range(PROOF_TOKENS)]])
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)


def write(model: Any, tokenizer: Any, out: Path) -> None:
    """Writes model and tokenizer beside their final place and moves them there, so that no half of one is left."""
    partial = out.with_name(out.name + ".partial")
    if partial.exists():
        raise ValueError(f"{partial} exists: another merge is writing it, or one was interrupted; delete it")
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        os.replace(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
