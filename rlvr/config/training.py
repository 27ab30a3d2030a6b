"""The settings of a training run: all its groups, rules across groups, and the record of them in config.json."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr.algo.algorithms import ALGORITHMS
from rlvr.core.files.models import is_adapter
from rlvr.core.types import Sampling

from .algo import AlgoConfig
from .model import CriticConfig, ModelConfig, OptimConfig
from .run import CurriculumConfig, EvalConfig, MonitorConfig, RolloutConfig, RunConfig, SFTConfig
from .sampler import SAMPLERS, SamplerConfig, TorchSamplerConfig
from .settings import Rules, check_groups, groups_of, require, settings_of
from .teacher import TeacherConfig


@dataclass(frozen=True)
class Config:
    """All settings of a run. critic, teacher: None, except with algorithms that need one. monitor: None without one."""

    run: RunConfig = field(default_factory=RunConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    critic: CriticConfig | None = None
    teacher: TeacherConfig | None = None
    optim: OptimConfig = field(default_factory=OptimConfig)
    sampler: SamplerConfig = field(default_factory=TorchSamplerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    monitor: MonitorConfig | None = None
    sft: SFTConfig = field(default_factory=SFTConfig)

    def __post_init__(self) -> None:
        name = getattr(self.algo, "name", None)  # check() refuses an `algo` without one
        if self.critic is None and name in list(ALGORITHMS) and ALGORITHMS[name].critic:
            object.__setattr__(self, "critic", CriticConfig())
        if self.teacher is None and name in list(ALGORITHMS) and ALGORITHMS[name].teachers:
            object.__setattr__(self, "teacher", TeacherConfig())

    @property
    def demonstrates(self) -> bool:
        off_policy = self.teacher.off_policy if self.teacher is not None else 0.0
        return self.sft.steps > 0 or self.algo.ptx_coef > 0 or off_policy > 0

    def sampling(self) -> Sampling:
        r = self.rollout
        return Sampling(r.max_new_tokens, r.temperature, r.top_p, r.top_k, r.stop)

    def eval_sampling(self) -> Sampling:
        r, e = self.rollout, self.eval
        return Sampling(e.max_new_tokens or r.max_new_tokens, e.temperature, e.top_p, 0, r.stop)

    @property
    def teacher_kind(self) -> str:
        """Return `teacher.kind` with auto resolved; "" without a teacher."""
        if self.teacher is None:
            return ""
        return (*self.algo.row.teachers, "")[0] if self.teacher.kind == "auto" else self.teacher.kind

    def staleness(self, step: int) -> int:
        """Return the most steps between the weights that sample batch `step` (from 0) and those that it trains.

        With slices a group may have been in progress for as many slices as its longest row takes.
        """
        slice_tokens = self.sampler.slice_tokens
        cuts = math.ceil(self.rollout.max_new_tokens / slice_tokens) - 1 if slice_tokens else 0
        return min(step, self.sampler.max_staleness + cuts)

    def check(self) -> None:
        check_groups(self)
        require(rules(self))


def to_json(config: Any) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2, default=str)


def read_config(record: Mapping[str, Any]) -> Config:
    """Return the config of a run's record, its config.json. Settings that it lacks have their default.

    Raises ValueError for an algorithm or a sampler that does not exist.
    """
    algo, sampler = record.get("algo", {}).get("name", "grpo"), record.get("sampler", {}).get("name", "torch")
    if algo not in ALGORITHMS or sampler not in SAMPLERS:
        raise ValueError(
            f"config.json of a run with algo {algo!r} and sampler {sampler!r}: no such algorithm or sampler"
        )
    kinds: dict[str, type] = {name: type(value) for name, value in groups_of(Config())}
    kinds["sampler"] = SAMPLERS[sampler]
    if ALGORITHMS[algo].critic:
        kinds["critic"] = CriticConfig
    if ALGORITHMS[algo].teachers:
        kinds["teacher"] = TeacherConfig
    if record.get("monitor"):
        kinds["monitor"] = MonitorConfig
    return Config(**{name: read_group(kind, record.get(name) or {}) for name, kind in kinds.items()})


def read_group(kind: type, values: Mapping[str, Any]) -> Any:
    """Return a group from JSON values: lists become tuples, texts paths where the setting is one."""
    hints = {setting.name: str(setting.hint) for setting in settings_of(kind)}
    taken = {f.name: values[f.name] for f in dataclasses.fields(kind) if f.init and f.name in values}
    for name, value in taken.items():
        if isinstance(value, list):
            taken[name] = tuple(value)
        elif isinstance(value, str) and "Path" in hints[name]:
            taken[name] = Path(value)
    return kind(**taken)


def rules(config: Config) -> Rules:
    """Return rules across groups; those within a group are beside its fields."""
    return [*algo_rules(config), *reference_rules(config), *sampling_rules(config), *teacher_rules(config)]


def algo_rules(config: Config) -> Rules:
    """Return rules about what the algorithm needs of the other groups, and about the optimizer."""
    r, row, o, shards = config.rollout, config.algo.row, config.optim, config.model.shard
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
            not row.reads_parts or r.truncated != "penalize",
            f"{row.name} reads only the parts of the reward: rollout.truncated penalize would have no effect; leave it "
            "out",
        ),
        (
            shards == 1 or config.model.weights == "float32",
            f"model.weights bfloat16 with model.shard {shards}: shards are float32, the copy that updates add up in, "
            "and are gathered in bfloat16; leave model.weights out",
        ),
        (
            shards == 1 or (o.name == "adamw" and not o.offload),
            f"optim.{'offload' if o.offload else f'name {o.name}'} with model.shard {shards}: this optimizer does not "
            "support sharding; leave one of them out",
        ),
        (
            config.sft.data is None or config.demonstrates,
            f"sft.data {config.sft.data} with sft.steps 0, which reads none; set --sft.steps, or --algo.ptx-coef",
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
            not (m.lora_rank and config.sft.steps and (needs_reference or config.teacher_kind == "start")),
            "with model.lora_rank the reference policy is the model without its adapter, and sft.steps trains the "
            "adapter: fine-tune without it first (`rlvr sft`), or leave out algo.kl_coef and teacher.kind start",
        ),
        (
            not (m.lora_rank and config.algo.reference_every),
            "algo.reference_every with model.lora_rank: the reference policy is the model without its adapter, which "
            "training does not change; leave one of them out",
        ),
    ]


def sampling_rules(config: Config) -> Rules:
    """Return rules about sampling off policy and its correction, and about the monitor."""
    r, a, s = config.rollout, config.algo, config.sampler
    return [
        (
            s.max_staleness == 0 or a.importance != "none" or a.loss_row.ratio is None,
            f"sampler.max_staleness {s.max_staleness} with algo.importance none: nothing would correct for older "
            "weights; set --algo.importance token",
        ),
        (
            (r.top_p == 1 and r.top_k == 0) or not a.corrects_mismatch,
            f"rollout.top_p {r.top_p} or top_k {r.top_k} with algo.importance {a.importance}: completions are drawn "
            "from the tokens kept, and the policy that is trained gives mass to all; leave them at 1 and 0, or set "
            "--algo.importance none to train off policy (mismatch/* says how far)",
        ),
        (
            s.slice_tokens < r.max_new_tokens,
            f"sampler.slice_tokens {s.slice_tokens} with rollout.max_new_tokens {r.max_new_tokens}: no completion "
            "would be cut; set fewer, or leave it out",
        ),
        (
            not (s.slice_tokens and r.resample_rounds),
            f"sampler.slice_tokens with rollout.resample_rounds {r.resample_rounds}: groups leave in the order in "
            "which their problems are drawn, and none is dropped; set rollout.resample_rounds 0",
        ),
        (
            s.slice_tokens > 0 or s.has_own_weights or s.max_staleness == 0,
            f"sampler.max_staleness {s.max_staleness} with --sampler torch, whose weights are the trainer's own: it "
            "samples no batch ahead without sampler.slice_tokens; leave it out, or choose vllm or vllm-server",
        ),
        (
            config.monitor is None or config.rollout.problems_per_step >= 2,
            "a monitor with rollout.problems_per_step 1: noise is measured between problems; set 2 or more",
        ),
        (
            config.monitor is not None or config.eval.verifier != "monitor",
            "eval.verifier monitor without a monitor; set --monitor NAME",
        ),
    ]


def teacher_rules(config: Config) -> Rules:
    """Return rules about the teacher of a distillation: whether there is one, who it is, what it can give."""
    t, row, kind = config.teacher, config.algo.row, config.teacher_kind
    if t is None:
        return []
    if not row.teachers:
        return [(False, f"teacher is set, and algo {row.name} distils none; leave it out, or choose opd or sdpo")]
    r, served = config.rollout, kind == "server"
    return [
        (
            kind in row.teachers,
            f"teacher.kind {kind} with {row.name}, where it teaches nothing; expected one of {', '.join(row.teachers)}",
        ),
        (
            (t.name is not None) == (kind in ("model", "server")),
            f"teacher.kind {kind} {'needs the name of a model; set' if t.name is None else 'has no'} --teacher.name",
        ),
        (served == (t.url is not None), f"teacher.kind {kind} {'needs a' if served else 'has no'} --teacher.url"),
        (
            kind != "base" or config.model.lora_rank > 0,
            "teacher.kind base is the policy without its adapter; set --model.lora-rank, or --teacher.kind start",
        ),
        (
            kind != "start" or not config.algo.reference_every,
            "teacher.kind start with algo.reference_every, which would reset it; leave one of them out",
        ),
        (
            not served or t.loss != "js" or t.top_k > 0,
            "teacher.loss js with a server, which gives only its likeliest tokens; set --teacher.top-k",
        ),
        (
            not served or r.temperature == 1,
            f"rollout.temperature {r.temperature:g} with a served teacher, whose log-probabilities have 1; set 1",
        ),
        (
            not t.off_policy or not (served or row.tells),
            f"teacher.off_policy with {'a served teacher' if served else row.name}: only a model in this process reads "
            "demonstrations; leave it out",
        ),
        (
            not t.off_policy or not t.pack_weight,
            "teacher.off_policy with teacher.pack_weight: demonstrations have one weight; leave one of them out",
        ),
        (
            config.model.shard == 1,
            f"model.shard {config.model.shard} with algo {row.name}: weights in shards are not distilled; leave it out",
        ),
        (
            t.largest_weight == 1 or r.group_size >= 2,
            "rollout.group_size 1 with teacher.weight below 1: the policy loss compares the completions of a group; "
            "set 2 or more",
        ),
    ]
