"""The recipes' figures of GPU memory are those of the formula, and the formula's are those of real tensors."""

from __future__ import annotations

import dataclasses
import importlib
import re

import pytest

from rlvr.config import AlgoConfig, Config, ModelConfig, OptimConfig, PPOConfig
from rlvr.model.critic import Critic
from rlvr.model.memory import QWEN_3B, QWEN_15B, Shape, held_bytes, peak_bytes, sampling_bytes, shape_of, training_bytes
from rlvr.model.optim import make_optimizer
from rlvr.model.policy import Policy, load_policy


def gigabytes(count: int) -> int:
    return round(count / 1e9)


def with_lora(config: Config) -> Config:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, lora_rank=32))


@pytest.mark.parametrize(
    ("name", "shape"), [("countdown_grpo", QWEN_3B), ("math_grpo", QWEN_15B), ("code_grpo", QWEN_15B)]
)
def test_figures_of_the_recipes(name: str, shape: Shape) -> None:
    """What is held, the peak, and the 1.5B model's peak with LoRA, as the recipe's settings give them."""
    recipe = importlib.import_module(f"rlvr.recipes.{name}")
    text = " ".join(recipe.__doc__.split())
    assert re.search(r"(\d+) GB are held throughout", text)[1] == str(gigabytes(held_bytes(shape, recipe.CONFIG)))
    peaks = re.findall(r"about (\d+) GB", text)
    expected = [peak_bytes(shape, recipe.CONFIG), peak_bytes(QWEN_15B, with_lora(recipe.CONFIG))]
    assert peaks == [str(gigabytes(count)) for count in expected]


def test_countdown_by_hand() -> None:
    """3.086e9 parameters: 12.3 GB of weights, as much of gradients, 24.7 of AdamW, 6.8 of a reference; fits 80 GB."""
    config = importlib.import_module("rlvr.recipes.countdown_grpo").CONFIG
    assert config.algo.needs_reference
    embeddings, norms = 151_936 * 2048, (2 * 36 + 1) * 2048
    assert held_bytes(QWEN_3B, config) == 18 * 3_085_938_688 + 2 * (embeddings + norms)
    assert held_bytes(QWEN_3B, config) / 1e9 == pytest.approx(56.2, abs=0.05)
    assert training_bytes(QWEN_3B, config) < 76e9
    assert sampling_bytes(QWEN_3B, config) < 76e9


def tensors(*models: Policy | Critic) -> int:
    """Bytes of the weights and gradients of some models, shared ones once."""
    weights = {id(w): w for model in models for w in model.model.parameters()}.values()
    return sum(w.nbytes + (0 if w.grad is None else w.grad.nbytes) for w in weights)


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_what_is_held_is_what_the_tensors_take(tmp_path, rank: int, kl_coef: float) -> None:
    """A real policy after a backward pass and a step: weights, gradients, moments, reference, to the byte."""
    load_policy(ModelConfig(device="cpu"), corpus=["0123456789+="], seed=0).save(tmp_path)
    model = ModelConfig(name=str(tmp_path), device="cpu", lora_rank=rank, dtype="bfloat16")
    policy = load_policy(model, seed=0)
    trained = sum(weight.numel() for weight in policy.parameters())
    shape = shape_of(policy)
    assert shape is not None
    config = Config(model=model, algo=AlgoConfig(kl_coef=kl_coef))
    assert not rank or shape.adapters(rank) == trained
    reference = policy.reference() if config.algo.needs_reference else policy
    optimizer = make_optimizer(policy.parameters(), OptimConfig())
    sum(weight.float().square().sum() for weight in policy.parameters()).backward()
    optimizer.step()
    moments = sum(value.nbytes for state in optimizer.state.values() for name, value in state.items() if name != "step")
    assert tensors(policy, reference) + moments == held_bytes(shape, config)


def test_a_critic_of_its_own_holds_as_much_again() -> None:
    """16 bytes a parameter more; a head on the policy's trunk next to nothing."""
    ppo = Config(algo=PPOConfig())
    head = dataclasses.replace(ppo, critic=dataclasses.replace(ppo.critic, kind="head"))
    assert held_bytes(QWEN_15B, ppo) == 2 * held_bytes(QWEN_15B, head) == 32 * QWEN_15B.parameters
