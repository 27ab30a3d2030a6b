"""The recipes' figures of GPU memory are those of the formula, and the formula's are those of real tensors."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re

import pytest
import torch

from rlvr.config import AlgoConfig, Config, ModelConfig, OptimConfig
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.logprobs.critic import Critic
from rlvr.model.memory.estimate import (
    QWEN_3B,
    QWEN_15B,
    Shape,
    held_bytes,
    peak_bytes,
    sampling_bytes,
    shape_of,
    training_bytes,
)
from rlvr.model.memory.plan import make_plan
from rlvr.model.optim.optimizer import make_optimizer, optimizer_step
from rlvr.training.step.update import update
from tests.helpers.runs import make_run, rollouts_of


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


def test_a_critic_of_its_own_holds_all_but_gradients_again() -> None:
    """12 bytes a parameter more, since its gradients come after the policy's; a head on the policy's trunk nothing."""
    ppo = Config(algo=AlgoConfig("ppo"))
    head = dataclasses.replace(ppo, critic=dataclasses.replace(ppo.critic, kind="head"))
    assert held_bytes(QWEN_15B, ppo) == held_bytes(QWEN_15B, head) + 12 * QWEN_15B.parameters
    assert held_bytes(QWEN_15B, head) == 16 * QWEN_15B.parameters


def test_gradients_of_policy_and_critic_are_not_held_together(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When either has its optimizer step, the other has none."""
    run = make_run(tmp_path, algo={"name": "ppo"})
    policy, critic = run.learner.policy, Critic(run.learner.policy, run.config.critic, run.config.optim)
    run.learner.critic = critic
    held: list[tuple[int, int]] = []

    def step(optimizer: torch.optim.Optimizer, **options: float) -> float:
        held.append(tuple(sum(w.grad is not None for w in model.parameters()) for model in (policy, critic)))
        return optimizer_step(optimizer, **options)

    monkeypatch.setattr("rlvr.training.step.update.optimizer_step", step)
    update(run.learner, 0, *rollouts_of(run))
    assert held == [(len(policy.parameters()), 0), (0, len(critic.parameters()))]


SHORT = {"weights": "bfloat16"}
EIGHT = pytest.param(
    {},
    "adamw8bit",
    id="8-bit",
    marks=pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="no bitsandbytes"),
)


@pytest.mark.parametrize(("model", "name"), [({}, "adamw"), (SHORT, "adamw"), ({"lora_rank": 4}, "adamw"), EIGHT])
@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_parts_of_a_plan_are_what_the_tensors_take(tmp_path, model: dict, name: str, algo: str) -> None:
    """Weights, gradients, states, reference and critic of a real run, to the byte (8 bits: nearly)."""
    load_policy(ModelConfig(device="cpu"), corpus=["0123456789+="], seed=0).save(tmp_path)
    settings = ModelConfig(name=str(tmp_path), device="cpu", dtype="bfloat16", **model)
    config = Config(model=settings, algo=AlgoConfig(algo, kl_coef=0.1), optim=OptimConfig(name=name))
    policy = load_policy(settings, seed=0)
    shape = shape_of(policy)
    assert shape is not None
    plan = {item.name: item for item in make_plan(shape, config, memory=10**9).items}
    frozen = {id(weight) for weight in policy.model.parameters()}
    reference = policy.reference()
    own = sum(w.nbytes for w in reference.model.parameters() if id(w) not in frozen)
    assert (plan["weights"].update, plan["reference"].update) == (sum(w.nbytes for w in policy.model.parameters()), own)
    critic = Critic(policy, config.critic, config.optim) if config.critic is not None else None
    for kind, weights, optimizer in (
        ("optimizer", policy.parameters(), make_optimizer(policy.parameters(), config.optim)),
        *([("critic, its optimizer", critic.parameters(), critic.optimizer)] if critic else []),
    ):
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        if kind == "optimizer":
            assert sum(weight.grad.nbytes for weight in weights) == plan["gradients"].training
        optimizer.step()
        states = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
        taken = sum(value.nbytes for value in states) + (kind != "optimizer") * sum(w.nbytes for w in weights)
        exact = 0.02 if name == "adamw8bit" else 1e-9
        head = 0 if kind == "optimizer" else 12 * (shape.hidden + 1)  # of the values
        assert taken - head == pytest.approx(plan[kind].update, rel=exact)
