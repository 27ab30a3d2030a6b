"""Random tiny models, token ids to run them on, and a sampler with weights of its own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rlvr.config import ModelConfig
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_model, tiny_tokenizer
from rlvr.model.optim.sharding import fill, full
from rlvr.sampling.torch_sampler import TorchSampler

CORPUS = ["12+34= 7", "a line\nand another \\boxed{46}"]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)
# Families by how they are run: in fewer passes, packed by their own forward, or padded (recurrence, alibi).
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("llama", {"tie_word_embeddings": True}),
    "qwen2_moe": ("llama", {"moe_intermediate_size": 32, "num_experts": 4, "shared_expert_intermediate_size": 32}),
    "granite": ("llama", {"logits_scaling": 3.0}),
    "cohere": ("own", {"logit_scale": 0.3}),
    "gpt2": ("own", {"n_embd": 64, "n_layer": 2, "n_head": 4}),
    "olmo2": ("own", {}),
    "mistral": ("llama", {"sliding_window": 6}),
    "gemma2": ("own", {"sliding_window": 4, "final_logit_softcapping": 5.0}),
    "bloom": ("padded", {"n_layer": 2, "n_head": 4}),
    "mamba": ("padded", {"state_size": 4}),
}


def make_model(family: str, folder: Path) -> Path:
    """Save a random tiny model of a family with a tokenizer of 20 tokens. Returns the folder."""
    tokenizer = tiny_tokenizer(["0123456789+-= abc"])
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**sizes, **FAMILIES[family][1]}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tokens(vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return token ids and mask (7, 17): rows of three prompts, right-padded; one scores nothing, one skips a token."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(0, 5, 9), (0, 5, 4), (0, 5, 1), (1, 8, 7), (1, 8, 7), (2, 1, 11), (2, 1, 3)]  # prompt, its length, n
    prompts = [torch.randint(vocabulary, (8,), generator=generator) for _ in range(3)]
    tokens, mask = torch.zeros(7, 17, dtype=torch.long), torch.zeros(7, 17, dtype=torch.bool)
    for row, (prompt, start, count) in enumerate(shapes):
        tokens[row, :start] = prompts[prompt][:start]
        tokens[row, start : start + count] = torch.randint(vocabulary, (count,), generator=generator)
        mask[row, start : start + count] = True
    mask[1] = False
    mask[3, 10] = False
    return tokens, mask


def tiny_policy(seed: int = 0, **settings: object) -> Policy:
    """Return the recipes' tiny model on the CPU; keyword arguments are ModelConfig's."""
    return load_policy(ModelConfig(device="cpu", **settings), corpus=CORPUS, seed=seed)  # type: ignore[arg-type]


def small_policy(seed: int = 0) -> Policy:
    """Return a random policy of two narrow layers on the CPU, for tests whose subject is not the model."""
    tokenizer = tiny_tokenizer(CORPUS)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "layer_types": None}
    config = Qwen2Config.from_dict({**tiny_model(tokenizer, 0).config.to_dict(), **small})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = Policy(Qwen2ForCausalLM(config), tokenizer)
    shake(policy, 0.1, seed)
    return policy


def weights(policy: Policy) -> dict[str, Tensor]:
    """Return a copy of all weights by name."""
    return {name: value.clone() for name, value in policy.model.state_dict().items()}


def are_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Check that two sets of weights are equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def shake(policy: Policy, size: float, seed: int) -> None:
    """Add normal noise to every weight that is trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            fill(weight, full(weight) + size * torch.randn(weight.shape, generator=generator))


class OwnWeights(TorchSampler):
    """Sampler with a copy of the weights, as an engine has; remembers how many pushes each call came after."""

    def __init__(self, policy: Policy) -> None:
        copied = copy.copy(policy)
        copied.model = copied.causal = copy.deepcopy(policy.model)
        super().__init__(copied)
        self.pushes = 0
        self.pushes_before_call: list[int] = []

    def load_weights(self, policy: Policy) -> None:
        self.policy.model.load_state_dict(policy.model.state_dict())
        self.pushes += 1

    def stream(self, prompts, sampling, seeds, on_group):
        self.pushes_before_call.append(self.pushes)
        return super().stream(prompts, sampling, seeds, on_group)
