"""A Config: bounds of numbers, settings that nothing reads, what is refused, and values that pass pickle and JSON."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import math
import pickle
import runpy
import typing
from pathlib import Path

import pytest

from rlvr.algo.algorithms import ALGORITHMS
from rlvr.commands.arguments import Flags, check_effect, value_of, values_of
from rlvr.commands.audit import AuditArgs
from rlvr.commands.cli import main
from rlvr.commands.eval import EvalArgs
from rlvr.commands.profile import ProfileArgs
from rlvr.commands.train import load_recipe, recipe_config, recipe_names
from rlvr.config import (
    SAMPLERS,
    AlgoConfig,
    Config,
    CriticConfig,
    EvalConfig,
    ModelConfig,
    MonitorConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    SFTConfig,
    TeacherConfig,
    TorchSamplerConfig,
    VLLMServerConfig,
    sampler,
    to_json,
)
from rlvr.config.reward_model import PairsConfig, RewardConfig
from rlvr.config.settings import check_values
from rlvr.config.training import read_config
from tests.helpers.runs import with_settings

OUT = RunConfig(out_dir=Path("runs/never"))
SERVER = VLLMServerConfig(url=("http://x:1",))
CONFIGS = {
    "train": Config(run=OUT),
    "ppo": Config(run=OUT, algo=AlgoConfig("ppo"), monitor=MonitorConfig("math")),
    **{name: Config(run=OUT, algo=AlgoConfig(name)) for name in ("gdpo", "raft", "dpo")},
    **{name: Config(run=OUT, sampler=kind()) for name, kind in SAMPLERS.items()},
    "rm": RewardConfig(pairs=PairsConfig(policy="tiny")),
    "rm from a file": RewardConfig(pairs=PairsConfig(file=Path("pairs.jsonl"), policy="tiny")),
    "eval on a server": EvalArgs(model="tiny", task="arithmetic", sampler=SERVER),
    "eval": EvalArgs(model="tiny", task="arithmetic"),
    "profile": ProfileArgs(model="tiny", task="arithmetic"),
    "audit": AuditArgs(task="arithmetic"),
}


def change(config, name: str, value: object):
    """The config with one setting changed."""
    group, _, leaf = name.rpartition(".")
    if not group:
        return dataclasses.replace(config, **{leaf: value})
    return dataclasses.replace(config, **{group: dataclasses.replace(getattr(config, group), **{leaf: value})})


def settings_by_name(config) -> dict[str, typing.Any]:
    """The flags of a config, as Python names their settings."""
    flags = Flags(type(config), values_of(type(config), config)).all.values()
    return {f"{flag.group}.{flag.setting.name}".lstrip("."): flag for flag in flags}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_number_has_bounds(name):
    """NaN, both infinities, what is far too small and what is far too large are refused for each numeric setting."""
    config = CONFIGS[name]
    config.check()
    hints = {setting: flag.setting.hint for setting, flag in settings_by_name(config).items()}
    numeric = {s: hint for s, hint in hints.items() if ("int" in str(hint) or "float" in str(hint))}
    numeric = {s: str(hint) for s, hint in numeric.items() if typing.get_origin(hint) is not typing.Literal}
    assert numeric
    for setting, hint in numeric.items():
        for value in (math.nan, math.inf, -math.inf, -(10**30), 10**30):
            given = ((value, value) if "tuple[float" in hint else (value,)) if "tuple" in hint else value
            with pytest.raises(ValueError, match=setting.rpartition(".")[2].replace("_", "[_-]")):
                change(config, setting, given).check()


@pytest.mark.parametrize("name", CONFIGS)
def test_settings_without_effect_are_refused_where_they_are_changed(name):
    """Each setting that nothing reads, changed to another value of its type, is told with what would read it."""
    config = CONFIGS[name]
    before = values_of(type(config), config)
    unread = Flags(type(config), before).unread
    others = {bool: True, int: 7, float: 0.07, str: "x", Path: Path("x")}
    for setting, flag in settings_by_name(config).items():
        if flag.name not in unread:
            continue
        held, hint = value_of(before, flag), flag.setting.hint
        kinds = [kind for kind in (*typing.get_args(hint), hint) if kind is not type(None)]
        if typing.get_origin(hint) is typing.Literal:
            value = next(word for word in kinds if word != held)
        else:
            value = others.get(kinds[0], "x")
        with pytest.raises(ValueError, match=rf"^{setting} .* would have no effect: it is read only with"):
            check_effect(change(config, setting, False if value == held else value), before)


def test_weights_may_differ_where_the_precision_is_not_known():
    """auto may choose bfloat16, in which the torch sampler differs from the trainer: the cap is read there."""
    for dtype, unread in (("auto", False), ("bfloat16", False), ("float32", True)):
        config = change(CONFIGS["train"], "model.dtype", dtype)
        assert ("algo.importance-cap" in Flags(Config, values_of(Config, config)).unread) == unread


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_keep_their_bounds(name):
    """What a recipe holds passes its own checks, unchanged, from the command line."""
    module = importlib.import_module(f"rlvr.recipes.{name}")
    check_values(module.CONFIG)
    check_effect(module.CONFIG, values_of(type(module.CONFIG), module.CONFIG))
    if isinstance(module.CONFIG, Config):
        module.CONFIG.check()


@pytest.mark.parametrize(("algo", "flags"), [("opd", ["--teacher.name", "m"]), ("sdpo", [])])
def test_tiny_math_distils_each_of_many_problems_once(algo, flags):
    """No groups, no second pass: with 64 problems of eight, four times each, a student stopped .2 below its teacher."""
    config = recipe_config(load_recipe("tiny_math"), ["--algo", algo, *flags], "rlvr train")
    config.check()
    assert (config.rollout.problems_per_step, config.rollout.group_size) == (512, 1)
    assert (config.algo.minibatches, config.algo.epochs) == (8, 1)
    assert config.teacher.token_loss == "js"


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ({}, "js"),
        ({"kind": "server"}, "sampled"),
        ({"kind": "server", "top_k": 8}, "js"),
        ({"loss": "sampled"}, "sampled"),
    ],
)
def test_a_teacher_gives_whole_distributions_where_it_can(settings, loss):
    """A server gives its likeliest tokens only, as many as it is asked for."""
    assert TeacherConfig(**settings).token_loss == loss


def distil(algo: str, **teacher) -> dict[str, object]:
    """Return the groups of a distillation."""
    return {"algo": AlgoConfig(algo), "teacher": TeacherConfig(**teacher)}


REFUSED = [
    # A group of another class.
    ({"algo": "rloo"}, "algo is 'rloo'; expected AlgoConfig, with"),
    ({"algo": None}, "algo is None; expected AlgoConfig"),
    ({"algo": {"name": "grpo"}}, "algo is {'name': 'grpo'}; expected"),
    ({"algo": AlgoConfig}, "algo is <class 'rlvr.config.algo.AlgoConfig'>; expected"),
    ({"algo": TorchSamplerConfig()}, "algo is TorchSamplerConfig("),
    ({"sampler": "vllm"}, f"sampler is 'vllm'; expected {' or '.join(k.__name__ for k in SAMPLERS.values())}"),
    ({"monitor": "exact"}, "monitor is 'exact'; expected MonitorConfig or None"),
    ({"algo": AlgoConfig("ppo"), "critic": {}}, "critic is {}; expected CriticConfig or None"),
    ({"rollout": OptimConfig()}, "rollout is OptimConfig("),
    ({"optim": None}, "optim is None; expected OptimConfig"),
    ({"critic": CriticConfig()}, "critic is set, and algo grpo trains none"),
    # Teachers.
    ({"teacher": TeacherConfig()}, "teacher is set, and algo grpo distils none"),
    (distil("opd"), "teacher.kind model needs the name of a model; set --teacher.name"),
    (distil("opd", kind="live"), "teacher.kind live with opd, where it teaches nothing; expected one of model, server"),
    (distil("opd", kind="start", name="m"), "teacher.kind start has no --teacher.name"),
    (distil("opd", kind="server", name="m"), "teacher.kind server needs a --teacher.url"),
    (distil("opd", kind="server", name="m", url="127.0.0.1:1"), "teacher.url '127.0.0.1:1': expected http"),
    (distil("opd", kind="server", name="m", url="http://a:1/v1", loss="js"), "only its likeliest tokens; set"),
    (distil("opd", kind="base"), "teacher.kind base is the policy without its adapter; set --model.lora-rank"),
    (distil("sdpo", off_policy=0.5, loss="js"), "teacher.off_policy with sdpo: only a model in this process reads"),
    (distil("sdpo", tells=("verdict",)), "teacher.tells verdict: expected some of status, reason"),
    (distil("sdpo", template="{reason}"), "teacher.template without {prompt}"),
    (distil("sdpo", pack_weight=("a",)), "teacher.pack_weight 'a': expected pack=weight"),
    (distil("sdpo", pack_weight=("a=2",)), "teacher.pack_weight 'a=2': expected pack=weight"),
    ({**distil("sdpo"), "model": ModelConfig(shard=2)}, "model.shard 2 with algo sdpo"),
    (
        {**distil("opd", kind="server", name="m", url="http://a:1/v1"), "rollout": RolloutConfig(temperature=0.5)},
        "rollout.temperature 0.5 with a served teacher",
    ),
    (
        {"algo": AlgoConfig("opd", kl_coef=0.1, reference_every=2), "teacher": TeacherConfig("start")},
        "teacher.kind start with algo.reference_every",
    ),
    ({**distil("sdpo", weight=0.5), "rollout": RolloutConfig(group_size=1)}, "group_size 1 with teacher.weight below"),
    # A value of another type.
    ({"algo": AlgoConfig(None)}, "algo.name None: expected str"),
    ({"algo": AlgoConfig(["grpo"])}, "algo.name ['grpo']: expected str"),
    ({"monitor": MonitorConfig(None)}, "monitor.verifier None: expected str"),
    ({"run": RunConfig(steps=1.5)}, "run.steps 1.5: expected int"),
    ({"run": RunConfig(seed=True)}, "run.seed True: expected a number"),
    ({"run": RunConfig(out_dir="runs/x")}, "run.out_dir 'runs/x': expected Path"),
    ({"run": RunConfig(task_option="num_train=9")}, "run.task_option 'num_train=9': expected tuple[str, ...]"),
    ({"run": RunConfig(task=None)}, "run.task None: expected str"),
    ({"run": RunConfig(dry_run="no")}, "run.dry_run 'no': expected bool"),
    ({"eval": EvalConfig(k=1)}, "eval.k 1: expected tuple[int, ...]"),
    ({"optim": OptimConfig(lr=None)}, "optim.lr None: expected float"),
    ({"optim": OptimConfig(betas=(0.9,))}, "optim.betas (0.9,): expected tuple[float, float]"),
    # What does not go together.
    ({"sampler": VLLMServerConfig(max_staleness=1), "algo": AlgoConfig(importance="none")}, "max_staleness 1"),
    *(({"algo": AlgoConfig(name), "rollout": RolloutConfig(group_size=1)}, "group_size 1") for name in ("raft", "dpo")),
]
# The same of the group algo alone: its settings, and words of the message.
REFUSED_ALGOS = [
    ({"name": "rlo"}, "algo.name 'rlo'; did you mean rloo?"),
    ({"name": "rloo", "normalize": "mean"}, "algo.normalize 'mean': expected one of auto, token"),
    ({"name": "dpo", "kl_coef": 0.1}, "algo.kl_coef 0.1 is read only with --algo grpo"),
    ({"name": "raft", "kl_in": "loss"}, "algo.kl_in loss is read only with --algo grpo"),
    # They choose completions, or read parts of the reward.
    *(({"name": name, "credit": "turn"}, "algo.credit turn is read only with") for name in ("gdpo", "raft", "dpo")),
    ({"gamma": 0.9}, "algo.gamma 0.9 is read only with --algo reinforce_plus_plus or ppo"),
    ({"beta": 0.3}, "algo.beta 0.3 is read only with --algo dpo or kto"),
    ({"name": "gdpo", "reward_weights": ("math2",)}, "'math2': expected part=weight"),
    # Dual clip is for negative advantages: lower than the upper clip it would bound good completions, too.
    ({"dual_clip": 1.0}, "above 1 + algo.clip_high"),
    ({"dual_clip": 3.0, "clip_high": 4.0}, "above 1 + algo.clip_high (5)"),
    ({"dual_clip": 6.0, "loss": "cispo", "clip_high": 4.0}, "algo.loss cispo, which does not read it"),
    ({"dual_clip": 3.0, "loss": "nll"}, "algo.loss nll, which does not read it"),
    ({"dual_clip": 3.0, "loss": "sapo"}, "which does not read it"),
    ({"loss": "dpo"}, "algo.loss 'dpo': expected one of"),  # it would compare completions that are no pairs
    *(
        ({"loss": loss, "normalize": normalize}, "weigh a completion by its length; set auto or sequence")
        for loss in ("gspo", "sequence")
        for normalize in ("token", "constant")
    ),
    ({"loss": "luspo", "normalize": "token"}, "set auto or sum"),
    ({"loss": "gspo", "normalize": "sum"}, "set auto or sequence"),
    ({"loss": "vespo", "importance": "sequence"}, "importance weights of its tokens in it; set token"),
    ({"loss": "vespo", "kl_coef": 0.1, "kl_estimator": "k3_is"}, "ratio is that of a whole completion"),
    ({"loss": "vespo", "vespo_lambda_pos": 0.0}, "vespo_lambda_pos"),
    ({"loss": "sapo", "sapo_temperature_pos": -1.0}, "sapo_temperature_pos"),
    # Whitening would make the KL term of one size whatever kl_coef says.
    ({"name": "ppo", "kl_coef": 0.1, "kl_in": "reward", "advantage_scale": "whiten"}, "would scale the KL term"),
]


@pytest.mark.parametrize(
    ("groups", "expected"), [*REFUSED, *(({"algo": AlgoConfig(**algo)}, words) for algo, words in REFUSED_ALGOS)]
)
def test_what_cannot_work_is_one_line(groups, expected):
    """A ValueError of check(), in Python too, where no parser looks at values."""
    with pytest.raises(ValueError, match=r".") as caught:
        Config(**groups).check()
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


# The same by flags, which are refused before anything starts, and of groups together.
FLAGS = [
    ("--monitor.on-alarm stop", "exists with --monitor NAME"),
    ("--eval.verifier monitor", "with --monitor NAME"),
    ("--monitor maths", "did you mean math"),
    ("--monitor math --monitor.verifier-option extract", "expected key=value"),
    ("--monitor math --monitor.patience 0", "monitor.patience 0"),
    ("--monitor math --monitor.margin 0", "monitor.margin 0"),
    ("--sampler vllm --sampler.max-staleness -1", "max_staleness -1: expected a number from 0"),
    ("--sampler.max-staleness 1", "read only with --sampler vllm or vllm-server, or --sampler.slice-tokens above 0"),
    ("--sampler vllm --sampler.max-staleness 1 --algo.importance none", "nothing would correct"),
    ("--sampler vllm --sampler.max-staleness 1 --sampler.sleep 1", "an engine that samples meanwhile cannot sleep"),
    ("--sampler vllm-server --sampler.sleep 1", "--sampler.sleep exists with --sampler vllm"),
    ("--model.weights bfloat16 --model.dtype float32", "dtype float32 with weights stored in bfloat16"),
    ("--model.weights bfloat16 --model.lora-rank 4", "--model.lora-rank 0"),
    ("--optim.offload --model.device cpu", "the model is on cpu; leave it out"),
]
GROUPS: list[tuple[dict, str]] = [
    ({"algo": {"name": "ppo", "gamma": 0.0}}, "algo.gamma"),
    ({"algo": {"name": "ppo", "gae_lambda": 1.5}}, "algo.gae_lambda"),
    ({"algo": {"name": "ppo", "advantage_scale": "batch_std"}}, "none or whiten"),
    ({"algo": {"name": "ppo", "loss": "dpo"}}, "expected one of auto, clip"),
    ({"algo": {"name": "ppo"}, "critic": {"lr": -1.0}}, "critic.lr"),
    ({"algo": {"name": "ppo"}, "critic": {"warmup": -1}}, "critic.warmup"),
    ({"algo": {"name": "ppo"}, "critic": {"value_clip": 0.0}}, "critic.value_clip"),
    ({"algo": {"name": "ppo"}, "critic": {"value_coef": 0.0}}, "critic.value_coef"),
    ({"algo": {"reference_every": 5}}, "algo.reference_every with algo.kl_coef 0, which has no reference"),
    ({"algo": {"kl_target": 0.1}}, "algo.kl_target with algo.kl_coef 0, which has no reference"),
    (
        {"algo": {"kl_coef": 0.1, "reference_every": 5}, "model": {"name": "tiny", "lora_rank": 4}},
        "the model without its adapter, which training does not change",
    ),
    ({"algo": {"name": "grpo", "credit": "turn"}}, "set --algo dr_grpo or rloo or reinforce or ppo"),
    ({"algo": {"name": "maxrl", "credit": "step"}}, "only subtract a mean"),
    ({"algo": {"name": "reinforce_pp", "credit": "turn"}}, "only subtract a mean"),
    ({"algo": {"name": "rloo", "credit": "turn", "advantage_scale": "whiten"}}, "scales whole rollouts"),
    ({"algo": {"name": "rloo", "credit": "turn", "advantage_scale": "batch_std"}}, "scales whole rollouts"),
    ({"algo": {"name": "rloo", "credit": "turn", "loss": "gspo"}}, "ratio is that of a whole completion"),
]


@pytest.mark.parametrize(("flags", "message"), FLAGS)
def test_flags_that_cannot_work_are_refused(flags: str, message: str, tmp_path: Path, capsys) -> None:
    """One line, exit code 2, nothing written."""
    assert main(["train", "tiny_math", "--run.out-dir", str(tmp_path / "run"), *flags.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("groups", "message"), GROUPS)
def test_settings_that_cannot_work_are_refused(groups: dict, message: str) -> None:
    """The line names the setting; without what is refused the same settings pass."""
    config = Config(model=ModelConfig(name="tiny"), sft=SFTConfig(steps=0))
    with pytest.raises(ValueError, match=message):
        with_settings(config, **groups).check()
    if "credit" in (algo := groups["algo"]):
        with_settings(config, algo={key: value for key, value in algo.items() if key != "credit"}).check()


def test_what_is_near_to_the_refused_passes():
    """A list where a tuple is, an int where a float is, None where it is allowed; the defaults of every loss."""
    model, rollout = ModelConfig(name="tiny"), RolloutConfig(temperature=1, max_prompt_tokens=None)
    Config(model=model, eval=EvalConfig(k=[1, 8]), rollout=rollout, optim=OptimConfig(betas=[0.9, 0.99])).check()
    for algo in ({"dual_clip": 1.3}, {"loss": "gspo"}, {"loss": "sequence"}, {"loss": "vespo"}):
        Config(algo=AlgoConfig(**algo)).check()
    Config(algo=AlgoConfig("ppo", kl_coef=0.1, kl_in="reward")).check()


def test_auto_names_what_it_stands_for():
    """Each setting with auto, resolved."""
    assert AlgoConfig().normalizer == AlgoConfig(loss="cispo").normalizer == "token"
    assert AlgoConfig(loss="gspo").normalizer == AlgoConfig(loss="sequence").normalizer == "sequence"
    assert AlgoConfig(loss="gspo", normalize="constant").normalizer == "constant"
    assert AlgoConfig().estimator == "k3"
    assert AlgoConfig(kl_in="reward").estimator == AlgoConfig("raft").estimator == "k1"
    assert AlgoConfig(kl_estimator="k2").estimator == "k2"
    assert [AlgoConfig(name).kl_place for name in ("grpo", "gdpo", "raft", "reinforce_plus_plus")] == [
        *("loss", "loss", "reward", "reward")
    ]
    kl = {"kl_coef": 0.1, "kl_in": "reward"}
    assert AlgoConfig("ppo", **kl).scale == "none"
    assert AlgoConfig("ppo").scale == AlgoConfig("ppo", kl_coef=0.1).scale == "whiten"
    assert AlgoConfig("reinforce_plus_plus", kl_coef=0.1).scale == "whiten"


@pytest.mark.parametrize("sampler", [kind() for kind in SAMPLERS.values()])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_config_survives_pickle_replace_and_json(name, sampler):
    config = Config(algo=AlgoConfig(name), sampler=sampler, monitor=MonitorConfig("exact", verifier_option=("a=1",)))
    if config.teacher is not None:
        config = dataclasses.replace(config, teacher=TeacherConfig("start", pack_weight=("a=0.5",)))
    config.check()
    assert pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config) == config
    assert read_config(json.loads(to_json(config))) == config


GPU_RECIPES = ("math_grpo", "code_grpo", "countdown_grpo", "tool_math", "game_rloo")


@pytest.mark.parametrize(
    ("gpu", "vllm", "ranks", "name", "sleep"),
    [(1, 1, 1, "vllm", 1), (0, 1, 1, "torch", 0), (1, 0, 8, "torch", 0), (1, 1, 8, "vllm", 2)],
)
def test_recipes_for_gpus_sample_with_vllm_where_it_works(monkeypatch, gpu, vllm, ranks, name, sleep):
    """On GPUs where vLLM is installed. It sleeps while the trainer trains; several engines then keep no weights."""
    monkeypatch.setattr(sampler, "has_nvidia_gpu", lambda: gpu)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *rest: (vllm or None) if n == "vllm" else real(n, *rest))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    for recipe in GPU_RECIPES:
        module = importlib.import_module(f"rlvr.recipes.{recipe}")
        config = runpy.run_path(module.__file__)["CONFIG"]
        assert (config.sampler.name, getattr(config.sampler, "sleep", 0)) == (name, sleep)
        config.check()


def test_a_gpu_is_found_by_its_device(tmp_path, monkeypatch):
    """Without torch; one that is hidden from the process is none."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert not sampler.has_nvidia_gpu(tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert not sampler.has_nvidia_gpu(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert sampler.has_nvidia_gpu(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not sampler.has_nvidia_gpu(tmp_path)
