"""Lengths in tokens beyond which a model may begin to compute something else, read from its config and modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

LENGTHS = re.compile(r"window|chunk|block_size|local_attention|attn_chunk|index_topk|indexer_budget|rel_extent")
NO_LENGTHS = re.compile(r"layer|pattern|feed_forward|lm_head|image|vision|audio|kernel|conv|^num_|^n_")
RECURRENT = re.compile(r"^(linear_|mamba_|ssm_|conv_|time_step_|short_conv|state_size)")
# Linear attention is computed in chunks of this many tokens by functions whose argument no config names.
CHUNK = 64


def boundaries(causal: Any) -> tuple[int, ...]:
    """Return lengths in tokens, ascending, beyond which the model may compute differently.

    Windows, chunks and rotary scalings: the numbers with such names in its config (without vision and audio parts) and
    its modules. One that has no effect costs one more trial.
    """
    found: set[int] = set(rotary_lengths(causal))
    for config in text_configs(causal.config):
        unused = not getattr(config, "use_sliding_window", True)
        values = vars(config)
        found.update(_lengths({k: v for k, v in values.items() if not (unused and "sliding" in k)}))
        if any(RECURRENT.search(name) for name, value in values.items() if value):
            found.add(CHUNK)
    for module in causal.modules():
        found.update(_lengths(vars(module)))
    return tuple(sorted(found))


def rotary_lengths(causal: Any, kinds: tuple[str, ...] = ("longrope", "dynamic")) -> tuple[int, ...]:
    """Return where rotary scalings begin whose angles depend on the longest text of a forward pass, ascending."""
    return tuple(sorted({n for config in text_configs(causal.config) for n in _rotary_lengths(config, kinds)}))


def text_configs(config: Any) -> Iterator[Any]:
    """Yield the config and those nested in it, except those of vision and audio parts."""
    yield config
    for name, value in vars(config).items():
        if hasattr(value, "model_type") and not re.search("vision|audio|image", name):
            yield from text_configs(value)


def _lengths(values: dict[str, Any]) -> Iterator[int]:
    for name, value in values.items():
        if LENGTHS.search(name) and not NO_LENGTHS.search(name):
            numbers = value if isinstance(value, (list, tuple)) else [value]
            yield from (n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n > 1)


def _rotary_lengths(config: Any, kinds: tuple[str, ...]) -> Iterator[int]:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for rope in nested or [parameters]:
        if rope.get("rope_type") in kinds:
            start = rope.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", None)
            if start:
                yield int(start)
