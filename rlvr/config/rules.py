"""Which settings can work together. Each rule is a condition and, where it does not hold, the line that says why."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlvr.config.bounds import bound_rules, text_rules
from rlvr.files.models import check_path, is_adapter

if TYPE_CHECKING:
    from rlvr.config import Config

Rules = list[tuple[bool, str]]


def check(config: Config) -> None:
    """Raises ValueError with one line for the first setting that cannot work."""
    for rules in RULES:
        for holds, message in rules(config):
            if not holds:
                raise ValueError(message)


def run_rules(config: Config) -> Rules:
    """Rules of the group `run`."""
    return [
        (config.run.steps >= 0, f"run.steps {config.run.steps}: expected at least 0"),
        (config.run.keep_checkpoints >= 1, f"run.keep_checkpoints {config.run.keep_checkpoints}: expected at least 1"),
        (
            config.run.verifier is not None or not config.run.verifier_options,
            "run.verifier_options without run.verifier, whose options they are; set --run.verifier",
        ),
    ]


def model_rules(config: Config) -> Rules:
    """Rules of the group `model`."""
    rank, name = config.model.lora_rank, config.model.name
    check_path(name)
    return [
        (rank >= 0, f"model.lora_rank {rank}: expected 0 (all weights are trained) or more"),
        (
            not (rank and config.algo.needs_reference and is_adapter(name)),
            f"model.name {name} is an adapter that has been trained, and with model.lora_rank the reference policy is "
            "the model without its adapter: `rlvr merge` it first and name the merged model, or leave out algo.kl_coef",
        ),
        (
            name != "tiny" or config.model.revision is None,
            "model.revision with the built-in tiny model, which is on no hub; leave it out",
        ),
    ]


def rollout_rules(config: Config) -> Rules:
    """Rules of the group `rollout`."""
    r, a = config.rollout, config.algo
    group_relative = a.row.group_relative
    return [
        (r.problems_per_step >= 1, f"rollout.problems_per_step {r.problems_per_step}: expected at least 1"),
        (r.group_size >= 1, f"rollout.group_size {r.group_size}: expected at least 1"),
        (
            r.group_size >= 2 or not group_relative,
            f"rollout.group_size 1 with the group-relative advantage {a.advantage!r}: every advantage would be 0; "
            "set rollout.group_size to 2 or more, or algo.advantage to reinforce",
        ),
        (
            r.group_size >= 2 or r.resample_rounds == 0,
            f"rollout.resample_rounds {r.resample_rounds} with rollout.group_size 1: no group differs within, so that "
            "every round would be drawn in vain; set rollout.resample_rounds to 0",
        ),
        (r.max_new_tokens >= 1, f"rollout.max_new_tokens {r.max_new_tokens}: expected at least 1"),
        (
            r.max_prompt_tokens is None or r.max_prompt_tokens >= 1,
            f"rollout.max_prompt_tokens {r.max_prompt_tokens}: expected at least 1",
        ),
        (r.temperature > 0, f"rollout.temperature {r.temperature}: training samples need a temperature above 0"),
        (0 < r.top_p <= 1, f"rollout.top_p {r.top_p}: expected a share in (0, 1]"),
        (r.top_k >= 0, f"rollout.top_k {r.top_k}: expected 0 (off) or more"),
        (r.max_staleness >= 0, f"rollout.max_staleness {r.max_staleness}: expected 0 (off) or more"),
        (
            r.max_staleness == 0 or r.sampler != "torch",
            f"rollout.max_staleness {r.max_staleness} with the sampler torch, whose weights are the trainer's own; "
            "set --rollout.sampler to vllm or vllm-server",
        ),
        (
            r.max_staleness == 0 or a.importance != "none",
            f"rollout.max_staleness {r.max_staleness} with algo.importance none: nothing would correct for older "
            "weights; set --algo.importance token",
        ),
        (r.timeout > 0, f"rollout.timeout {r.timeout}: expected seconds above 0"),
        (r.workers >= 1, f"rollout.workers {r.workers}: expected at least 1"),
        (0 <= r.error_budget <= 1, f"rollout.error_budget {r.error_budget}: expected a share in [0, 1]"),
        (
            r.truncated != "penalize" or 0 < r.overlong_buffer <= r.max_new_tokens,
            f"rollout.overlong_buffer {r.overlong_buffer}: expected 1 to max_new_tokens ({r.max_new_tokens})",
        ),
        (r.length_penalty >= 0, f"rollout.length_penalty {r.length_penalty}: expected at least 0"),
        (
            0 <= r.length_limit < r.max_new_tokens and (r.length_penalty > 0 or not r.length_limit),
            f"rollout.length_limit {r.length_limit}: expected 0 to max_new_tokens - 1 ({r.max_new_tokens - 1}), "
            "and rollout.length_penalty above 0 to go with it",
        ),
    ]


def algo_rules(config: Config) -> Rules:
    """Rules of the group `algo`."""
    a = config.algo
    return [
        (0 <= a.clip_low <= 1, f"algo.clip_low {a.clip_low}: expected a number in [0, 1]"),
        (a.clip_high >= 0, f"algo.clip_high {a.clip_high}: expected at least 0"),
        (
            a.dual_clip is None or a.dual_clip > 1 + a.clip_high,
            f"algo.dual_clip {a.dual_clip}: expected a number above 1 + algo.clip_high ({1 + a.clip_high:g}), below "
            "which it would bound the ratio of good completions too",
        ),
        (
            a.dual_clip is None or a.loss_row.dual_clip,
            f"algo.dual_clip with algo.loss {a.policy_loss}, which does not read it; leave it out",
        ),
        (a.kl_coef >= 0, f"algo.kl_coef {a.kl_coef}: expected at least 0"),
        (a.epochs >= 1, f"algo.epochs {a.epochs}: expected at least 1"),
        (a.minibatches >= 1, f"algo.minibatches {a.minibatches}: expected at least 1"),
        (
            not a.reward_weights or a.row.reads_parts,
            f"algo.reward_weights with algo.advantage {a.advantage}, which does not read them; set --algo.advantage "
            "gdpo, or give the verifier combine its weights in parts",
        ),
        *((is_weight(item), f"algo.reward_weights {item!r}: expected part=weight") for item in a.reward_weights),
        (0 < a.gamma <= 1, f"algo.gamma {a.gamma}: expected a number in (0, 1]"),
        (0 <= a.gae_lambda <= 1, f"algo.gae_lambda {a.gae_lambda}: expected a number in [0, 1]"),
        (
            a.scale == "none" or not a.row.chooses,
            f"algo.advantage_scale {a.advantage_scale} with {a.advantage}, which chooses rollouts and scales none; "
            "set --algo.advantage-scale auto",
        ),
        (
            a.advantage_scale != "batch_std" or not a.row.critic,
            "algo.advantage_scale batch_std with gae, whose advantages belong to tokens; set none or whiten",
        ),
        (
            (a.policy_loss == "dpo") == a.row.pairs,
            f"algo.loss {a.loss} with algo.advantage {a.advantage}: the pairs of dpo and its loss go together; "
            "set --algo.loss auto",
        ),
        (
            not a.row.pairs or (a.kl_coef == 0 and a.importance in ("auto", "none")),
            "algo.kl_coef or algo.importance with dpo, whose loss has no such term (algo.dpo_beta holds it to the "
            "reference); leave them out",
        ),
        (
            not a.row.chooses or a.row.pairs or a.kl_coef == 0 or a.kl_in == "reward",
            "algo.kl_coef in the loss with raft, whose loss holds chosen rollouts alone and could not estimate it; "
            "set --algo.kl-in reward",
        ),
        (
            not a.row.reads_parts
            or (
                (a.kl_coef == 0 or a.kl_in == "loss")
                and a.scale == "none"
                and config.rollout.truncated != "penalize"
                and config.rollout.length_penalty == 0
            ),
            "gdpo takes the parts of the reward alone: algo.kl_in reward, algo.advantage_scale, rollout.truncated "
            "punish and rollout.length_penalty would have no effect; leave them out",
        ),
        (
            not (config.model.lora_rank and config.sft.steps and a.needs_reference),
            "with model.lora_rank the reference policy is the model without its adapter, and sft.steps trains the "
            "adapter: fine-tune without it first (`rlvr sft`), or leave out algo.kl_coef",
        ),
        (
            (config.rollout.top_p == 1 and config.rollout.top_k == 0) or a.importance == "none",
            f"rollout.top_p {config.rollout.top_p} or top_k {config.rollout.top_k} with algo.importance "
            f"{a.importance}: completions are drawn from the tokens kept, and the policy that is trained gives mass to "
            "all; leave them at 1 and 0, or set --algo.importance none to train off policy (mismatch/* says how far)",
        ),
        (a.dpo_beta > 0, f"algo.dpo_beta {a.dpo_beta}: expected a number above 0"),
        (a.importance_cap > 0, f"algo.importance_cap {a.importance_cap}: expected a number above 0"),
    ]


def term_rules(config: Config) -> Rules:
    """Rules of the KL term's place and estimator, and of what the loss is averaged over."""
    a = config.algo
    kl_in = a.kl_in if a.kl_coef > 0 else None
    whole = a.loss_row.ratio == "sequence"
    return [
        (
            kl_in != "loss" or a.estimator != "k1",
            "algo.kl_estimator k1 with algo.kl_in loss: its expected gradient is zero; set k2, k3 or k3_is, or "
            "--algo.kl-in reward",
        ),
        (
            kl_in != "reward" or a.estimator == "k1",
            f"algo.kl_estimator {a.estimator} with algo.kl_in reward: its expected gradient there is not that of a KL "
            "divergence, and drives the policy away from the reference; set k1, or --algo.kl-in loss",
        ),
        (
            kl_in != "loss" or a.estimator != "k3_is" or not whole,
            f"algo.kl_estimator k3_is with algo.loss {a.policy_loss}, whose ratio is that of a whole completion and "
            "not of the token; set k2 or k3",
        ),
        (
            kl_in != "reward" or not a.row.critic or a.scale == "none",
            f"algo.advantage_scale {a.scale} with gae and algo.kl_in reward: it would scale the KL term with the "
            "rewards of the task; set auto or none, or --algo.kl-in loss",
        ),
        (
            not whole or a.normalizer == "sequence",
            f"algo.normalize {a.normalize} with algo.loss {a.policy_loss}, whose ratio is that of a whole completion: "
            "counted once for each token it would weigh a completion by its length; set auto or sequence",
        ),
    ]


def is_weight(item: str) -> bool:
    """Whether a text is part=weight with a finite weight."""
    name, _, weight = item.partition("=")
    try:
        return bool(name) and math.isfinite(float(weight))
    except ValueError:
        return False


def critic_rules(config: Config) -> Rules:
    """Rules of the group `critic`."""
    c = config.critic
    return [
        (c.lr >= 0, f"critic.lr {c.lr}: expected at least 0"),
        (c.warmup >= 0, f"critic.warmup {c.warmup}: expected at least 0"),
        (c.value_clip is None or c.value_clip > 0, f"critic.value_clip {c.value_clip}: expected above 0, or None"),
        (c.value_coef > 0, f"critic.value_coef {c.value_coef}: expected a number above 0"),
    ]


def optim_rules(config: Config) -> Rules:
    """Rules of the group `optim`."""
    o = config.optim
    return [
        (o.lr >= 0, f"optim.lr {o.lr}: expected at least 0"),
        (
            o.tokens_per_microbatch >= 1,
            f"optim.tokens_per_microbatch {o.tokens_per_microbatch}: expected at least 1",
        ),
    ]


def eval_rules(config: Config) -> Rules:
    """Rules of the group `eval`."""
    e = config.eval
    return [
        (e.samples >= 1, f"eval.samples {e.samples}: expected at least 1"),
        (
            all(1 <= k <= e.samples for k in e.k),
            f"eval.k {e.k}: pass@k needs 1 <= k <= eval.samples ({e.samples})",
        ),
        (
            e.threshold is None or math.isfinite(e.threshold),
            f"eval.threshold {e.threshold}: expected a score, a finite number",
        ),
    ]


def sft_rules(config: Config) -> Rules:
    """Rules of the group `sft`."""
    s = config.sft
    return [(s.data is None or s.steps > 0, f"sft.data {s.data} with sft.steps 0, which reads none; set --sft.steps")]


def monitor_rules(config: Config) -> Rules:
    """Rules of the group `monitor`."""
    s, e = config.monitor, config.eval
    return [
        (s.window >= 1, f"monitor.window {s.window}: expected at least 1"),
        (s.margin > 0, f"monitor.margin {s.margin}: expected a number above 0"),
        (s.noise >= 0, f"monitor.noise {s.noise}: expected at least 0"),
        (-1 <= s.rank <= 1, f"monitor.rank {s.rank}: expected a correlation in [-1, 1]"),
        (
            s.verifier is None or config.rollout.problems_per_step >= 2,
            "monitor.verifier with rollout.problems_per_step 1: noise is measured between problems; set 2 or more",
        ),
        (s.patience >= 1, f"monitor.patience {s.patience}: expected at least 1"),
        (
            s.verifier is not None or not (s.options or s.stop or e.verifier == "monitor"),
            "monitor.options, monitor.stop and eval.verifier monitor need a monitor; set --monitor.verifier",
        ),
    ]


def vllm_rules(config: Config) -> Rules:
    """Rules of the group `vllm`."""
    v, r = config.vllm, config.rollout
    return [
        (v.timeout > 0, f"vllm.timeout {v.timeout}: expected seconds above 0"),
        (v.max_restarts >= 0, f"vllm.max_restarts {v.max_restarts}: expected at least 0"),
        (
            v.url is None or r.sampler == "vllm-server",
            f"vllm.url is set and rollout.sampler is {r.sampler}; set --rollout.sampler vllm-server",
        ),
        (
            0 < v.gpu_memory_utilization <= 1,
            f"vllm.gpu_memory_utilization {v.gpu_memory_utilization}: expected a share in (0, 1]",
        ),
        (v.max_model_len >= 0, f"vllm.max_model_len {v.max_model_len}: expected tokens, or 0"),
        (v.sync_check_every >= 0, f"vllm.sync_check_every {v.sync_check_every}: expected at least 0"),
        (v.mismatch_alarm > 0, f"vllm.mismatch_alarm {v.mismatch_alarm}: expected a number above 0"),
        (
            v.sleep == 0 or (r.sampler == "vllm" and r.max_staleness == 0),
            f"vllm.sleep {v.sleep} needs the sampler vllm, and rollout.max_staleness 0: an engine that samples "
            "meanwhile cannot sleep",
        ),
        (
            v.sleep < 2 or v.lora == "merge",
            "vllm.sleep 2 drops the base weights, and vllm.lora adapter pushes only adapters; set --vllm.sleep 1",
        ),
    ]


RULES: tuple[Callable[[Config], Rules], ...] = (
    run_rules,
    model_rules,
    rollout_rules,
    algo_rules,
    term_rules,
    critic_rules,
    optim_rules,
    eval_rules,
    monitor_rules,
    vllm_rules,
    text_rules,
    bound_rules,
    sft_rules,
)
