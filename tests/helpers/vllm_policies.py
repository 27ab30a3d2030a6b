"""Random models of the families that vLLM runs on a CPU, how their samples are compared, and runs sampled ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from rlvr.config import Config, ModelConfig, OptimConfig, RolloutConfig, RunConfig, VLLMConfig
from rlvr.core.types import Environment, Problem, Sampler, Sampling
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.runs.log import RunLog
from rlvr.train import train
from rlvr.training.checkpoint.checkpoint import load_checkpoint
from rlvr.training.checkpoint.folders import checkpoint_folder
from rlvr.training.rollout.episodes import TurnPlan
from rlvr.training.run import Run
from rlvr.verifiers.runner import Runner
from tests.helpers.runs import assemble

CORPUS = ["0123456789+-=*() abcdefghijklmnopqrstuvwxyz"]
PROMPTS = ["12+34=", "what is seven", "(1+2)*3=", "x"]
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "bos_token_id": None,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 128}
FAMILIES: dict[str, tuple] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "gpt_oss": (GptOssConfig, GptOssForCausalLM),
}


def make_policy(family: str = "qwen3", *, tied: bool = True) -> Policy:
    """A random model of 0.1M parameters whose completions vary."""
    tokenizer = tiny_tokenizer(CORPUS)
    make_config, make_model = FAMILIES[family]
    torch.manual_seed(0)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    own = EXPERTS if family in ("qwen3_moe", "mixtral", "gpt_oss") else {}
    own = own | {"rope_parameters": YARN} if family == "gpt_oss" else own
    config = make_config(vocab_size=len(tokenizer), tie_word_embeddings=tied, **SIZES, **ids, **own)
    return Policy(make_model(config).eval(), tokenizer)


def with_lora() -> Policy:
    """The tiny model of the recipes with adapters whose second factor is no longer zero."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32", lora_rank=4), corpus=CORPUS)
    shake(policy, 0.02)
    return policy


def shake(policy: Policy, size: float = 0.05) -> None:
    """Random noise on every weight that is trained."""
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(torch.randn_like(weight) * size)


def prompts_of(policy: Policy) -> list[list[int]]:
    return [policy.encode(text) for text in PROMPTS]


def seeds_of(count: int) -> list[list[int]]:
    return [[10 * p + g for g in range(count)] for p in range(len(PROMPTS))]


def greedy_tokens(sampler, policy: Policy) -> list[tuple[int, ...]]:
    groups = sampler.generate(prompts_of(policy), Sampling(max_new_tokens=24, temperature=0), [[0]] * len(PROMPTS))
    return [group[0].token_ids for group in groups]


def same_draws(some, others) -> bool:
    """Whether texts and tokens are equal; logprobs may differ in the last bits with the size of the matmuls."""
    pairs = [(a, b) for row, other in zip(some, others, strict=True) for a, b in zip(row, other, strict=True)]
    return all((a.text, a.token_ids, a.finish_reason) == (b.text, b.token_ids, b.finish_reason) for a, b in pairs)


def run_ahead(
    sampler: Sampler,
    out_dir: Path,
    steps: int,
    *,
    start: int = 0,
    environment: Environment | None = None,
    **settings: Any,
) -> Run:
    """Train the policy of `make_policy()` until a step, from step `start` of an earlier run where it is given.

    settings: of the sampler.
    """
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=steps, sample_every=0),
        rollout=RolloutConfig(problems_per_step=6, group_size=4, max_new_tokens=12),
        sampler=VLLMConfig(**{"max_staleness": 1, **settings}),
        optim=OptimConfig(lr=1e-3),
    )
    config.check()
    policy, log = make_policy(), RunLog(out_dir)
    optimizer = make_optimizer(policy.parameters(), config.optim)
    if start:
        log.truncate_to(load_checkpoint(checkpoint_folder(log.out_dir, start), policy, optimizer)["log"], start)
    sampler.load_weights(policy)
    verifier = Runner(lambda problem, text: sum(c.isdigit() for c in text) % 2 == 1)
    problems = [Problem(str(i), f"{i}+{i}=", str(2 * i)) for i in range(40)]
    run = assemble(config, policy, optimizer, sampler, problems, verifier, log, Accelerator(cpu=True))
    run.worker.plan = environment and TurnPlan(environment, RolloutConfig(max_turns=3, turn_tokens=4))
    train(run, start)
    return run
