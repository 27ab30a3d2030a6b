"""PPO's critic: from the state at each token to the reward that is still to come."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rlvr.config import CriticConfig, OptimConfig

from ..load.policy import Policy
from ..optim.optimizer import make_optimizer
from ..optim.sharding import fill, full, shard_module, within
from .scoring import Entropy, logprobs_of, on_tokens, preceding_states


class Critic:
    """A linear head on last hidden states: of the policy itself, or of a trunk that starts as a copy of it.

    `values[b, t]` is the value of the state before token t, aligned with logprobs[b, t]. The head starts at zero, and
    is computed in float32: values of neighbouring tokens differ by less than bfloat16 resolves. `optimizer` holds the
    critic's own weights: those of the head, and of its own trunk if it has one.
    """

    def __init__(self, policy: Policy, config: CriticConfig, optim: OptimConfig) -> None:
        self.settings = config
        self.shares_trunk = config.kind == "head"
        self.trunk = policy if self.shares_trunk else copy_of(policy)
        weight = policy.causal.get_output_embeddings().weight
        self.head = nn.Linear(weight.shape[1], 1, device=policy.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if policy.mesh is not None:
            shard_module(self.head, policy.mesh)
        self.optimizer = make_optimizer(self.parameters(), optim)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the weights that only the critic trains. The LM head of its trunk is never used."""
        own = {f"head.{name}": weight for name, weight in self.head.named_parameters()}
        if not self.shares_trunk:
            own |= {f"trunk.{n}": w for n, w in self.trunk.causal.base_model.named_parameters() if w.requires_grad}
        return own

    def parameters(self) -> list[nn.Parameter]:
        """Return the weights that only the critic trains."""
        return list(self.named_parameters().values())

    def of_states(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return values (B, T), float32 and 0 off the mask, of the states (n, hidden) before the masked tokens."""
        with torch.autocast(hidden.device.type, enabled=False):
            return on_tokens(self.head(hidden.float())[:, 0], mask)

    def values(self, tokens: Tensor, mask: Tensor, *, only_head: bool = False) -> Tensor:
        """Return values (B, T) of tokens (B, T) where mask is True. With `only_head` no gradient reaches the trunk."""

        def compute() -> Tensor:
            with self.trunk.computing():
                return preceding_states(self.trunk, tokens, mask)

        with torch.set_grad_enabled(torch.is_grad_enabled() and not only_head):
            hidden = within(self.trunk.model, compute)
        return self.of_states(hidden, mask)

    def logprobs_and_values(
        self, tokens: Tensor, mask: Tensor, *, temperature: float, with_entropy: Entropy = False
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return `token_logprobs` and the values from one forward pass, for a critic on the policy's trunk."""

        def compute() -> tuple[Tensor, Tensor | None, Tensor]:
            with self.trunk.computing():
                hidden = preceding_states(self.trunk, tokens, mask)
                scored = logprobs_of(
                    self.trunk, hidden, tokens, mask, temperature=temperature, with_entropy=with_entropy
                )
            return *scored, self.of_states(hidden, mask)

        return within(self.trunk.model, compute)

    def tensors(self) -> dict[str, Tensor]:
        """Gather the full weights for a checkpoint, on the CPU; not copied there. Every rank must call this."""
        return {name: full(weight.detach()).contiguous().cpu() for name, weight in self.named_parameters().items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the weights that `tensors` returned."""
        for name, weight in self.named_parameters().items():
            fill(weight, tensors[name])


def copy_of(policy: Policy) -> Policy:
    """Return a second trunk equal to the policy's. Frozen weights are shared: with LoRA, all but the adapters.

    Weights in shards are all copied.
    """
    if policy.mesh is not None:
        return policy.copy_shards()
    causal = policy.causal
    lm_head, embeddings = causal.get_output_embeddings().weight, causal.get_input_embeddings().weight
    shared = {id(weight): weight for weight in policy.model.parameters() if not weight.requires_grad}
    if lm_head is not embeddings:
        shared[id(lm_head)] = lm_head
    return Policy(
        copy.deepcopy(policy.model, shared), policy.tokenizer, dtype=policy.dtype, chat="never", packed=policy.packs
    )
