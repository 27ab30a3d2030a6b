"""Log-probabilities of given tokens under the policy, without holding (B, T, V)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlvr.algo.batch import copy_to

from ..attention.rows import rectangles
from ..forward.packed import PackedGroups
from ..forward.passes import hidden_states, narrow_logits
from ..load.policy import Policy
from ..optim.sharding import within
from ..probe import check_length

# Log-probabilities of given tokens from logits, without another matrix of the logits' size beside them.

Entropy = Literal[False, True, "gradient"]  # whether entropies are computed, and have a gradient

# Numbers of logits that are worked on at a time: they stay in a CPU's cache, and their memory is used again.
PIECE = 2**18


class TokenLogprobs(torch.autograd.Function):
    """log softmax(logits / temperature)[targets]: logits (n, V), targets (n,) -> logprobs (n,) and entropies (n,).

    Logits may have any dtype; the results are float32 (float64 for logits of float64). The entropies are empty unless
    asked for, and have a gradient where that is asked for. Backward computes the softmax again from the logits, which
    are all that is kept: neither it, nor float32 logits, nor the gradient through the choice of the targets are held
    for all rows.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, with_entropy: Entropy
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(logits, targets)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        chosen, entropies = [], []
        for piece, ids in zip(*_pieces(logits, targets), strict=True):
            logprobs = _scale(piece, temperature).log_softmax(-1)
            chosen.append(logprobs.gather(1, ids[:, None])[:, 0])
            entropies.append(-logprobs.exp().mul_(logprobs).sum(-1) if with_entropy else logprobs.new_empty(0))
        found = torch.cat(entropies)
        if with_entropy != "gradient":
            ctx.mark_non_differentiable(found)
        return torch.cat(chosen), found

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, spread: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        if grad is None and spread is None:
            return None, None, None, None
        logits, targets = ctx.saved_tensors
        grad = targets.new_zeros(len(targets), dtype=torch.float32) if grad is None else grad
        result = torch.empty_like(logits)
        rows = _pieces(logits, targets, grad[:, None], result)
        spreads = [None] * len(rows[0]) if spread is None else _pieces(logits, spread[:, None])[1]
        for piece, ids, g, out, h in zip(*rows, spreads, strict=True):
            # d log softmax(x)[t] / dx = onehot(t) - softmax(x);  dH / dx = -softmax(x) (log softmax(x) + H)
            scaled = _scale(piece, ctx.temperature)
            change = scaled.softmax(-1).mul_(-g).scatter_add_(1, ids[:, None], g)
            if h is not None:
                logprobs = scaled.log_softmax(-1)
                p = logprobs.exp()
                change -= h * p * (logprobs - (p * logprobs).sum(-1, keepdim=True))
            out.copy_(change if ctx.temperature == 1 else change.div_(ctx.temperature))
        return result, None, None, None


def _scale(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / temperature, in float32 at least."""
    wide = logits if logits.dtype is torch.float64 else logits.float()
    return wide if temperature == 1 else wide / temperature


def _pieces(logits: Tensor, *others: Tensor) -> list[tuple[Tensor, ...]]:
    """Split logits (n, V), and tensors of as many rows, into pieces of rows."""
    rows = len(logits) if logits.device.type == "cuda" else max(1, PIECE // logits.shape[1])
    return [x.split(max(rows, 1)) for x in (logits, *others)]


# Bytes of float32 logits that are held at once, and the share of a GPU's memory where that is more. More logits are
# computed chunk by chunk, and again in the backward pass.
LOGIT_BYTES, LOGIT_SHARE = 2**27, 1 / 128


def token_logprobs(
    policy: Policy, tokens: Tensor, mask: Tensor, *, temperature: float = 1.0, with_entropy: Entropy = False
) -> tuple[Tensor, Tensor | None]:
    """Return logprobs[b, t] = log pi(tokens[b, t] | tokens[b, :t]) at this temperature, 0 where mask is False.

    tokens (B, T) long, right-padded: prompt, completion, padding. mask (B, T) bool, True on the tokens to score. Both
    are read on the CPU: where they lie there, nothing waits for the device. The result is on the policy's. The first
    token of a row has no context and cannot be scored. Returns float32 logprobs (B, T) and, if asked for, the
    entropies of the same distributions (B, T), with a gradient where with_entropy is "gradient"; else None.

    Rows with equal prompts (all tokens before the first scored one) share one computation of their prompt where the
    model allows it, and padding costs nothing.
    """
    tokens, mask = tokens.cpu(), mask.cpu()
    if not bool(mask.any()):
        nothing = torch.zeros(tokens.shape, device=policy.device, requires_grad=torch.is_grad_enabled())
        if policy.mesh is not None:  # other ranks may have tokens, and gather weights with this one
            scored, _ = token_logprobs(policy, torch.zeros(1, 2, dtype=torch.long), torch.tensor([[False, True]]))
            nothing = nothing + 0 * scored.sum()
        return nothing, nothing.detach() if with_entropy else None

    def compute() -> tuple[Tensor, Tensor | None]:
        with policy.computing():
            hidden = preceding_states(policy, tokens, mask)
            return logprobs_of(policy, hidden, tokens, mask, temperature=temperature, with_entropy=with_entropy)

    return within(policy.model, compute)


def preceding_states(policy: Policy, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return last hidden states (n, hidden) of the tokens before the n masked ones, in the order of the rows.

    They hold what the model knows before each of these tokens: logprobs and a critic's values are computed from them.
    tokens and mask as in `token_logprobs`, at least one token masked. Call it within `policy.computing()` and, for
    weights in shards, rlvr.model.optim.sharding's `within`: the layers then run equally often for every batch.
    """
    tokens, mask = tokens.cpu(), mask.cpu()
    if mask.shape != tokens.shape or tokens.dim() != 2:
        raise ValueError(f"tokens {tuple(tokens.shape)} and mask {tuple(mask.shape)}; expected both (B, T)")
    if bool(mask[:, 0].any()):
        raise ValueError("the mask holds the first token of a row, which nothing precedes; prompts need a token")
    longest = int(mask.nonzero()[:, 1].max()) + 1
    check_length(policy.causal, policy.trial, longest)
    if not policy.packs or not policy.trial.packs(longest):
        return _pad_rows(policy, tokens, mask)
    every = _sides(mask, policy.trial.sides)
    sides = [rows for rows in every if bool(rows.any())]
    idle = _idle(policy, len(every) - len(sides))
    if len(sides) == 1:
        return _plus(_pack_rows(policy, tokens, mask), idle)
    parts = _plus(torch.cat([_pack_rows(policy, tokens, mask & rows[:, None]) for rows in sides]), idle)
    # From the order of the sides to that of the rows.
    places = torch.cat([(mask & rows[:, None]).flatten().nonzero()[:, 0] for rows in sides])
    return take(parts, places.argsort())


def _idle(policy: Policy, count: int) -> Tensor | None:
    """Return 0 after `count` passes of one token, since FSDP's all-gathers need every rank. None: nothing to do."""
    if policy.mesh is None or not count:
        return None
    token = torch.zeros(1, 1, dtype=torch.long, device=policy.device)
    states = [policy.causal.base_model(input_ids=token, use_cache=False).last_hidden_state for _ in range(count)]
    return 0 * torch.stack(states).sum()


def _plus(states: Tensor, idle: Tensor | None) -> Tensor:
    return states if idle is None else states + idle


def _sides(mask: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Return which rows (B,) are read up to each of the lengths, and which beyond the last; mask (B, T)."""
    ends = (mask.long() * torch.arange(mask.shape[1], device=mask.device)).amax(dim=1)
    sides = torch.bucketize(ends, torch.tensor(lengths, device=mask.device, dtype=torch.long))
    return [mask.any(dim=1) & (sides == side) for side in range(len(lengths) + 1)]


def logprobs_of(
    policy: Policy, hidden: Tensor, tokens: Tensor, mask: Tensor, *, temperature: float, with_entropy: Entropy
) -> tuple[Tensor, Tensor | None]:
    """Return the result of `token_logprobs` from the states (n, hidden) that precede the tokens."""
    targets = copy_to(tokens.cpu()[mask.cpu()], hidden.device)
    scored, entropies = _score(policy.causal, hidden, targets, temperature, with_entropy)
    return on_tokens(scored, mask), None if entropies is None else on_tokens(entropies, mask)


def on_tokens(values: Tensor, mask: Tensor) -> Tensor:
    """Return values (n,) of the masked tokens, in the order of the rows, as (B, T): 0 where mask is False."""
    places = tuple(copy_to(index, values.device) for index in mask.cpu().nonzero(as_tuple=True))
    return values.new_zeros(mask.shape).index_put(places, values)


def of_tokens(grid: Tensor, mask: Tensor) -> Tensor:
    """Return the values (n,) of a grid (B, T) on the masked tokens, in the order of the rows; a mask on the CPU."""
    return grid[tuple(copy_to(index, grid.device) for index in mask.nonzero(as_tuple=True))]


def _pad_rows(policy: Policy, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the hidden states (n, hidden) that predict the scored tokens: padded, for any causal LM.

    No attention mask is needed: padding is on the right, where a causal model does not look. Rows of very different
    lengths are not padded together, nor rows on both sides of a length at which the model changes.
    """
    scored, device = mask.numpy(), policy.device
    ends = np.where(scored.any(axis=1), scored.shape[1] - 1 - scored[:, ::-1].argmax(axis=1), 0)  # tokens to be read
    sides = np.searchsorted(policy.trial.boundaries, ends)
    parts = []
    used = np.unique(sides[ends > 0])
    for side in used:
        rows = np.flatnonzero((sides == side) & (ends > 0))
        # Each rectangle is a pass through the layers; with shards all ranks need the same number of passes.
        found = rectangles(ends[rows], np.zeros_like(ends[rows])) if policy.mesh is None else [np.arange(len(rows))]
        parts += [rows[part] for part in found]
    idle = _idle(policy, len(policy.trial.boundaries) + 1 - len(used))
    states = []
    for part in parts:
        index, width = torch.from_numpy(part), int(ends[part].max())
        ids = copy_to(tokens[index, :width], device)
        out = policy.causal.base_model(input_ids=ids, use_cache=False).last_hidden_state
        wanted = mask[index, 1 : width + 1].nonzero(as_tuple=True)
        states.append(out[tuple(copy_to(place, device) for place in wanted)])
    if len(parts) == 1:
        return _plus(states[0], idle)
    # Back into the order of the rows.
    counts = scored.sum(axis=1)
    first = np.cumsum(counts) - counts
    places = np.concatenate([first[row] + np.arange(counts[row]) for part in parts for row in part])
    return take(_plus(torch.cat(states), idle), copy_to(np.argsort(places), device))


def _pack_rows(policy: Policy, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the same without padding, with each distinct prompt computed once."""
    ids, scored, device = tokens.numpy(), mask.numpy(), policy.device
    used = np.flatnonzero(scored.any(axis=1)).tolist()
    firsts, ends = scored.argmax(axis=1), scored.shape[1] - scored[:, ::-1].argmax(axis=1)
    groups: dict[bytes, list[int]] = {}
    for row in used:
        groups.setdefault(ids[row, : firsts[row]].tobytes(), []).append(row)
    members = list(groups.values())
    layout = PackedGroups(
        [ids[group[0], : firsts[group[0]]].tolist() for group in members],
        # The last scored token is predicted, and predicts nothing.
        [[ids[row, firsts[row] : ends[row] - 1].tolist() for row in group] for group in members],
        device,
    )
    prompt_ends, starts = np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=np.int64)
    for p, group in enumerate(members):
        prompt_ends[group], starts[group] = layout.prompt_ends[p], layout.starts[p, : len(group)]
    # The first scored token is predicted by the prompt's last one, the others by the token before them.
    rows, columns = scored.nonzero()
    offsets = columns - firsts[rows]
    sources = np.where(offsets == 0, prompt_ends[rows], starts[rows] + offsets - 1)
    hidden = hidden_states(policy.causal, layout, layout.ids, layout.positions)
    return take(hidden, copy_to(sources, device))


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return x[index] (n, ...) for repeated indices, with a gradient that is deterministic.

    Where CPU threads meet at one row, the gradient of plain indexing adds up in the order in which they come; on CUDA
    it is index_select's that does.
    """
    return x.index_select(0, index) if x.device.type == "cpu" else x[index]


def logit_bytes(memory: int | None) -> int:
    """Return the bytes of logits that are held at once, on a GPU with so many bytes of memory or on a CPU (None)."""
    return max(LOGIT_BYTES, int(LOGIT_SHARE * (memory or 0)))


def _score(
    causal: Any, hidden: Tensor, targets: Tensor, temperature: float, with_entropy: Entropy
) -> tuple[Tensor, Tensor | None]:
    """Return logprobs (n,) of targets (n,), and entropies (n,) or None, chunk by chunk through the LM head."""
    entropies: list[Tensor] = []

    def score(hidden: Tensor, targets: Tensor, number: int) -> Tensor:
        if with_entropy == "gradient":  # (2, n): a chunk that is computed again returns what has a gradient
            return torch.stack(TokenLogprobs.apply(narrow_logits(causal, hidden), targets, temperature, with_entropy))
        first = with_entropy and number == len(entropies)  # and not a chunk that is computed again
        logprobs, entropy = TokenLogprobs.apply(narrow_logits(causal, hidden), targets, temperature, first)
        if first:
            entropies.append(entropy)
        return logprobs

    device = hidden.device
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    vocabulary = causal.get_output_embeddings().weight.shape[0]
    size = max(1, logit_bytes(memory) // (4 * vocabulary))
    if len(targets) <= size:
        logprobs = score(hidden, targets, 0)
    else:
        pieces = zip(hidden.split(size), targets.split(size))
        parts = [checkpoint(score, h, t, i, use_reentrant=False) for i, (h, t) in enumerate(pieces)]
        logprobs = torch.cat(parts, dim=-1)
    if with_entropy == "gradient":
        return logprobs[0], logprobs[1]
    return logprobs, torch.cat(entropies) if with_entropy else None
