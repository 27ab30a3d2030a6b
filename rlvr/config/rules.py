"""Which settings of different groups can work together. Rules within a group are beside its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.config.settings import Rules
from rlvr.core.files.models import is_adapter

if TYPE_CHECKING:
    from rlvr.config import Config


def rules(config: Config) -> Rules:
    """Return conditions, each with the line that says why it does not hold."""
    groups = (algo_rules, reference_rules, demonstration_rules, memory_rules, sampling_rules, monitor_rules)
    return [rule for of_group in groups for rule in of_group(config)]


def algo_rules(config: Config) -> Rules:
    """Return rules about the algorithm's critic, groups and rewards."""
    r, row = config.rollout, config.algo.row
    return [
        (
            (config.critic is not None) == row.critic,
            f"critic is set, and algo {row.name} trains none; leave it out, or choose ppo",
        ),
        (
            r.group_size >= 2 or not row.group_relative,
            f"rollout.group_size 1 with the group-relative advantage {row.name!r}: every advantage would be 0; set "
            "rollout.group_size to 2 or more, or --algo reinforce",
        ),
        (
            not row.reads_parts or (r.truncated != "penalize" and r.length_penalty == 0),
            f"{row.name} reads only the parts of the reward: rollout.truncated penalize and rollout.length_penalty "
            "would have no effect; leave them out",
        ),
    ]


def reference_rules(config: Config) -> Rules:
    """Return rules about the reference policy, which under LoRA is the model without its adapter."""
    m, needs_reference = config.model, config.algo.needs_reference
    return [
        (
            not (m.lora_rank and needs_reference and is_adapter(m.name)),
            f"model.name {m.name} is an adapter that has been trained, and with model.lora_rank the reference policy "
            "is the model without its adapter: `rlvr merge` it first and name the merged model, or leave out "
            "algo.kl_coef",
        ),
        (
            not (m.lora_rank and config.sft.steps and needs_reference),
            "with model.lora_rank the reference policy is the model without its adapter, and sft.steps trains the "
            "adapter: fine-tune without it first (`rlvr sft`), or leave out algo.kl_coef",
        ),
        (
            not (m.lora_rank and config.algo.reference_every),
            "algo.reference_every with model.lora_rank: the reference policy is the model without its adapter, which "
            "training does not change; leave one of them out",
        ),
    ]


def demonstration_rules(config: Config) -> Rules:
    """Return rules about demonstrations that nothing would read."""
    return [
        (
            config.sft.data is None or config.sft.steps > 0 or config.algo.ptx_coef > 0,
            f"sft.data {config.sft.data} with sft.steps 0, which reads none; set --sft.steps, or --algo.ptx-coef",
        )
    ]


def memory_rules(config: Config) -> Rules:
    """Return rules about an optimizer's state that is not in shards with the weights."""
    shards, o = config.model.shard, config.optim
    return [
        (
            shards == 1 or (o.name == "adamw" and not o.offload),
            f"optim.{'offload' if o.offload else f'name {o.name}'} with model.shard {shards}: such a state is not cut "
            "into shards; leave one of them out",
        )
    ]


def sampling_rules(config: Config) -> Rules:
    """Return rules about sampling off policy, and its correction."""
    r, a, s = config.rollout, config.algo, config.sampler
    return [
        (
            s.max_staleness == 0 or a.importance != "none" or a.loss_row.ratio is None,
            f"sampler.max_staleness {s.max_staleness} with algo.importance none: nothing would correct for older "
            "weights; set --algo.importance token",
        ),
        (
            (r.top_p == 1 and r.top_k == 0) or a.importance == "none",
            f"rollout.top_p {r.top_p} or top_k {r.top_k} with algo.importance {a.importance}: completions are drawn "
            "from the tokens kept, and the policy that is trained gives mass to all; leave them at 1 and 0, or set "
            "--algo.importance none to train off policy (mismatch/* says how far)",
        ),
    ]


def monitor_rules(config: Config) -> Rules:
    """Return rules about the monitor and what needs one."""
    return [
        (
            config.monitor is None or config.rollout.problems_per_step >= 2,
            "a monitor with rollout.problems_per_step 1: noise is measured between problems; set 2 or more",
        ),
        (
            config.monitor is not None or config.eval.verifier != "monitor",
            "eval.verifier monitor without a monitor; set --monitor NAME",
        ),
    ]
