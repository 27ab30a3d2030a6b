"""Log-probabilities of given tokens under the policy, without holding (B, T, V)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlvr.model.attention import PackedGroups, hidden_states
from rlvr.model.lm_head import output_logits
from rlvr.model.packing import rectangles
from rlvr.model.policy import Policy
from rlvr.model.probe import check_length

# Logits held at once (128 MB in float32). More are computed chunk by chunk, and again in the backward pass.
MAX_LOGITS = 2**25


def token_logprobs(
    policy: Policy, tokens: Tensor, mask: Tensor, *, temperature: float = 1.0, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return logprobs[b, t] = log pi(tokens[b, t] | tokens[b, :t]) at this temperature, 0 where mask is False.

    tokens (B, T) long, right-padded: prompt, completion, padding. mask (B, T) bool, True on the tokens to score; the
    first token of a row has no context and cannot be scored. Returns float32 logprobs (B, T) and, if asked for, the
    entropies of the same distributions (B, T), else None. Gradients flow into both.

    Rows with equal prompts (all tokens before the first scored one) share one computation of their prompt where the
    model allows it, and padding costs nothing.
    """
    if not bool(mask.any()):
        nothing = torch.zeros(tokens.shape, device=tokens.device, requires_grad=torch.is_grad_enabled())
        return nothing, nothing if with_entropy else None
    with policy.computing():
        hidden = preceding_states(policy, tokens, mask)
        return logprobs_of(policy, hidden, tokens, mask, temperature=temperature, with_entropy=with_entropy)


def preceding_states(policy: Policy, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return last hidden states (n, hidden) of the tokens before the n masked ones, in the order of the rows.

    They hold what the model knows before each of these tokens: logprobs and a critic's values are computed from them.
    tokens and mask as in `token_logprobs`, at least one token masked. Call it within `policy.computing()`.
    """
    if mask.shape != tokens.shape or tokens.dim() != 2:
        raise ValueError(f"tokens {tuple(tokens.shape)} and mask {tuple(mask.shape)}; expected both (B, T)")
    if bool(mask[:, 0].any()):
        raise ValueError("the mask holds the first token of a row, which nothing precedes; prompts need a token")
    longest = int(mask.nonzero()[:, 1].max()) + 1
    check_length(policy.causal, policy.trial, longest)
    packs = policy.packs and (policy.trial.limit is None or longest <= policy.trial.limit)
    return (_packed if packs else _padded)(policy, tokens, mask)


def logprobs_of(
    policy: Policy, hidden: Tensor, tokens: Tensor, mask: Tensor, *, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the result of `token_logprobs` from the states (n, hidden) that precede the tokens."""
    targets = tokens[mask]
    scored, entropies = _score(policy.causal, hidden, targets, temperature, with_entropy)
    return on_tokens(scored, mask), None if entropies is None else on_tokens(entropies, mask)


def on_tokens(values: Tensor, mask: Tensor) -> Tensor:
    """Return values (n,) of the masked tokens, in the order of the rows, as (B, T): 0 where mask is False."""
    return values.new_zeros(mask.shape).index_put(mask.nonzero(as_tuple=True), values)


def _padded(policy: Policy, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the hidden states (n, hidden) that predict the scored tokens: padded, for any causal LM.

    No attention mask is needed: padding is on the right, where a causal model does not look. Rows of very different
    lengths are not padded together, nor rows on both sides of a length at which the model changes.
    """
    scored = mask.cpu().numpy()
    ends = np.where(scored.any(axis=1), scored.shape[1] - 1 - scored[:, ::-1].argmax(axis=1), 0)  # tokens to be read
    sides = np.searchsorted(policy.trial.boundaries, ends)
    parts = []
    for side in np.unique(sides[ends > 0]):
        rows = np.flatnonzero((sides == side) & (ends > 0))
        parts += [rows[part] for part in rectangles(ends[rows], np.zeros_like(ends[rows]))]
    states = []
    for part in parts:
        index, width = torch.from_numpy(part).to(tokens.device), int(ends[part].max())
        out = policy.causal.base_model(input_ids=tokens[index, :width], use_cache=False).last_hidden_state
        states.append(out[mask[index, 1 : width + 1]])
    if len(parts) == 1:
        return states[0]
    # Back into the order of the rows.
    counts = scored.sum(axis=1)
    first = np.cumsum(counts) - counts
    places = np.concatenate([first[row] + np.arange(counts[row]) for part in parts for row in part])
    return take(torch.cat(states), torch.from_numpy(np.argsort(places)).to(tokens.device))


def _packed(policy: Policy, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the same without padding, with each distinct prompt computed once."""
    ids, scored = tokens.cpu().numpy(), mask.cpu().numpy()
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
        tokens.device,
    )
    prompt_ends, starts = np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=np.int64)
    for p, group in enumerate(members):
        prompt_ends[group], starts[group] = layout.prompt_ends[p], layout.starts[p, : len(group)]
    # The first scored token is predicted by the prompt's last one, the others by the token before them.
    rows, columns = scored.nonzero()
    offsets = columns - firsts[rows]
    sources = np.where(offsets == 0, prompt_ends[rows], starts[rows] + offsets - 1)
    hidden = hidden_states(policy.causal, layout, layout.ids, layout.positions)
    return take(hidden, torch.from_numpy(sources).to(tokens.device))


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return x[index] (n, ...) for repeated indices, with a gradient that is deterministic.

    Where CPU threads meet at one row, the gradient of plain indexing adds up in the order in which they come; on CUDA
    it is index_select's that does.
    """
    return x.index_select(0, index) if x.device.type == "cpu" else x[index]


def _score(
    causal: Any, hidden: Tensor, targets: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Return logprobs (n,) of targets (n,), and entropies (n,) or None, chunk by chunk through the LM head."""

    def score(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        logprobs = (output_logits(causal, hidden) / temperature).log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1) if with_entropy else None
        return logprobs.gather(1, targets[:, None])[:, 0], entropy

    vocabulary = causal.get_output_embeddings().weight.shape[0]
    size = max(1, MAX_LOGITS // vocabulary)
    if len(targets) <= size:
        return score(hidden, targets)
    pieces: list[tuple[Tensor, Tensor | None]] = [
        checkpoint(score, h, t, use_reentrant=False) for h, t in zip(hidden.split(size), targets.split(size))
    ]
    logprobs = torch.cat([logprobs for logprobs, _ in pieces])
    return logprobs, torch.cat([entropy for _, entropy in pieces if entropy is not None]) if with_entropy else None
