"""A policy beside its teacher: log-probabilities, divergences and what both prefer, without holding (B, T, V)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlvr.algo.batch import copy_to
from rlvr.algo.distillation import entropy, generalized_js, kl, with_rest

from ..forward.passes import narrow_logits
from ..load.policy import Policy
from .scoring import Entropy, logit_bytes, logprobs_of, on_tokens, preceding_states, take

COPIES = 6  # matrices of the logits' size that a comparison holds at once
NUMBERS = ("divergence", "kl", "agreement", "teacher_logprobs", "teacher_entropy", "outside")


@dataclass(frozen=True)
class Comparison:
    """What a pass over tokens (B, T) gives beside a teacher. All but `entropy` are 0 where there is no teacher.

    logprobs, entropy: as `token_logprobs` gives them. divergence: with a gradient; 0 where beta is None. kl: KL(policy
    || teacher) of the whole distributions; agreement: 1 where both hold the same token the likeliest;
    teacher_logprobs: of the tokens; outside: the teacher's mass outside its top k. None of a served teacher: kl,
    teacher_logprobs (the server told them) and teacher_entropy, which its likeliest tokens do not give.
    """

    logprobs: Tensor
    entropy: Tensor | None
    divergence: Tensor
    agreement: Tensor
    outside: Tensor
    kl: Tensor | None = None
    teacher_logprobs: Tensor | None = None
    teacher_entropy: Tensor | None = None


@dataclass(frozen=True)
class TeacherStates:
    """A teacher in this process: its last hidden states (n, hidden) before the n tokens that it speaks of."""

    policy: Policy
    states: Tensor

    def piece(self, part: slice) -> TeacherStates:
        """Return the part of some of the n tokens."""
        return TeacherStates(self.policy, self.states[part])


@dataclass(frozen=True)
class TeacherTop:
    """A served teacher: its likeliest tokens (n, k), the likeliest first, with their log-probabilities."""

    ids: Tensor
    logprobs: Tensor

    def piece(self, part: slice) -> TeacherTop:
        """Return the part of some of the n tokens."""
        return TeacherTop(self.ids[part], self.logprobs[part])


@torch.no_grad()
def teacher_states(teacher: Policy, tokens: Tensor, mask: Tensor) -> TeacherStates:
    """Return what a teacher in this process knows before the masked tokens; tokens and mask as in `token_logprobs`."""
    with teacher.computing():
        return TeacherStates(teacher, preceding_states(teacher, tokens, mask))


def compare_tokens(
    policy: Policy,
    tokens: Tensor,
    mask: Tensor,
    spoken: Tensor,
    teacher: TeacherStates | TeacherTop | None,
    *,
    temperature: float,
    with_entropy: Entropy,
    beta: float | None,
    top_k: int,
) -> Comparison:
    """Return the policy's logprobs (B, T) of the masked tokens, and its comparison with a teacher on some of them.

    spoken (B, T): the masked tokens of which the teacher speaks, in whose order `teacher` has them; None: none.
    beta: of `generalized_js`; None: no divergence. top_k: the divergence is one of the teacher's k likeliest tokens and
    of all others taken as one; 0: of the whole vocabulary. Tokens beyond the smaller of two vocabularies (rows that pad
    the embeddings) are left out.
    """
    mask, spoken = mask.cpu(), spoken.cpu()
    assert bool(mask.any())
    with policy.computing():
        hidden = preceding_states(policy, tokens, mask)
        logprobs, entropies = logprobs_of(
            policy, hidden, tokens, mask, temperature=temperature, with_entropy=with_entropy
        )
        if teacher is None:
            nothing = torch.zeros_like(logprobs.detach())
            return Comparison(logprobs, entropies, *[nothing] * 6)
        own = take(hidden, copy_to(spoken[mask].nonzero()[:, 0], hidden.device))
        targets = copy_to(tokens.cpu()[spoken], hidden.device)
        found = _in_chunks(policy, own, targets, teacher, temperature=temperature, beta=beta, top_k=top_k)
    grids = {name: on_tokens(values, spoken) for name, values in zip(NUMBERS, found, strict=True)}
    if isinstance(teacher, TeacherTop):
        for name in ("kl", "teacher_logprobs", "teacher_entropy"):
            del grids[name]
    return Comparison(logprobs, entropies, **grids)


def _in_chunks(
    policy: Policy,
    hidden: Tensor,
    targets: Tensor,
    teacher: TeacherStates | TeacherTop,
    *,
    temperature: float,
    beta: float | None,
    top_k: int,
) -> Tensor:
    """Return NUMBERS (6, n) of n tokens; with several chunks, logits are computed again in the backward pass."""

    def compute(hidden: Tensor, targets: Tensor, part: TeacherStates | TeacherTop) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and beta is not None):
            logits = narrow_logits(policy.causal, hidden).float() / temperature
            if isinstance(part, TeacherTop):
                return _beside_top(logits, part, beta)
            return _beside_model(logits, targets, part, temperature, beta, top_k)

    device = hidden.device
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    vocabulary = policy.causal.get_output_embeddings().weight.shape[0]
    size = max(1, logit_bytes(memory) // (4 * COPIES * vocabulary))
    if len(targets) <= size:
        return compute(hidden, targets, teacher)
    parts = [slice(start, start + size) for start in range(0, len(targets), size)]
    pieces = [(hidden[part], targets[part], teacher.piece(part)) for part in parts]
    return torch.cat([checkpoint(compute, *piece, use_reentrant=False) for piece in pieces], dim=-1)


def _beside_model(
    logits: Tensor, targets: Tensor, teacher: TeacherStates, temperature: float, beta: float | None, top_k: int
) -> Tensor:
    with torch.no_grad(), teacher.policy.computing():
        others = narrow_logits(teacher.policy.causal, teacher.states).float() / temperature
        width = min(others.shape[-1], logits.shape[-1])
        other = others[:, :width].log_softmax(-1)
    own = logits[:, :width].log_softmax(-1)
    divergence, outside = own.new_zeros(len(own)), own.new_zeros(len(own))
    if top_k:
        best, ids = other.topk(min(top_k, width), dim=-1)
        outside = 1 - best.exp().sum(-1)
    if beta is not None:
        pair = (with_rest(own.gather(-1, ids)), with_rest(best)) if top_k else (own, other)
        divergence = generalized_js(*pair, beta)
    now = own.detach()
    agreement = (now.argmax(-1) == other.argmax(-1)).to(now.dtype)
    chosen = other.gather(-1, targets[:, None])[:, 0]
    return torch.stack([divergence, kl(now, other), agreement, chosen, entropy(other), outside])


def _beside_top(logits: Tensor, teacher: TeacherTop, beta: float | None) -> Tensor:
    own = logits.log_softmax(-1)
    zeros = own.new_zeros(len(own))
    divergence = zeros
    if beta is not None:
        divergence = generalized_js(with_rest(own.gather(-1, teacher.ids)), with_rest(teacher.logprobs), beta)
    agreement = (own.detach().argmax(-1) == teacher.ids[:, 0]).to(own.dtype)
    outside = (1 - teacher.logprobs.exp().sum(-1)).clamp(min=0)
    return torch.stack([divergence, zeros, agreement, zeros, zeros, outside])
