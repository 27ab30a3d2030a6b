"""Try on a few tokens what a model can be run by: the packed pass, the decoders, each against the plain forward.

No flag of transformers promises that a model computes the same packed, or token by token from a cache. So each way is
tried on a text before it is used, and again on a longer text before rows pass a length at which the model may begin to
compute something else (`boundaries`). A way whose result differs is not used.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlvr.model.attention import NAME, PackedGroups, Unsupported, hidden_states, packed_attention
from rlvr.model.decoding import CacheDecoder, Decoder, RepeatedDecoder, SharedDecoder
from rlvr.model.llama import is_llama_like
from rlvr.model.lm_head import output_logits

# Tokens of the first text that is tried, and by how many a later text passes the boundary that it is tried for.
SHORT, BEYOND = 40, 12
LENGTHS = re.compile(r"window|chunk|block_size|local_attention|index_topk")
NO_LENGTHS = re.compile(r"layer|pattern|feed_forward|lm_head|image|vision|audio|kernel|conv|^num_|^n_")
NO_MEMORY = re.compile(r"out of memory|allocate memory|not enough memory|alloc_cpu")
# Raised by models that do not take packed tokens, or whose cache cannot be copied.
FAILURES = (Unsupported, TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError, AssertionError)


def boundaries(causal: Any) -> tuple[int, ...]:
    """Return lengths in tokens, ascending, beyond which the model may compute differently: windows, rotary scalings.

    Read from the numbers with such names in its config (without vision and audio parts) and its modules. One that has
    no effect costs one more trial.
    """
    found: set[int] = set()
    for config in _configs(causal.config):
        unused = not getattr(config, "use_sliding_window", True)
        found.update(_lengths({k: v for k, v in vars(config).items() if not (unused and "sliding" in k)}))
        found.update(_rotary_lengths(config))
    for module in causal.modules():
        found.update(_lengths(vars(module)))
    return tuple(sorted(found))


def _configs(config: Any) -> Iterator[Any]:
    """Yield the config and those nested in it, except those of vision and audio parts."""
    yield config
    for name, value in vars(config).items():
        if hasattr(value, "model_type") and not re.search("vision|audio|image", name):
            yield from _configs(value)


def _lengths(values: dict[str, Any]) -> Iterator[int]:
    for name, value in values.items():
        if LENGTHS.search(name) and not NO_LENGTHS.search(name):
            numbers = value if isinstance(value, (list, tuple)) else [value]
            yield from (n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n > 1)


def _rotary_lengths(config: Any, kinds: tuple[str, ...] = ("longrope", "dynamic")) -> Iterator[int]:
    """Yield where rotary scalings begin that depend on the longest text of a forward pass."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for rope in nested or [parameters]:
        if rope.get("rope_type") in kinds:
            start = rope.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", None)
            if start:
                yield int(start)


class PackedTrial:
    """Gives a model the packed attention, if it then computes the same.

    `wanted` False leaves the model's own attention. `why_not` is empty where the packed attention is used, else the
    reason in a few words. limit: the length in tokens up to which that was checked, None: any. most: the length beyond
    which a row's probabilities depend on what the model has read before (rotary scaling `dynamic`), None: never.
    """

    def __init__(self, causal: Any, wanted: bool = True) -> None:
        self.why_not = "" if wanted else f"its attention is to be {causal.config._attn_implementation}"
        if wanted and causal.config._attn_implementation != NAME:
            self.why_not = _install(causal)
        self.boundaries = boundaries(causal)
        rotary = [n for config in _configs(causal.config) for n in _rotary_lengths(config)]
        dynamic = [n for config in _configs(causal.config) for n in _rotary_lengths(config, ("dynamic",))]
        reached = [length for length in self.boundaries if length + BEYOND > SHORT]
        self.limit = min(reached + rotary, default=None)
        self.most = min(dynamic, default=None)


def _install(causal: Any) -> str:
    """Try each packed pass. Return why none is right, or "": the model then has the packed attention."""
    own, layers = causal.config._attn_implementation, set(getattr(causal.config, "layer_types", None) or [])
    if other := sorted(layers - {"full_attention"}):
        return f"it has layers of the type {other[0]}"
    if own != "sdpa" or not causal._supports_attention_backend:
        return f"its attention ({own}) cannot be replaced"
    if NAME not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(NAME, packed_attention)
        AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    reason = ""
    try:
        causal.set_attn_implementation(NAME)
        for name in (["llama"] if is_llama_like(causal) else []) + ["own"]:
            causal.rlvr_pass = name
            reason = _attempt(lambda: _packed_difference(causal))
            if not reason:
                return ""
    finally:
        if reason or causal.config._attn_implementation != NAME:
            causal.set_attn_implementation("sdpa")
    return reason


def _attempt(trial: Callable[[], str]) -> str:
    """Return what a trial found, or the failure that ended it.

    Running out of memory says nothing about the model, and is raised.
    """
    try:
        return trial()
    except FAILURES as error:
        if isinstance(error, torch.OutOfMemoryError) or NO_MEMORY.search(str(error)):
            raise
        line = next(iter(str(error).splitlines()), "")
        return f"{type(error).__name__}: {line[:120]}".rstrip(": ")


@contextmanager
def _trying(causal: Any) -> Iterator[None]:
    """Run the model within in evaluation mode, at the full precision of its dtype, without gradients."""
    training, precision = causal.training, torch.get_float32_matmul_precision()
    causal.eval()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        causal.train(training)


def _text(causal: Any, length: int, first: int = 0) -> list[int]:
    """Return the ids of a text without a pattern. Small ids: multimodal models reserve the last ones for images."""
    vocabulary = causal.get_input_embeddings().weight.shape[0]
    return [(5 + i * i * 7 % 61 + i % 13) % vocabulary for i in range(first, first + length)]


def _plain_states(causal: Any, row: list[int]) -> Tensor:
    """Return the last hidden states (n, hidden) of one row by the model's own forward."""
    ids = torch.tensor([row], device=causal.get_input_embeddings().weight.device)
    return causal.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]


def _apart(found: Tensor, expected: Tensor) -> bool:
    """Return whether results differ by more than rounding: the largest entry in float32, the mean in shorter dtypes."""
    if found.shape != expected.shape or not bool(found.isfinite().all()):
        return True
    exact = expected.dtype is torch.float32
    difference, scale = (found.float() - expected.float()).abs(), expected.float().abs()
    return bool(difference.max() > 2e-3 * scale.max() if exact else difference.mean() > 0.05 * scale.mean())


def _packed_difference(causal: Any) -> str:
    """Return "" if two prompts with three completions give the same hidden states packed and one by one."""
    a, b = _text(causal, SHORT), _text(causal, SHORT, first=101)
    prompts, completions = [a[:9], b[:5]], [[a[9:], b[20:29]], [b[5:30]]]
    with _trying(causal):
        layout = PackedGroups(prompts, completions, causal.get_input_embeddings().weight.device)
        packed = hidden_states(causal, layout, layout.ids, layout.positions)
        for p, prompt in enumerate(prompts):
            for g, completion in enumerate(completions[p]):
                start = int(layout.starts[p][g])
                if _apart(
                    packed[start : start + len(completion)], _plain_states(causal, prompt + completion)[len(prompt) :]
                ):
                    return "packed rows give other hidden states than single rows"
    return ""


class Decoders:
    """The decoder for rows of each length: the first whose log-probabilities equal those of the plain forward."""

    def __init__(self, causal: Any, trial: PackedTrial, packs: bool) -> None:
        self.causal, self.trial, self.packs = causal, trial, packs
        self.chosen: dict[int, type[Decoder]] = {}
        self.for_length(min(SHORT, trial.most or SHORT))

    def for_length(self, length: int) -> type[Decoder]:
        """Return the decoder for rows of `length` tokens, prompt and completion. ValueError where there is none."""
        check_length(self.causal, self.trial, length)
        passed = bisect_left(self.trial.boundaries, length)  # those that are shorter
        if passed not in self.chosen:
            self.chosen[passed] = self._choose(passed)
        return self.chosen[passed]

    def _choose(self, passed: int) -> type[Decoder]:
        lengths, limit = self.trial.boundaries, self.trial.limit
        size = max(SHORT, lengths[passed - 1] + BEYOND) if passed else SHORT
        if passed < len(lengths):
            size = min(size, lengths[passed])
        makers: list[type[Decoder]] = [CacheDecoder, RepeatedDecoder]
        if self.packs and (limit is None or size <= limit):
            makers.insert(0, SharedDecoder)
        reasons = []
        for make in makers:
            reason = _attempt(lambda make=make: _decoder_difference(make, self.causal, size))  # type: ignore[misc]
            if not reason:
                return make
            reasons.append(reason)
        beyond = f" beyond {lengths[passed - 1]} tokens" if passed else ""
        raise ValueError(
            f"{type(self.causal).__name__} cannot be sampled by the torch sampler{beyond} ({reasons[-1]}); "
            "use --rollout.sampler vllm"
        )


def check_causal(causal: Any) -> None:
    """Raise ValueError for a model whose states depend on later tokens, as an encoder's do: it cannot be trained."""
    row = _text(causal, SHORT)
    with _trying(causal):
        part, whole = _plain_states(causal, row[: SHORT // 2]), _plain_states(causal, row)[: SHORT // 2]
        # Broken weights say nothing of this; whoever uses the model is told of them.
        if _apart(part, whole) and bool(whole.isfinite().all()):
            raise ValueError(
                f"{type(causal).__name__} gives a token another state where other tokens follow it; expected a causal "
                "language model (an encoder needs is_decoder in its config)"
            )


def check_length(causal: Any, trial: PackedTrial, length: int) -> None:
    """Raise ValueError for rows of `length` tokens if their probabilities depend on what was read before."""
    if trial.most is not None and length > trial.most:
        raise ValueError(
            f"rows of up to {length} tokens: beyond {trial.most} the rotary scaling 'dynamic' of "
            f"{type(causal).__name__} depends on what the model has read before; ask for fewer tokens "
            "(--rollout.max-new-tokens), or give the model's config another rope_type"
        )


def _decoder_difference(make: type[Decoder], causal: Any, size: int) -> str:
    """Return "" if a decoder gives the plain forward's logits for three rows of `size` tokens, one dropped early.

    Two rows continue one prompt, the third another.
    """
    steps = min(2 * BEYOND, size - size // 3)
    first = size - steps
    prompts = [_text(causal, first), _text(causal, first, first=101)]
    rows = [[*prompts[0], *_text(causal, steps, 211)], [*prompts[0], *_text(causal, steps, 307)]]
    rows.append([*prompts[1], *_text(causal, steps, 401)])
    with _trying(causal):
        # The token that comes last predicts what no decoder is asked for.
        plain = torch.stack(
            [output_logits(causal, _plain_states(causal, row[:-1])[first - 1 :]) for row in rows], dim=1
        )
        if plain.isnan().any():
            return ""  # of broken weights no decoder differs; drawing from their logits raises
        decoder = make(causal)
        alive, found = [0, 1, 2], [decoder.start(prompts, [2, 1])]
        for t in range(first, size - 1):
            tokens = torch.tensor([rows[i][t] for i in alive], device=found[0].device)
            found.append(decoder.step(tokens))
            if t == first + steps // 2:
                alive = [0, 2]
                decoder.keep(torch.tensor(alive, device=tokens.device))
        for expected, logits in zip(plain, found):
            if _apart(logits, expected[[0, 2]] if len(logits) == 2 else expected):
                return "its cache gives other log-probabilities than its whole forward pass"
    return ""
