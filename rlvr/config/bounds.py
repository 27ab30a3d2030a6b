"""The bounds of every numeric setting of a run, what its texts must be like, and settings that would have no effect."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlvr.config.quantities import (
    COUNT,
    COUNT_OR_NONE,
    GREEDY_OR_TEMPERATURE,
    LEARNING_RATE,
    MOST,
    POSITIVE,
    POSITIVE_SHARE,
    SECONDS,
    SEED,
    SHARE,
    TEMPERATURE,
    WEIGHT,
    WORKERS,
    Bound,
    why_out,
)
from rlvr.registry import did_you_mean

if TYPE_CHECKING:
    from rlvr.config import Config
    from rlvr.config.reward_model import RewardConfig
    from rlvr.config.rules import Rules

SAMPLERS = ("torch", "vllm", "vllm-server")
DEVICES = "auto, cpu, mps, cuda or cuda:N"
SCORE = Bound(-MOST, MOST)
ADAM_DECAY = Bound(0, 1 - 1e-9)  # AdamW divides by 1 - beta

OPTIM_BOUNDS = {
    "optim.lr": LEARNING_RATE,
    "optim.decay_steps": COUNT_OR_NONE,
    "optim.warmup_steps": COUNT_OR_NONE,
    "optim.min_lr_ratio": SHARE,
    "optim.betas": ADAM_DECAY,
    "optim.weight_decay": WEIGHT,
    "optim.max_grad_norm": POSITIVE,
    "optim.tokens_per_microbatch": COUNT,
}
BOUNDS = {
    "run.seed": SEED,
    "run.steps": COUNT_OR_NONE,
    "run.save_every": COUNT_OR_NONE,
    "run.keep_checkpoints": COUNT,
    "run.sample_every": COUNT_OR_NONE,
    "model.lora_rank": COUNT_OR_NONE,
    "model.lora_alpha": POSITIVE,
    "rollout.problems_per_step": COUNT,
    "rollout.group_size": COUNT,
    "rollout.max_prompt_tokens": COUNT,
    "rollout.max_new_tokens": COUNT,
    "rollout.temperature": TEMPERATURE,
    "rollout.top_p": POSITIVE_SHARE,
    "rollout.top_k": COUNT_OR_NONE,
    "rollout.batch_size": COUNT,
    "rollout.workers": WORKERS,
    "rollout.timeout": SECONDS,
    "rollout.error_budget": SHARE,
    "rollout.resample_rounds": COUNT_OR_NONE,
    "rollout.max_staleness": COUNT_OR_NONE,
    "rollout.overlong_buffer": COUNT_OR_NONE,
    "rollout.length_penalty": WEIGHT,
    "rollout.length_limit": COUNT_OR_NONE,
    "algo.gamma": POSITIVE_SHARE,
    "algo.gae_lambda": SHARE,
    "algo.clip_low": SHARE,
    "algo.clip_high": WEIGHT,
    "algo.dual_clip": Bound(1, MOST, above=True),
    "algo.kl_coef": WEIGHT,
    "algo.dpo_beta": POSITIVE,
    "algo.epochs": COUNT,
    "algo.minibatches": COUNT,
    "algo.importance_cap": POSITIVE,
    "critic.lr": LEARNING_RATE,
    "critic.warmup": COUNT_OR_NONE,
    "critic.value_clip": POSITIVE,
    "critic.value_coef": POSITIVE,
    **OPTIM_BOUNDS,
    "eval.every": Bound(-1, MOST),
    "eval.num_problems": COUNT_OR_NONE,
    "eval.samples": COUNT,
    "eval.k": COUNT,
    "eval.temperature": GREEDY_OR_TEMPERATURE,
    "eval.top_p": POSITIVE_SHARE,
    "eval.max_new_tokens": COUNT,
    "eval.threshold": SCORE,
    "monitor.window": COUNT,
    "monitor.margin": POSITIVE,
    "monitor.noise": WEIGHT,
    "monitor.rank": Bound(-1, 1),
    "monitor.patience": COUNT,
    "vllm.timeout": SECONDS,
    "vllm.max_restarts": COUNT_OR_NONE,
    "vllm.gpu_memory_utilization": POSITIVE_SHARE,
    "vllm.max_model_len": COUNT_OR_NONE,
    "vllm.sync_check_every": COUNT_OR_NONE,
    "vllm.mismatch_alarm": POSITIVE,
    "sft.steps": COUNT_OR_NONE,
    "sft.batch_size": COUNT,
    "sft.lr": LEARNING_RATE,
    "sft.warmup_steps": COUNT_OR_NONE,
}
EVAL_BOUNDS = {
    "k": COUNT,
    "samples": COUNT,
    "max_problems": COUNT,
    "temperature": GREEDY_OR_TEMPERATURE,
    "top_p": POSITIVE_SHARE,
    "top_k": COUNT_OR_NONE,
    "max_prompt_tokens": COUNT,
    "max_new_tokens": COUNT,
    "threshold": SCORE,
    "seed": SEED,
    "batch_size": COUNT,
    "workers": WORKERS,
    "timeout": SECONDS,
}
REWARD_BOUNDS = {
    "run.seed": SEED,
    "run.models": COUNT,
    "pairs.num_problems": Bound(2, MOST),
    "pairs.samples": Bound(2, MOST),
    "pairs.temperature": TEMPERATURE,
    "pairs.max_new_tokens": COUNT,
    "pairs.batch_size": COUNT,
    "pairs.workers": WORKERS,
    "pairs.timeout": SECONDS,
    "pairs.per_problem": COUNT,
    "pairs.held_out": Bound(0, 0.99, above=True),
    "model.lora_rank": COUNT_OR_NONE,
    "model.lora_alpha": POSITIVE,
    "model.max_tokens": COUNT_OR_NONE,
    "train.epochs": COUNT,
    "train.batch_size": COUNT,
    **OPTIM_BOUNDS,
}


def setting(config: Any, name: str) -> Any:
    """The value of `group.name`."""
    group, _, field = name.partition(".")
    return getattr(getattr(config, group), field)


def bound_rules(config: Config | RewardConfig) -> Rules:
    """A rule for each number that is outside its bounds or not finite."""
    bounds = BOUNDS if hasattr(config, "algo") else REWARD_BOUNDS
    messages = (why_out(name, setting(config, name), bound) for name, bound in bounds.items())
    return [*((False, message) for message in messages if message), device_rule(config.model.device)]


def check_numbers(config: Config | RewardConfig) -> None:
    """Raises ValueError for the first number outside its bounds, and for a device that there cannot be."""
    for holds, message in bound_rules(config):
        if not holds:
            raise ValueError(message)


def text_rules(config: Config) -> Rules:
    """Names, patterns and lists that are not numbers."""
    m, r, run = config.model, config.rollout, config.run
    return [
        (bool(m.name.strip()), "model.name is empty; expected a hub name, a folder, or tiny"),
        (bool(run.task.strip()), "run.task is empty; expected a task pack (see `rlvr list`)"),
        (run.verifier is None or bool(run.verifier.strip()), "run.verifier is empty; expected a name, or None"),
        (bool(m.lora_targets.strip()), "model.lora_targets is empty; expected module names, or all-linear"),
        (compiles(m.tiny_tokens), f"model.tiny_tokens {m.tiny_tokens!r}: expected a regular expression"),
        (r.sampler in SAMPLERS, f"rollout.sampler {r.sampler!r}; {did_you_mean(r.sampler, SAMPLERS)}"),
        ("" not in r.stop, "rollout.stop holds an empty text, which would end every completion at once; leave it out"),
        (len(config.eval.k) > 0, "eval.k is empty; expected at least one k, or --eval.every -1 for no evaluation"),
    ]


def device_rule(device: str) -> tuple[bool, str]:
    """The rule for the name of a device."""
    return is_device(device), f"model.device {device!r}; expected {DEVICES}"


def is_device(name: str) -> bool:
    """Whether torch may have a device of this name (whether this machine has it is told when it is used)."""
    return re.fullmatch(r"auto|cpu|mps|(cuda|xpu|npu)(:\d+)?", name) is not None


def compiles(pattern: str) -> bool:
    """Whether a text is a regular expression."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


# Settings, when they are read, and what would make it so.
Use = tuple[tuple[str, ...], Callable[["Config"], bool], str]
USES: tuple[Use, ...] = (
    (
        ("algo.gamma", "algo.gae_lambda", "critic.kind", "critic.lr", "critic.warmup", "critic.value_clip"),
        lambda c: c.algo.row.critic,
        "only --algo.advantage gae reads it",
    ),
    (
        ("critic.value_coef",),
        lambda c: c.algo.row.critic and c.critic.kind == "head",
        "only --algo.advantage gae with --critic.kind head reads it",
    ),
    (("algo.dpo_beta",), lambda c: c.algo.row.pairs, "only --algo.advantage dpo reads it"),
    (
        ("algo.clip_low", "algo.clip_high"),
        lambda c: c.algo.loss_row.ratio is not None,
        "the loss of raft and of dpo has no ratio to clip",
    ),
    (
        ("algo.dual_clip",),
        lambda c: c.algo.loss_row.dual_clip,
        "the losses nll, dpo and cispo do not read it",
    ),
    (("algo.kl_estimator", "algo.kl_in"), lambda c: c.algo.kl_coef > 0, "there is no KL term; set --algo.kl-coef too"),
    (
        ("algo.importance_cap",),
        lambda c: c.algo.importance != "none" and (c.algo.importance != "auto" or c.rollout.sampler != "torch"),
        "nothing is weighted; set --algo.importance token or sequence too",
    ),
    (
        ("rollout.overlong_buffer",),
        lambda c: c.rollout.truncated == "penalize",
        "only --rollout.truncated penalize reads it",
    ),
    (
        ("optim.min_lr_ratio", "optim.decay_steps"),
        lambda c: c.optim.schedule != "constant",
        "the schedule is constant; set --optim.schedule linear or cosine too",
    ),
    (
        ("model.lora_alpha", "model.lora_targets"),
        lambda c: c.model.lora_rank > 0,
        "there is no adapter; set --model.lora-rank too",
    ),
    (
        ("monitor.window", "monitor.margin", "monitor.noise", "monitor.rank", "monitor.patience"),
        lambda c: c.monitor.verifier is not None,
        "there is no monitor; set --monitor.verifier too",
    ),
    (
        ("sft.batch_size", "sft.lr", "sft.warmup_steps"),
        lambda c: c.sft.steps > 0,
        "there is no fine-tuning; set --sft.steps too",
    ),
)


def check_effect(config: Config, default: Config) -> None:
    """Raises ValueError for the first setting that was changed from the recipe's `default` and would not be read.

    A recipe itself may hold settings for algorithms that it does not choose.
    """
    for names, is_read, advice in USES:
        changed = [name for name in names if setting(config, name) != setting(default, name)]
        if changed and not is_read(config):
            value = setting(config, changed[0])
            raise ValueError(f"{changed[0]} {value} would have no effect: {advice}, or leave it out")
