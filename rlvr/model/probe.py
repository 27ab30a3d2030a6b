"""Which fast paths of a model reproduce its plain forward pass, tried on a few tokens before they are used.

No flag of transformers promises that a model computes the same packed, padded, or token by token from a cache. So each
way is tried on a text when the model is loaded, and again on a longer text before rows pass a length at which the model
may begin to compute something else (`find_boundaries`). A way whose log-probabilities differ is not used.
"""

from __future__ import annotations

import copy
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .cpu.linear import can_prepare
from .decode import CacheDecoder, Decoder, PreparedDecoder, SharedDecoder, WholeDecoder
from .forward.packed import PACKED, PackedGroups, Unsupported, Windows, pack, unpack
from .forward.passes import check_logits, hidden_states, is_llama_like, output_logits

# Tokens of the first text that is tried. A later text passes its boundary by BEYOND tokens, or by an eighth: of many
# keys a few that are not seen would change too little. A text of more than LONG is tried as one row, for its cost.
SHORT, BEYOND, LONG = 43, 12, 400
# Largest difference of a log-probability: in float32 this, or so many times what rounding the embeddings changes in the
# plain forward. Shorter dtypes are compared by the mean difference.
EXACT, COARSE, NOISE = 1e-4, 0.05, 10.0
# Mean error of prepared weights, in the dtype that decodes, as a multiple of that of the plain weights in this dtype.
SAME_ROUNDING = 1.5
LEAST = -1e4  # log-probabilities below, -inf too, count as equal
NO_MEMORY = re.compile(r"out of memory|allocate memory|not enough memory|alloc_cpu")
# Raised by models that do not take packed tokens, or whose cache cannot be copied.
FAILURES = (Unsupported, TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError, AssertionError)
# Names in configs and modules of numbers at which a model may change, and of others that only look like it.
LENGTHS = re.compile(r"window|chunk|block_size|local_attention|attn_chunk|index_topk|indexer_budget|rel_extent")
NO_LENGTHS = re.compile(r"layer|pattern|feed_forward|lm_head|image|vision|audio|kernel|conv|^num_|^n_")
RECURRENT = re.compile(r"^(linear_|mamba_|ssm_|conv_|time_step_|short_conv|state_size)")
# Linear attention is computed in chunks of this many tokens by functions whose argument no config names.
CHUNK = 64


def find_boundaries(causal: Any) -> tuple[int, ...]:
    """Return lengths in tokens, ascending, beyond which the model may compute differently.

    Windows, chunks and rotary scalings: the numbers with such names in its config (without vision and audio parts) and
    its modules. One that has no effect costs one more trial.
    """
    found: set[int] = set(rotary_lengths(causal))
    for config in text_configs(causal.config):
        unused = not getattr(config, "use_sliding_window", True)
        values = vars(config)
        found.update(_lengths_in({k: v for k, v in values.items() if not (unused and "sliding" in k)}))
        if any(RECURRENT.search(name) for name, value in values.items() if value):
            found.add(CHUNK)
    for module in causal.modules():
        found.update(_lengths_in(vars(module)))
    return tuple(sorted(found))


def _lengths_in(values: dict[str, Any]) -> Iterator[int]:
    for name, value in values.items():
        if LENGTHS.search(name) and not NO_LENGTHS.search(name):
            numbers = value if isinstance(value, (list, tuple)) else [value]
            yield from (n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n > 1)


def rotary_lengths(causal: Any, kinds: tuple[str, ...] = ("longrope", "dynamic")) -> tuple[int, ...]:
    """Return where rotary scalings begin whose angles depend on the longest text of a forward pass, ascending."""
    found: set[int] = set()
    for config in text_configs(causal.config):
        parameters = getattr(config, "rope_parameters", None) or {}
        nested = [value for value in parameters.values() if isinstance(value, dict)]
        for rope in nested or [parameters]:
            own = getattr(config, "max_position_embeddings", None)
            start = rope.get("original_max_position_embeddings") or own
            if rope.get("rope_type") in kinds and start:
                found.add(int(start))
    return tuple(sorted(found))


def text_configs(config: Any) -> Iterator[Any]:
    """Yield the config and those nested in it, except those of vision and audio parts."""
    yield config
    for name, value in vars(config).items():
        if hasattr(value, "model_type") and not re.search("vision|audio|image", name):
            yield from text_configs(value)


class PackedTrial:
    """Gives a model the packed attention, if it then computes the same.

    `wanted` False leaves the model's own attention. `why_not` is empty where the packed attention is used, else the
    reason in a few words. most: the length beyond which a row's probabilities depend on what the model has read before
    (rotary scaling `dynamic`), None: never. sides: lengths whose two sides must not be computed together, since the
    longest text decides on the angles of all.
    """

    def __init__(self, causal: Any, wanted: bool = True) -> None:
        self.causal = causal
        self.boundaries, self.sides = find_boundaries(causal), rotary_lengths(causal)
        self.most = min(rotary_lengths(causal, ("dynamic",)), default=None)
        self.size = min([SHORT, *self.sides])
        self.tolerance = Tolerance(causal, self.size)
        # By boundaries passed: why rows are not packed, or ""; and, with the dtype too, what they are decoded by.
        self.reasons: dict[int, str] = {}
        self.decoders: dict[tuple[int, torch.dtype], type[Decoder]] = {}
        self.why_not = self._install() if wanted else f"its attention is to be {causal.config._attn_implementation}"

    def follow(self, model: Any) -> None:
        """Pass later findings on to a copy of the model; nothing, since here the model itself is tried."""

    def packs(self, length: int) -> bool:
        """Return whether rows of up to `length` tokens are packed; the first time beyond a boundary, try.

        Raises ValueError for a model that computes rows of this length neither packed nor padded as it does alone.
        """
        passed = bisect_left(self.boundaries, length)
        if passed not in self.reasons:
            size = self.text_length(passed)
            least = max((side for side in self.sides if side < size), default=0)
            trial = partial(packed_difference, self.causal, size, self.tolerance, least)
            self.reasons[passed] = self.why_not or _attempt(trial)
            if self.reasons[passed]:
                check_plain(self.causal, size, self.tolerance, least)
        return not self.reasons[passed]

    def text_length(self, passed: int) -> int:
        """Return the length of the text that is tried for rows longer than the first `passed` boundaries."""
        size = self.size
        if passed:
            boundary = self.boundaries[passed - 1]
            size = max(size, boundary + max(BEYOND, boundary // 8))
        return min(size, self.boundaries[passed]) if passed < len(self.boundaries) else size

    def _install(self) -> str:
        """Try each packed pass. Return why none is right, or "": the model then has the packed attention."""
        causal = self.causal
        if reason := why_not_packed(causal):
            return reason
        row = make_text(causal, self.size)
        own = plain_logprobs(causal, row, 1)
        pack(causal)
        try:
            if reason := _attempt(lambda: self.tolerance.compare(plain_logprobs(causal, row, 1), own, "single rows")):
                return reason
            for name in (["llama"] if is_llama_like(causal) else []) + ["own"]:
                causal.rlvr_pass = name
                reason = _attempt(lambda: packed_difference(causal, self.size, self.tolerance))
                if not reason:
                    self.reasons[bisect_left(self.boundaries, self.size)] = ""
                    return ""
        finally:
            if not self.reasons:
                unpack(causal)
        return reason


def why_not_packed(causal: Any) -> str:
    """Return why a model cannot be given the packed attention, or ""."""
    own = causal.config._attn_implementation
    layers = {kind for config in text_configs(causal.config) for kind in getattr(config, "layer_types", None) or []}
    if other := sorted(layers - {"full_attention", "sliding_attention"}):
        return f"it has layers of the type {other[0]}"
    if own not in (*PACKED, *PACKED.values()) or not causal._supports_attention_backend:
        return f"its attention ({own}) cannot be replaced"
    return ""


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
def trying(causal: Any, dtype: torch.dtype | None = None) -> Iterator[None]:
    """Context for trials: evaluation mode, the full precision of the model's dtype, no gradients.

    dtype: of the computation under autocast, None: that of the weights.
    """
    training, precision = causal.training, torch.get_float32_matmul_precision()
    device = causal.get_input_embeddings().weight.device.type
    causal.eval()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device, dtype, enabled=dtype is not None):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        causal.train(training)


def make_text(causal: Any, length: int, first: int = 0) -> list[int]:
    """Return the ids of a text without a pattern. Small ids: multimodal models reserve the last ones for images."""
    vocabulary = causal.get_input_embeddings().weight.shape[0]
    return [(5 + i * i * 7 % 61 + i % 13) % vocabulary for i in range(first, first + length)]


def plain_states(causal: Any, rows: Sequence[Sequence[int]], **options: Any) -> Tensor:
    """Return the last hidden states (B, T, hidden) of rows by the model's own forward, padded on the right."""
    width = max(map(len, rows))
    device = causal.get_input_embeddings().weight.device
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    states: Tensor = causal.base_model(input_ids=ids, use_cache=False, **options).last_hidden_state
    return states


def plain_logprobs(causal: Any, row: Sequence[int], first: int) -> Tensor:
    """Return log-probabilities (n, V) that predict row[first:] by the plain forward of the row alone."""
    with trying(causal):
        return output_logits(causal, plain_states(causal, [row[:-1]])[0, first - 1 :]).log_softmax(-1)


class Tolerance:
    """How far log-probabilities (n, V) may be apart: by rounding alone, as the model's own forward shows it.

    noise: the largest (shorter dtypes: mean) difference that the rounding of the embeddings makes to a row of `size`
    tokens.
    """

    def __init__(self, causal: Any, size: int) -> None:
        self.exact = causal.get_input_embeddings().weight.dtype is torch.float32
        row = make_text(causal, size)
        expected = plain_logprobs(causal, row, 1)
        with rounded_embeddings(causal):
            self.noise = self.difference(plain_logprobs(causal, row, 1), expected)

    def difference(self, found: Tensor, expected: Tensor) -> float:
        """Return the largest difference, in shorter dtypes the mean; infinite where `found` alone is not finite."""
        if bool(expected.isnan().any()):
            return 0.0  # broken weights: every way agrees, and whoever uses the model checks them
        if bool(found.isnan().any()):
            return math.inf
        difference = (found.clamp(min=LEAST) - expected.clamp(min=LEAST)).abs()
        return float(difference.max() if self.exact else difference.mean())

    def compare(self, found: Tensor, expected: Tensor, what: str) -> str:
        """Return "" if both are equal up to rounding, else a line that begins with `what`."""
        if found.shape != expected.shape:
            return f"{what} have log-probabilities of another shape"
        difference = self.difference(found, expected)
        allowed = max(EXACT if self.exact else COARSE, NOISE * self.noise)
        return "" if difference <= allowed else f"{what} have log-probabilities that differ by up to {difference:.2g}"


@contextmanager
def rounded_embeddings(causal: Any) -> Iterator[None]:
    """Context in which every second number of the embeddings is changed by about the last bit of its dtype."""

    def change(module: Any, inputs: Any, embedded: Tensor) -> Tensor:
        odd = (torch.arange(embedded.numel(), device=embedded.device).view(embedded.shape) % 2).to(embedded.dtype)
        return embedded * (1 + 2 * torch.finfo(embedded.dtype).eps * odd)

    handle = causal.get_input_embeddings().register_forward_hook(change)
    try:
        yield
    finally:
        handle.remove()


def packed_difference(causal: Any, size: int, tolerance: Tolerance, least: int = 0) -> str:
    """Return "" if rows of up to `size` tokens have the same log-probabilities packed and one by one.

    Two prompts with three completions, all rows longer than `least` tokens; beyond LONG tokens one prompt with one.
    """
    a, b = make_text(causal, size), make_text(causal, size, first=101)
    with trying(causal):
        plain_states(causal, [a], layout=Windows())
    if size > LONG:
        prompts, completions = [a[: -2 * BEYOND]], [[a[-2 * BEYOND :]]]
    else:
        cut = min(9, size // 3)
        prompts = [a[:cut], b[: cut // 2 + 1]]
        second = b[size // 2 : size // 2 + 9]
        second += make_text(causal, max(0, least + 2 - cut - len(second)), first=211)
        completions = [[a[cut:], second], [b[cut // 2 + 1 : size - 7]]]
    with trying(causal):
        layout = PackedGroups(
            prompts,
            [[completion[:-1] for completion in group] for group in completions],
            causal.get_input_embeddings().weight.device,
        )
        packed = hidden_states(causal, layout, layout.ids, layout.positions)
    for p, prompt in enumerate(prompts):
        for g, completion in enumerate(completions[p]):
            start, end = int(layout.starts[p][g]), int(layout.prompt_ends[p])
            states = torch.cat([packed[end : end + 1], packed[start : start + len(completion) - 1]])
            with trying(causal):
                found = output_logits(causal, states).log_softmax(-1)
            expected = plain_logprobs(causal, prompt + completion, len(prompt))
            if reason := tolerance.compare(found, expected, "packed rows"):
                return reason
    return ""


class Decoders:
    """The decoder for rows of each length: the first whose log-probabilities equal those of the plain forward.

    dtype: of the computation, in which prepared weights are tried too.
    """

    def __init__(self, causal: Any, trial: PackedTrial, packs: bool, dtype: torch.dtype = torch.float32) -> None:
        self.causal, self.trial, self.packs, self.dtype = causal, trial, packs, dtype
        self.chosen = trial.decoders
        self.for_length(trial.size)

    def for_length(self, length: int) -> type[Decoder]:
        """Return the decoder for rows of `length` tokens, prompt and completion. ValueError where there is none."""
        check_length(self.causal, self.trial, length)
        passed = bisect_left(self.trial.boundaries, length)  # those that are shorter
        if (passed, self.dtype) not in self.chosen:
            self.chosen[passed, self.dtype] = self._choose(length, passed)
        return self.chosen[passed, self.dtype]

    def _choose(self, length: int, passed: int) -> type[Decoder]:
        size = self.trial.text_length(passed)
        boundary = self.trial.boundaries[passed - 1] if passed else 0
        if boundary in self.trial.sides:
            size = min(size, boundary + BEYOND)  # the text begins before the boundary, as the rows of a run do
        makers: list[type[Decoder]] = [CacheDecoder, WholeDecoder]
        if self.packs and self.trial.packs(length):
            makers = [*([PreparedDecoder] if can_prepare(self.causal) else []), SharedDecoder, *makers]
        reasons = []
        for make in makers:
            if not (reason := _attempt(partial(self._difference, make, size))):
                return make
            reasons.append(reason)
        advice = "use --sampler vllm"
        if boundary in self.trial.sides:
            advice = "its rotary scaling begins there; ask for fewer tokens (--rollout.max-new-tokens)"
        where = f" beyond {boundary} tokens" if passed else ""
        raise ValueError(
            f"{type(self.causal).__name__} cannot be sampled by the torch sampler{where} ({reasons[-1]}); {advice}"
        )

    def _difference(self, make: type[Decoder], size: int) -> str:
        rows = Rows(self.causal, size)
        for expected, found in zip(rows.plain, rows.decode(make)):
            if reason := self.trial.tolerance.compare(found, expected, "rows decoded from its cache"):
                return reason
        cast = self.dtype not in (torch.float32, self.causal.get_input_embeddings().weight.dtype)
        return self._cast_difference(rows) if cast and make is PreparedDecoder else ""

    def _cast_difference(self, rows: Rows) -> str:
        """Return "" if prepared weights, in a dtype that is not that of the model's, are as exact as its own.

        Both differ from the plain forward in the dtype of the weights, by rounding; so their mean errors are compared.
        """
        expected = torch.cat(rows.plain).clamp(min=LEAST)
        if bool(expected.isnan().any()):
            return ""  # see Tolerance
        kinds = (PreparedDecoder, SharedDecoder)
        found, plain = (torch.cat(rows.decode(kind, self.dtype)).clamp(min=LEAST) for kind in kinds)
        error, rounding = (float((x - expected).abs().mean()) for x in (found, plain))
        if error <= SAME_ROUNDING * rounding:
            return ""
        return f"rows in {self.dtype} have log-probabilities that differ by {error:.2g} in the mean, not {rounding:.2g}"


class Rows:
    """Three rows of `size` tokens that are decoded on trial. Beyond LONG tokens: one row.

    Two continue one prompt, the third another; one is dropped early. plain: for each step the log-probabilities (B, V)
    of the plain forward.
    """

    def __init__(self, causal: Any, size: int) -> None:
        self.causal, self.size = causal, size
        self.steps = min(2 * BEYOND, size - size // 3)
        self.first = size - self.steps
        self.prompts, self.counts = [make_text(causal, self.first), make_text(causal, self.first, 101)], [2, 1]
        self.alive = [0, 1, 2]
        first, second, third = (make_text(causal, self.steps, start) for start in (211, 307, 401))
        self.rows = [[*self.prompts[0], *first], [*self.prompts[0], *second], [*self.prompts[1], *third]]
        if size > LONG:
            self.prompts, self.counts, self.alive = self.prompts[:1], [1], [0]
        plain = torch.stack([plain_logprobs(causal, self.rows[i], self.first) for i in self.alive], dim=1)
        left = 1 + self.steps // 2 + 1  # logits before a row is dropped
        self.plain = [x[[0, 2]] if step >= left and size <= LONG else x for step, x in enumerate(plain)]

    def decode(self, make: type[Decoder], dtype: torch.dtype | None = None) -> list[Tensor]:
        """Return for each step the log-probabilities (B, V) that a decoder gives; dtype: see `trying`."""
        alive = self.alive
        with trying(self.causal, dtype):
            decoder = make(self.causal)
            if isinstance(decoder, SharedDecoder) and len(self.prompts) > 1:
                logits = decoder.start(self.prompts[:1], self.counts[:1])
                found = [torch.cat([logits, decoder.enter(self.prompts[1:], self.counts[1:])])]
            else:
                found = [decoder.start(self.prompts, self.counts)]
            for t in range(self.first, self.size - 1):  # the last token predicts one that no decoder is asked for
                tokens = torch.tensor([self.rows[i][t] for i in alive], device=found[0].device)
                found.append(decoder.step(tokens))
                if t == self.first + self.steps // 2 and self.size <= LONG:
                    alive = [0, 2]
                    decoder.keep(torch.tensor(alive, device=tokens.device))
        return [logits.log_softmax(-1) for logits in found]


def check_plain(causal: Any, size: int, tolerance: Tolerance, least: int = 0) -> None:
    """Raise ValueError where a row of `size` tokens has other log-probabilities beside a longer row, or cut short.

    least: tokens up to which a row is known to have others.
    """
    row, other = make_text(causal, size), make_text(causal, size + 5, first=101)
    with trying(causal):
        states = plain_states(causal, [row[:-1], other])[0, : size - 1]
        beside = output_logits(causal, states).log_softmax(-1)
    alone = plain_logprobs(causal, row, 1)
    cut = plain_logprobs(causal, row[: max(size - math.ceil(size / 3), least + 2)], 1)
    reason = tolerance.compare(cut, alone[: len(cut)], "rows cut short")
    if reason := reason or tolerance.compare(beside, alone, "rows beside others"):
        raise ValueError(
            f"{type(causal).__name__} cannot be trained on rows of {size} tokens: {reason} from those of a row alone; "
            "expected a causal language model whose rows are independent"
        )


def check_length(causal: Any, trial: PackedTrial, length: int) -> None:
    """Raise ValueError for rows of `length` tokens if their probabilities depend on what was read before."""
    if trial.most is not None and length > trial.most:
        raise ValueError(
            f"rows of up to {length} tokens: beyond {trial.most} the rotary scaling 'dynamic' of "
            f"{type(causal).__name__} depends on what the model has read before; ask for fewer tokens "
            "(--rollout.max-new-tokens), or give the model's config another rope_type"
        )


def check_causal(causal: Any) -> None:
    """Raise ValueError for a model that is no causal LM, or whose hidden states and logits are unknown.

    A model whose class names the wrong part (`base_model_prefix`) is given the right name.
    """
    kind = type(causal).__name__
    if causal.get_output_embeddings() is None:
        raise ValueError(f"{kind} has no LM head; expected a causal language model")
    if causal.base_model is causal and isinstance(getattr(causal, "model", None), nn.Module):
        causal.base_model_prefix = "model"  # Llama 4
    if causal.base_model is causal:
        raise ValueError(f"{kind} names no part that gives its last hidden states (base_model_prefix)")
    # A token's state must not change where other tokens follow it.
    row = make_text(causal, SHORT)
    with trying(causal):
        part, whole = plain_states(causal, [row[: SHORT // 2]])[0], plain_states(causal, [row])[0, : SHORT // 2]
        with rounded_embeddings(causal):
            noise = (plain_states(causal, [row])[0, : SHORT // 2] - whole).float().abs()
    difference, scale = (part - whole).float().abs(), whole.float().abs()
    if whole.dtype is torch.float32:
        differs = difference.max() > max(1e-4 * scale.max(), NOISE * noise.max())
    else:
        differs = difference.mean() > max(COARSE * scale.mean(), NOISE * noise.mean())
    # With broken weights this cannot be decided; whoever uses the model checks them.
    if bool(whole.isfinite().all()) and bool(differs):
        raise ValueError(
            f"{kind} gives a token another state where other tokens follow it; expected a causal language model (an "
            "encoder needs is_decoder in its config)"
        )
    check_logits(causal)
    check_plain(causal, SHORT, Tolerance(causal, SHORT))


# Where the real model is sharded, the checks run on a two-layer copy. Each rank holds the copy whole: no rank waits for
# another's trial, and no model is gathered for it.

LAYERS, VOCABULARY = 2, 512


def make_small_copy(causal: Any, device: torch.device) -> Any:
    """Return a model of the same class and sizes with random weights, few layers and a small vocabulary.

    There are as many layers as show every type of layer that the config names.
    """
    config = copy.deepcopy(causal.config)
    text = config.get_text_config()
    total = text.num_hidden_layers
    types = getattr(text, "layer_types", None) or []
    count = next(n for n in range(min(LAYERS, total), total + 1) if set(types[:n]) == set(types) or n == total)
    small: dict[str, Any] = text.to_dict()
    # One entry for each layer, under whatever name.
    small = {name: v[:count] if isinstance(v, list) and len(v) == total else v for name, v in small.items()}
    small |= {"num_hidden_layers": count, "vocab_size": min(VOCABULARY, text.vocab_size)}
    small |= {name: None for name in small if name.endswith("_token_id")}
    text = type(text).from_dict(small)
    if config.get_text_config() is config:
        config = text
    else:
        setattr(config, next(n for n, v in vars(config).items() if v is config.get_text_config()), text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = type(causal)(config)
    made.set_attn_implementation(causal.config._attn_implementation)
    made.base_model_prefix = causal.base_model_prefix
    return made.to(device, causal.get_input_embeddings().weight.dtype).train(causal.training)


class SmallCopyTrial(PackedTrial):
    """Tries a small copy of the model; the model then gets the pass and the windows that were found.

    Raises ValueError as `check_causal` does.
    """

    def __init__(self, causal: Any, device: torch.device, wanted: bool = True) -> None:
        self.followers = [causal]
        self.longest = 0
        small = make_small_copy(causal, device)
        check_causal(small)
        causal.base_model_prefix = small.base_model_prefix
        super().__init__(small, wanted)
        if not self.why_not:
            pack(causal)
            causal.rlvr_pass = small.rlvr_pass
            self._tell_windows()

    def follow(self, model: Any) -> None:
        """Pass later findings on to another model of the same kind."""
        self.followers.append(model)

    def packs(self, length: int) -> bool:
        """Return whether rows of up to `length` tokens are packed: if all lengths that were asked for can be.

        Rows of different lengths are then packed on all ranks, or on none.
        """
        self.longest = max(self.longest, length)
        lengths = [*(n for n in self.boundaries if n < self.longest), self.longest]
        found = [super(SmallCopyTrial, self).packs(n) for n in lengths]
        self._tell_windows()
        return all(found)

    def _tell_windows(self) -> None:
        """Set the windows of the followers' attention to those that were read from the small copy's masks."""
        types = getattr(self.followers[0].config.get_text_config(), "layer_types", None)
        found = {m.layer_idx: m.rlvr_window for m in self.causal.modules() if hasattr(m, "rlvr_window")}
        if not found:
            return
        for model in self.followers:
            for module in model.modules():
                index = getattr(module, "layer_idx", None)
                if isinstance(index, int):
                    same = [j for j in found if types and types[j] == types[index]]
                    module.rlvr_window = found.get(index, found[same[0] if same else max(found)])
