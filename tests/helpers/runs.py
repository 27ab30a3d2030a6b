"""Runs of a random tiny model on the CPU, and what tests compute of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.algo.batch import Batch
from rlvr.config import (
    SAMPLERS,
    AlgoConfig,
    Config,
    CriticConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    TeacherConfig,
)
from rlvr.config.settings import carry
from rlvr.core.traits import BatchVerifier
from rlvr.core.types import Group, Problem, Sampler
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_model, tiny_tokenizer
from rlvr.model.logprobs.critic import Critic
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.runs.log import RunLog
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.training.callbacks import Reporter, TrainerCallback
from rlvr.training.rollout.rollout import RolloutWorker, collect
from rlvr.training.run import Run
from rlvr.training.step.learner import Learner
from rlvr.training.step.prepare import prepare_batch
from rlvr.training.step.rewards import group_advantages, group_rewards
from rlvr.training.step.update import accumulate_gradient, to_batch
from tests.helpers.models import shake
from tests.helpers.verifiers import PROBLEMS, NeverRight, OddDigits

# Configs with other settings in some groups.


def with_settings(config: Config, **groups: dict[str, Any]) -> Config:
    """The config with other settings in some groups. A `name` in `sampler` also changes the group's class."""
    for group, values in sorted(groups.items()):  # algo before critic
        held = getattr(config, group)
        if group == "algo":
            algo = dataclasses.replace(held.for_algorithm(values.get("name", held.name)), **values)
            critic = (config.critic or CriticConfig()) if algo.row.critic else None
            teacher = (config.teacher or TeacherConfig()) if algo.row.teachers else None
            config = dataclasses.replace(config, algo=algo, critic=critic, teacher=teacher)
            continue
        if group == "sampler":
            held = carry(held, SAMPLERS[values.get("name", held.name)])
            values = {key: value for key, value in values.items() if key != "name"}
        config = dataclasses.replace(config, **{group: dataclasses.replace(held, **values)})
    return config


CHARACTERS = "0123456789+= "  # one token each
SHORT_PROMPT = "0="
SHORT_LENGTH = 3  # tokens of a completion of `make_short_run`


class AfterStep(TrainerCallback):
    """Calls a function with the number of each step, from 1."""

    def __init__(self, call: Callable[[int], object]) -> None:
        self.call = call

    def on_step_end(self, step, metrics, rollouts) -> None:
        self.call(step)


class Warned(TrainerCallback):
    """Collects the warnings in `told`."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_warning(self, text: str) -> None:
        self.told.append(text)


def tiny(out_dir: Path, **groups: dict) -> Config:
    """Return the configuration of three steps, for `launch`; keyword arguments replace settings of a group."""
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=3, sample_every=2),
        model=ModelConfig(name="tiny", device="cpu"),
        rollout=RolloutConfig(problems_per_step=4, group_size=4, max_new_tokens=10),
        algo=AlgoConfig("reinforce"),
        optim=OptimConfig(lr=1e-3),
        eval=EvalConfig(num_problems=4, samples=4, k=(1, 4)),
    )
    return with_settings(config, **groups)


def build_run(
    config: Config,
    verifier: BatchVerifier | None = None,
    *,
    policy: Policy | None = None,
    sampler: Callable[[Policy], Sampler] = TorchSampler,
    problems: Sequence[Problem] = PROBLEMS,
) -> Run:
    """Return a run in this process, by default of `config.model` with one token for each of CHARACTERS."""
    policy = policy or load_policy(config.model, corpus=[CHARACTERS], seed=0)
    return assemble(
        config,
        policy,
        make_optimizer(policy.parameters(), config.optim),
        sampler(policy),
        problems,
        verifier or OddDigits(),
        RunLog(config.run.out_dir),
        Accelerator(cpu=True),
    )


def make_run(out_dir: Path, *, verifier: BatchVerifier | None = None, reference: bool = False, **groups: dict) -> Run:
    """Return a run of 24 rollouts a step in float32; keyword arguments replace settings of a group."""
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=3, sample_every=0),
        model=ModelConfig(name="tiny", device="cpu", dtype="float32"),
        rollout=RolloutConfig(problems_per_step=6, group_size=4, max_new_tokens=12),
        optim=OptimConfig(lr=1e-3),
    )
    run = build_run(with_settings(config, **groups), verifier)
    run.learner.reference = run.learner.policy.reference() if reference else None
    return run


def make_short_run(
    out_dir: Path, *, away: float = 0.1, verifier: BatchVerifier | None = None, rollout: dict | None = None, **algo
) -> Run:
    """Return a run of a two-layer model with five tokens whose completions have three at most: 85 in all.

    The policy is `away` (a standard deviation of noise on its weights) from the reference. Keyword arguments are
    settings of `algo`.
    """
    tokenizer = tiny_tokenizer([SHORT_PROMPT])
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "layer_types": None}
    config = Qwen2Config.from_dict({**tiny_model(tokenizer, 0).config.to_dict(), **small})
    torch.manual_seed(0)
    policy = Policy(Qwen2ForCausalLM(config), tokenizer)
    shake(policy, 0.1, 0)
    kl = {} if algo.get("name") == "dpo" else {"kl_coef": 0.1}
    chosen = AlgoConfig(**{**kl, **algo})
    sizes = {"problems_per_step": 4, "group_size": 16, "max_new_tokens": SHORT_LENGTH, **(rollout or {})}
    settings = Config(
        run=RunConfig(out_dir=out_dir, steps=50, sample_every=0, save_every=0),
        model=ModelConfig(device="cpu", dtype="float32"),
        rollout=RolloutConfig(**sizes),
        algo=chosen,
        optim=OptimConfig(lr=1e-3, max_update_kl=0.0),  # random weights move far in a step
        critic=CriticConfig(lr=1e-3) if chosen.row.critic else None,
    )
    problems = [Problem(str(i), SHORT_PROMPT) for i in range(20)]
    run = build_run(settings, verifier or NeverRight(), policy=policy, problems=problems)
    run.learner.reference = policy.reference()
    shake(policy, away, 1)
    if settings.critic is not None:
        run.learner.critic = Critic(policy, settings.critic, settings.optim)
    return run


def rollouts_of(run: Run, step: int = 0) -> tuple[list[Group], list[list[float]]]:
    """Sample a step's rollouts. Returns its groups and their advantages."""
    groups = collect(run.worker, step)
    return groups, group_advantages(groups, group_rewards(groups, run.config.rollout), run.config.algo)


def batch_of(run: Run, step: int = 0) -> Batch:
    """Sample a step's rollouts. Returns them as a batch with the logprobs and values that the update needs."""
    return prepare_batch(run.learner, to_batch(run.learner, *rollouts_of(run, step)))


def gradient_of(run: Run, minibatch: Batch) -> torch.Tensor:
    """Return the gradient of the policy's weights as one vector."""
    for weight in run.learner.policy.parameters():
        weight.grad = None
    accumulate_gradient(run.learner, minibatch)
    return torch.cat([weight.grad.reshape(-1) for weight in run.learner.policy.parameters()])


def weights_of(run: Run) -> torch.Tensor:
    """Return a copy of the policy's weights as one vector."""
    return torch.cat([weight.detach().reshape(-1) for weight in run.learner.policy.parameters()])


def assemble(
    config: Config,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    sampler: Sampler,
    problems: Sequence[Problem],
    verifier: BatchVerifier,
    log: RunLog,
    accelerator: Accelerator,
) -> Run:
    """Return the run of these parts."""
    worker = RolloutWorker(config, policy, sampler, problems, verifier, accelerator)
    return Run(Learner(config, policy, optimizer, accelerator), worker, Reporter(log, accelerator))


def groups_of(run: Run, step: int = 0) -> tuple[Sequence[Group], list[list[float]]]:
    """The groups of a step with their advantages, which are alternately 1 and -1: every group has signal."""
    groups = collect(run.worker, step)
    advantages = [[(-1.0) ** i for i in range(len(group.completions))] for group in groups]
    return groups, advantages
