"""The memory of a run: figures by hand, of real tensors and of a measured peak; what is advised; the command."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoConfig, Qwen2Config

from rlvr.commands.cli import main
from rlvr.config import (
    AlgoConfig,
    Config,
    ModelConfig,
    OptimConfig,
    RolloutConfig,
    TeacherConfig,
    TorchSamplerConfig,
    VLLMConfig,
    VLLMServerConfig,
)
from rlvr.launch import execute, launch
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.logprobs.critic import Critic
from rlvr.model.memory.estimate import Estimate, Shape, shape_of
from rlvr.model.memory.plan import (
    STAGES,
    advice,
    choose_checkpointing,
    known_models,
    known_settings,
    make_plan,
    shape_of_config,
    warning_of_plan,
    with_teacher,
)
from rlvr.model.optim.optimizer import make_optimizer, optimizer_step
from rlvr.training.step.distillation.teacher import open_teacher
from rlvr.training.step.update import update
from tests.helpers.files import GOLDEN, ROOT, lines
from tests.helpers.runs import make_run, rollouts_of, tiny, with_settings
from tests.helpers.shapes import QWEN_3B, QWEN_7B, QWEN_15B, QWEN_32B
from tests.helpers.verifiers import sums

GIB = 2**30
GPU = 85_000_000_000  # bytes of a GPU "of 80 GB"


def with_lora(config: Config) -> Config:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, lora_rank=32))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("countdown_grpo", QWEN_3B), ("math_grpo", QWEN_15B), ("code_grpo", QWEN_15B), ("tool_math", QWEN_15B)],
)
def test_figures_of_the_recipes(name: str, shape: Shape) -> None:
    """What is held, and the GPUs that the run and the 1.5B model with LoRA fit, with a twentieth to spare."""
    recipe = importlib.import_module(f"rlvr.recipes.{name}")
    text = " ".join(recipe.__doc__.split())
    assert re.search(r"(\d+) GB are held throughout", text)[1] == str(
        round(Estimate(shape, recipe.CONFIG).resident / 1e9)
    )
    turns = name == "tool_math"
    runs = [(shape, recipe.CONFIG), (QWEN_15B, with_lora(recipe.CONFIG))]
    for size, (model, config) in zip(re.findall(r"GPU of (\d+) GB", text), runs, strict=True):
        memory = int(0.95 * int(size) * GIB)
        chosen = choose_checkpointing(model, config, memory=memory, turns=turns)
        assert make_plan(model, chosen, memory=memory, turns=turns).fits


def test_countdown_by_hand() -> None:
    """3.086e9 parameters: 12.3 GB of weights, as much of gradients, 24.7 of AdamW, 6.8 of a reference; fits 80 GB."""
    config = importlib.import_module("rlvr.recipes.countdown_grpo").CONFIG
    assert config.algo.needs_reference
    embeddings, norms = 151_936 * 2048, (2 * 36 + 1) * 2048
    estimate = Estimate(QWEN_3B, config)
    assert estimate.resident == 18 * 3_085_938_688 + 2 * (embeddings + norms)
    assert estimate.resident / 1e9 == pytest.approx(56.2, abs=0.05)
    chosen = choose_checkpointing(QWEN_3B, config, memory=GPU)
    assert chosen.model.gradient_checkpointing
    assert make_plan(QWEN_3B, chosen, memory=GPU).peak < 0.9 * GPU


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
    assert tensors(policy, reference) + moments == Estimate(shape, config).resident


def test_another_model_as_teacher_has_the_dtype_of_the_computation(tmp_path) -> None:
    """Twice the layers of the policy, frozen: two bytes a weight, in the plan and in the tensors."""
    for layers in (2, 4):
        made = ModelConfig(device="cpu", tiny_layers=layers)
        load_policy(made, corpus=["0123456789+="], seed=0).save(tmp_path / f"{layers}")
    model = ModelConfig(name=f"{tmp_path}/2", device="cpu", dtype="bfloat16")
    config = Config(model=model, algo=AlgoConfig("opd"), teacher=TeacherConfig(name=f"{tmp_path}/4"))
    policy = load_policy(model)
    teacher = open_teacher(config, policy, None, Accelerator(cpu=True))
    assert teacher is not None
    assert teacher.policy is not None
    shape = with_teacher(shape_of_config(policy.causal.config), config)
    assert shape.teacher == teacher.parameters > shape.parameters
    estimate = Estimate(shape, config)
    assert tensors(teacher.policy) == estimate.teacher == 2 * teacher.parameters
    assert estimate.resident == 16 * shape.parameters + estimate.teacher


def test_a_critic_of_its_own_holds_all_but_gradients_again() -> None:
    """12 bytes a parameter more, since its gradients come after the policy's; a head on the policy's trunk nothing."""
    ppo = Config(algo=AlgoConfig("ppo"))
    head = dataclasses.replace(ppo, critic=dataclasses.replace(ppo.critic, kind="head"))
    assert Estimate(QWEN_15B, ppo).resident == Estimate(QWEN_15B, head).resident + 12 * QWEN_15B.parameters
    assert Estimate(QWEN_15B, head).resident == 16 * QWEN_15B.parameters


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
            weight.grad = torch.zeros_like(weight, dtype=weight.grad_dtype)
        if kind == "optimizer":
            assert sum(weight.grad.nbytes for weight in weights) == plan["gradients"].training
        optimizer.step()
        states = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
        taken = sum(value.nbytes for value in states) + (kind != "optimizer") * sum(w.nbytes for w in weights)
        exact = 0.02 if name == "adamw8bit" else 1e-9
        head = 0 if kind == "optimizer" else 12 * (shape.hidden + 1)  # of the values
        assert taken - head == pytest.approx(plan[kind].update, rel=exact)


RUN = Config(
    model=ModelConfig(gradient_checkpointing=True, dtype="bfloat16"),
    rollout=RolloutConfig(max_new_tokens=4096),
    algo=AlgoConfig("grpo", kl_coef=0.01),
    optim=OptimConfig(tokens_per_microbatch=8192),
)


HEAD = 152_064 * 3584
LAYER = (QWEN_7B.parameters - 2 * HEAD) // 28  # weights of a layer, with a share of the last norm


def items(config: Config, stage: str, **options) -> dict[str, int]:
    """The bytes of a stage by kind, for a 7B model on a GPU of 79 GiB."""
    plan = make_plan(QWEN_7B, config, memory=79 * GIB, **options)
    return {item.name: getattr(item, stage) for item in plan.items if getattr(item, stage)}


def test_a_7b_run_by_hand() -> None:
    """Weights and gradients 4 bytes each, moments 8, reference 2 (4 outside linear layers), autocast's copy 2."""
    n, wide = QWEN_7B.parameters, QWEN_7B.wide
    training = items(RUN, "training")
    assert (training["weights"], training["gradients"], training["optimizer"]) == (4 * n, 4 * n, 8 * n)
    assert training["reference"] == 2 * n + 2 * wide
    assert training["weights in bfloat16"] == 2 * n
    assert not make_plan(QWEN_7B, RUN, memory=79 * GIB).fits
    short = items(with_settings(RUN, model={"weights": "bfloat16"}), "training")
    assert (short["weights"], short["gradients"], short["optimizer"]) == (2 * n, 4 * n, 12 * n)
    assert short["reference"] == 2 * n
    assert "weights in bfloat16" not in short


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ({"optim": {"name": "adamw8bit"}}, 2 + 8 / 256),
        ({"optim": {"name": "adamw8bit"}, "model": {"weights": "bfloat16"}}, 6 + 8 / 256),
        ({"optim": {"offload": True}}, 0),
        ({"optim": {"offload": True, "name": "adamw8bit"}, "model": {"weights": "bfloat16"}}, 0),
    ],
)
def test_the_optimizers_state(settings: dict, each: float) -> None:
    """Bytes a weight on the GPU; what is offloaded is in the CPU's memory, and a bucket of it here for the update."""
    config = with_settings(RUN, **settings)
    assert items(config, "training").get("optimizer", 0) == pytest.approx(each * QWEN_7B.parameters)
    plan = make_plan(QWEN_7B, config, memory=79 * GIB)
    assert (plan.host > 0) == config.optim.offload
    if config.optim.offload:
        beside = with_settings(config, optim={"offload": False})
        assert plan.host == items(beside, "update")["optimizer"]
        assert 0 < items(config, "update")["bucket of the update"] < GIB


@pytest.mark.parametrize("shards", [2, 8, 16])
def test_shards_divide_what_is_held(shards: int) -> None:
    """Weights, gradients, states and reference; what a pass gathers comes on top."""
    whole, part = (items(RUN, "training", shards=count) for count in (1, shards))
    for name in ("weights", "gradients", "optimizer"):
        assert part[name] == whole[name] // shards
    assert part["reference"] == 2 * QWEN_7B.parameters // shards
    assert "weights in bfloat16" not in part
    sampling = items(RUN, "sampling", shards=shards)
    # The sampler's whole copy in bfloat16 beside the shards, and the layers that were gathered last.
    assert sampling["gathered weights"] == pytest.approx(2 * QWEN_7B.parameters + 2 * 2 * LAYER, abs=100)
    assert items(RUN, "update", shards=shards)["gathered weights"] == pytest.approx(2 * 2 * LAYER, abs=100)


@pytest.mark.parametrize(("gpus", "gib"), [(8, 84), (16, 56)])
def test_a_32b_run_in_shards(gpus: int, gib: int) -> None:
    """16 bytes a weight over the GPUs; in bfloat16 embeddings, LM head and five layers, and no copy of all weights."""
    config = dataclasses.replace(RUN, sampler=VLLMServerConfig(url="http://127.0.0.1:8000"), algo=AlgoConfig("grpo"))
    plan = make_plan(QWEN_32B, config, memory=79 * GIB, shards=gpus)
    held = sum(item.training for item in plan.items if item.name in ("weights", "gradients", "optimizer"))
    assert held == pytest.approx(16 * QWEN_32B.parameters / gpus, rel=1e-6)
    assert plan.peak / GIB == pytest.approx(gib, abs=1)


@pytest.mark.parametrize(
    ("settings", "each", "gradients"),
    [({}, 2, 4), ({"model": {"dtype": "float32"}}, 4, 4), ({"model": {"lora_rank": 32}}, 2, 0)],
)
def test_what_a_pass_of_shards_gathers(settings: dict, each: int, gradients: int) -> None:
    """Whole: embeddings, LM head and five layers; then gradients of a layer and of the head, at the end of both."""
    config = with_settings(RUN, **settings, optim={"tokens_per_microbatch": 1})
    plan = items(config, "training", shards=8)
    adapters = 2 * QWEN_7B.adapters(32) / QWEN_7B.parameters if "lora_rank" in settings.get("model", {}) else 0
    assert plan["gathered weights"] == pytest.approx((each + adapters) * (2 * HEAD + 5 * LAYER), rel=1e-3)
    summed = 2 * 2 * HEAD * gradients  # more than the head's and a layer's
    if gradients:
        few = with_settings(config, rollout={"max_new_tokens": 1})
        assert items(few, "training", shards=8)["logits, or a layer's gradients"] == pytest.approx(summed, rel=0.05)
    without = items(config, "training")
    assert "gathered weights" not in without


@pytest.mark.parametrize("gib", [24, 40, 79, 141])
def test_advice_makes_a_run_fit(gib: int) -> None:
    """The flags that it names do what it says, and leaving one out does not."""
    memory = gib * GIB
    told = advice(QWEN_7B, RUN, memory=memory, gpus=1, shards=1)
    flags = {
        "--model.weights bfloat16": {"model": {"weights": "bfloat16"}},
        "--optim.name adamw8bit": {"optim": {"name": "adamw8bit"}},
        "--optim.offload": {"optim": {"offload": True}},
        "--model.lora-rank 32": {"model": {"lora_rank": 32}},
    }
    named = [settings for flag, settings in flags.items() if flag in told]
    assert named, told
    config = RUN
    for settings in named:
        config = with_settings(config, **settings)
    assert make_plan(QWEN_7B, config, memory=memory).fits
    for left_out in named:
        config = RUN
        for settings in named:
            config = config if settings is left_out else with_settings(config, **settings)
        assert not make_plan(QWEN_7B, config, memory=memory).fits


@pytest.mark.parametrize(
    ("gpus", "settings", "told"),
    [
        (8, {}, "it fits with --model.shard 8"),
        (2, {}, "it fits with --model.weights bfloat16 --optim.offload"),
        (8, {"optim": {"offload": True}}, "it fits with --model.weights bfloat16"),
    ],
)
def test_shards_are_advised_where_there_are_gpus(gpus: int, settings: dict, told: str) -> None:
    """And what is advised fits; a state that is offloaded is not cut."""
    config = with_settings(RUN, **settings)
    assert advice(QWEN_7B, config, memory=79 * GIB, gpus=gpus, shards=1) == told
    short = with_settings(config, model={"weights": "bfloat16" if "bfloat16" in told else "float32"})
    short = with_settings(short, optim={"offload": config.optim.offload or "offload" in told})
    assert make_plan(QWEN_7B, short, memory=79 * GIB, shards=gpus if "shard" in told else 1).fits


def test_more_gpus_are_advised_where_none_of_these_fit() -> None:
    """A 32B model on 24 GiB, sampled elsewhere: not even an adapter fits on one."""
    config = dataclasses.replace(RUN, sampler=VLLMServerConfig(url="http://127.0.0.1:8000"))
    told = advice(QWEN_32B, config, memory=24 * GIB, gpus=1, shards=1)
    found = re.fullmatch(r"it fits on (\d+) GPUs with (.*--model\.shard \1)", told)
    assert found, told
    short, count = with_settings(config, model={"weights": "bfloat16"}), int(found[1])
    fits = [make_plan(QWEN_32B, short, memory=24 * GIB, shards=shards).fits for shards in (count // 2, count)]
    assert fits == [False, True]


def test_microbatches_are_cut_before_a_run_does_not_fit() -> None:
    """As the trainer cuts them; a row of full length is the least."""
    config = with_settings(RUN, model={"weights": "bfloat16"}, optim={"name": "adamw8bit"})
    plans = [make_plan(QWEN_7B, config, memory=gib * GIB) for gib in range(200, 60, -1)]
    assert plans[0].tokens == 8192
    assert plans[-1].tokens == 4096 + 150
    assert all(a.tokens >= b.tokens for a, b in itertools.pairwise(plans))
    cut = [plan for plan in plans if 4096 + 150 < plan.tokens < 8192]
    assert cut
    assert all(plan.fits for plan in cut)
    assert not plans[-1].fits


@pytest.mark.parametrize(
    ("gib", "settings", "recomputed", "tokens"),
    [
        (80, {}, False, 16384),
        (80, {"rollout": {"max_new_tokens": 16000}}, True, 16384),  # one row has no room otherwise
        (40, {}, True, 12200),  # fewer than 8,192 without it; a tenth of the memory stays free
        (40, {"optim": {"tokens_per_microbatch": 2048}}, False, 2048),
        (80, {"model": {"lora_rank": 32}}, False, 16384),
        (80, {"model": {"gradient_checkpointing": True}}, True, 16384),
        (24, {"model": {"gradient_checkpointing": False}}, False, 1174),
    ],
)
def test_the_plan_chooses_checkpointing_unless_told(gib: int, settings: dict, recomputed: bool, tokens: int) -> None:
    """For 1.5B without a reference, sampled elsewhere: activations are kept where 8,192 tokens of them have room."""
    config = Config(model=ModelConfig(dtype="bfloat16"), sampler=VLLMServerConfig(url="http://127.0.0.1:8000"))
    config = with_settings(config, rollout={"max_new_tokens": 1024})
    config = with_settings(config, **settings)
    chosen = choose_checkpointing(QWEN_15B, config, memory=gib * GIB)
    assert chosen.model.gradient_checkpointing is recomputed
    assert make_plan(QWEN_15B, chosen, memory=gib * GIB).tokens == pytest.approx(tokens, rel=0.15)
    assert dataclasses.replace(chosen, model=config.model) == config


def test_a_run_asks_the_plan_of_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model's config, before its weights are loaded; on a CPU nothing is chosen."""
    load_policy(ModelConfig(device="cpu"), corpus=["0123456789+="]).save(tmp_path)
    config = with_settings(tiny(tmp_path), model={"name": str(tmp_path)})
    assert execute.choose_by_plan(config, sums()) is config
    monkeypatch.setattr(execute, "gpu_memory", lambda device: 80 * GIB)
    assert execute.choose_by_plan(config, sums()).model.gradient_checkpointing is False
    monkeypatch.setattr(execute, "gpu_memory", lambda device: 4 * GIB)
    assert execute.choose_by_plan(config, sums()).model.gradient_checkpointing is True


def test_a_run_that_may_not_fit_is_warned_of() -> None:
    """With the plan's own advice; and where a microbatch has room for a single row. Else nothing is said."""
    told = warning_of_plan(QWEN_7B, RUN, memory=79 * GIB, gpus=8)
    assert re.fullmatch(
        r"by its plan the run needs 1\d\d\.\d of the GPU's 79\.0 GiB: it fits with --model\.shard 8", told
    )
    config = with_settings(RUN, model={"weights": "bfloat16"}, optim={"name": "adamw8bit"})
    said = {
        make_plan(QWEN_7B, config, memory=gib * GIB).tokens: warning_of_plan(QWEN_7B, config, memory=gib * GIB, gpus=1)
        for gib in range(200, 60, -1)
        if make_plan(QWEN_7B, config, memory=gib * GIB).fits
    }
    assert said[8192] == ""
    assert {text.partition(" have ")[2].partition(",")[0] for tokens, text in said.items() if tokens < 8192} == {
        "room for microbatches of one row of up to 4246 tokens"
    }


def test_a_run_warns_by_the_memory_of_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it samples; a run on a CPU has no such bound."""
    monkeypatch.setattr(execute, "gpu_memory", lambda device: GIB)
    launch(tiny(tmp_path, run={"steps": 1}, eval={"every": -1}), task=sums())
    printed = capsys.readouterr().out
    assert re.search(
        r"WARNING by its plan the run needs \d\.\d of the GPU's 1\.0 GiB: .*\n(.*\n)*training 1/1", printed
    )
    assert [event["kind"] for event in lines(tmp_path / "events.jsonl")].count("memory") == 1


def test_an_engine_takes_its_share_unless_it_sleeps() -> None:
    """While the trainer trains; while it samples in any case. The torch sampler has a cache instead."""
    awake = dataclasses.replace(RUN, sampler=VLLMConfig(gpu_memory_utilization=0.25))
    asleep = dataclasses.replace(RUN, sampler=VLLMConfig(gpu_memory_utilization=0.25, sleep=1))
    share = int(0.25 * 79 * GIB)
    assert [items(awake, stage).get("vLLM", 0) for stage in STAGES] == [share] * 3
    assert [items(asleep, stage).get("vLLM", 0) for stage in STAGES] == [share, 0, 0]
    cached = dataclasses.replace(RUN, sampler=TorchSamplerConfig(cache_gib=1.0))
    assert "vLLM" not in items(cached, "sampling")
    assert items(cached, "sampling")["sampler's cache, logits"] >= GIB


def test_servers_on_gpus_of_their_own_take_nothing_of_the_trainers() -> None:
    """The plan of one GPU has the engine beside the trainer; of several, servers that a run starts are elsewhere."""
    started = dataclasses.replace(RUN, sampler=VLLMServerConfig())
    inside = dataclasses.replace(RUN, sampler=VLLMConfig())
    assert items(started, "sampling")["vLLM"] == items(inside, "sampling", gpus=8)["vLLM"] == int(0.4 * 79 * GIB)
    assert "vLLM" not in items(started, "sampling", gpus=8)
    assert "vLLM" not in items(dataclasses.replace(RUN, sampler=VLLMServerConfig(url="http://a:1")), "sampling")


@pytest.mark.parametrize("tied", [True, False])
def test_the_shape_is_read_from_the_config_alone(tmp_path: Path, tied: bool) -> None:
    """That of the loaded policy, from a model on the meta device."""
    policy = load_policy(ModelConfig(device="cpu"), corpus=["0123456789"])
    settings = Qwen2Config.from_dict({**policy.causal.config.to_dict(), "tie_word_embeddings": tied})
    shape = shape_of_config(settings)
    assert shape.untied is not tied
    if tied:
        assert shape == shape_of(policy)
    else:
        assert (
            shape.parameters
            == sum(weight.numel() for weight in policy.model.parameters()) + shape.vocabulary * shape.hidden
        )


TURNS = {"max_new_tokens": 512, "max_turns": 5, "reply_tokens": 1000}


@pytest.mark.parametrize(
    ("rollout", "context", "row"),
    [
        (TURNS, None, 150 + 512 + 4 * 1064),
        ({**TURNS, "max_turns": 1}, None, 662),
        ({**TURNS, "reply_tokens": 2000}, 8192, 8192),
        ({**TURNS, "context_tokens": 3000}, 8192, 3000),
        ({**TURNS, "context_tokens": 3000}, 2048, 2048),
    ],
)
def test_rows_of_several_turns_hold_replies(rollout: dict, context: int | None, row: int) -> None:
    """Up to what the model reads; a row is a microbatch at least, and the sampler's cache holds it."""
    config = with_settings(RUN, rollout=rollout, optim={"tokens_per_microbatch": 100})
    plan = make_plan(QWEN_7B, config, memory=79 * GIB, turns=True, context=context)
    alone = make_plan(QWEN_7B, config, memory=79 * GIB, context=context)
    assert (plan.tokens, alone.tokens) == (row, 662)
    kept, kept_alone = ({i.name: i.training for i in p.items}["activations"] for p in (plan, alone))
    assert kept / kept_alone == pytest.approx(row / 662)
    short = with_settings(config, rollout={"problems_per_step": 1, "group_size": 2})
    room = 10**15  # in which the cache is not cut
    caches = [
        {i.name: i.sampling for i in make_plan(QWEN_7B, short, memory=room, turns=turns, context=context).items}
        for turns in (True, False)
    ]
    more = caches[0]["sampler's cache, logits"] - caches[1]["sampler's cache, logits"]
    # Keys and values of 28 layers, 512 wide, in bfloat16, of two rows, which hold prompts too; a copy for all heads.
    assert more == 2 * (2 * 2 * 28 * 512 * (row - 512) + 2 * 2 * 3584 * (row - 662))


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ({}, 12),
        ({"model": {"weights": "bfloat16"}}, 2 + 12),
        ({"optim": {"name": "adamw8bit"}}, 4 + 2 + 8 / 256),
        ({"algo": {"name": "ppo"}}, None),
        ({"algo": {"kl_coef": 0.1}}, 12),
        ({"model": {"weights": "bfloat16"}, "algo": {"kl_coef": 0.1, "reference_every": 5}}, 2 + 12 + 2),
    ],
)
def test_the_copy_of_a_checkpoint_is_in_the_cpus_memory(settings: dict, each: float | None) -> None:
    """Weights, the optimizer's state, the critic's, a reference that is reset; on a CPU beside the rest in each."""
    config = with_settings(RUN, **{"algo": {"name": "grpo"}, **settings}, run={"async_save": True})
    n = QWEN_7B.parameters
    expected = each * n if each is not None else 12 * n + 12 * (n - HEAD)
    assert make_plan(QWEN_7B, config, memory=79 * GIB).host == pytest.approx(expected)
    assert make_plan(QWEN_7B, with_settings(config, run={"async_save": False}), memory=79 * GIB).host == 0
    here = make_plan(QWEN_7B, config, memory=79 * GIB, gpu=False)
    [copied] = [item for item in here.items if item.name == "copy of a checkpoint"]
    assert [copied.sampling, copied.training, copied.update] == pytest.approx([expected] * 3)


def test_the_copy_of_shards_has_whole_weights_on_one_process() -> None:
    """And its part of the state; with LoRA the frozen weights are gathered too, with whole weights they are not."""
    config = with_settings(RUN, run={"async_save": True})
    n = QWEN_7B.parameters
    assert make_plan(QWEN_7B, config, memory=79 * GIB, shards=8).host == pytest.approx(4 * n + n)
    adapted = with_settings(config, model={"lora_rank": 32})
    adapters = QWEN_7B.adapters(32)
    assert make_plan(QWEN_7B, adapted, memory=79 * GIB).host == pytest.approx(12 * adapters)
    sharded = make_plan(QWEN_7B, adapted, memory=79 * GIB, shards=8).host
    assert sharded == pytest.approx(2 * n + 4 * adapters + adapters)


SMALL = "--hidden 384 --layers 8 --vocabulary 4096 --length 1024 --rows 3".split()


@pytest.mark.parametrize(
    "name",
    [
        "GRPO, reference",
        pytest.param("bfloat16 weights", marks=pytest.mark.survey),
        pytest.param("several turns", marks=pytest.mark.survey),
        "asynchronous checkpoint",
    ],
)
def test_a_plan_agrees_with_the_measured_peak(name: str) -> None:
    """Of 16M parameters, within a quarter: some 60 MB that the process takes besides weigh more than at 40M."""
    command = [sys.executable, str(ROOT / "benchmarks" / "memory_plan.py"), *SMALL, "--only", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = re.search(r"planned +([\d.]+) GiB, measured +([\d.]+): ([\d.]+)", done.stdout)
    assert found
    assert 0.75 <= float(found[3]) <= 1.25, done.stdout


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    """A folder with the config of a 7B model, and nothing else."""
    sizes = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
    Qwen2Config(vocab_size=152_064, num_hidden_layers=28, tie_word_embeddings=False, **sizes).save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert AutoConfig.from_pretrained(tmp_path).hidden_size == 3584
    return str(tmp_path)


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ("--gib 80", 1, "does not fit: "),
        ("--gib 80 --optim.offload --model.gradient-checkpointing --model.weights bfloat16", 0, "fits: "),
        ("--gib 200 --gpus 1", 0, "fits: "),
        ("--gib 24", 1, "--model.lora-rank 32"),
    ],
)
def test_the_command_says_whether_a_run_fits(
    qwen: str, capsys: pytest.CaptureFixture[str], flags: str, code: int, words: str
) -> None:
    """From the config alone, for there are no weights; what to change is in one line."""
    assert main(["doctor", "--plan", "math_grpo", "--model.name", qwen, *flags.split()]) == code
    printed = capsys.readouterr().out
    assert words in printed
    assert "7.62B weights" in printed
    last = printed.strip().splitlines()[-1]
    assert last.startswith("fits" if code == 0 else ("it fits with", "all weights"))


def test_the_command_counts_another_model_as_teacher(qwen: str, capsys: pytest.CaptureFixture[str]) -> None:
    """7.62e9 weights of two bytes are 14.19 GiB in each stage; one that does not exist is refused."""
    flags = ["doctor", "--plan", "math_grpo", "--algo", "opd", "--model.name", "Qwen/Qwen2.5-0.5B-Instruct"]
    assert main([*flags, "--teacher.name", qwen]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"teacher\W+14.19\W+14.19\W+14.19", printed)
    assert "0.49B weights, microbatches of" in printed
    assert "those of the teacher 7.62B" in printed
    assert main([*flags, "--teacher.name", f"{qwen}/none"]) == 2


@pytest.mark.parametrize(
    ("recipe", "flags", "words"),
    [
        ("tool_math", "", "rows of up to 1878 with replies"),
        ("tool_math", "--rollout.context-tokens 1500", "rows of up to 1500 with replies"),
        ("game_rloo", "", "rows of up to 4118 with replies"),
        ("math_grpo", "--run.async-save", "for each process: the copy of a checkpoint"),
        (
            "math_grpo",
            "--optim.offload --run.async-save",
            "for each process: optimizer state, the copy of a checkpoint",
        ),
    ],
)
def test_the_command_counts_replies_and_copies(
    qwen: str, capsys: pytest.CaptureFixture[str], recipe: str, flags: str, words: str
) -> None:
    """Of an environment that the run names, or that its task brings; nothing is downloaded for it."""
    main(["doctor", "--plan", recipe, "--model.name", qwen, "--gib", "200", *flags.split()])
    printed = " ".join(capsys.readouterr().out.split())
    assert words in printed
    assert ("with replies" in printed) == (recipe != "math_grpo")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--plan", "--plan: expected a value"),
        ("--plan nothing", "no recipe 'nothing'"),
        ("--plan math_grpo --gpus 0", "--gpus 0: expected a whole number of at least 1"),
        ("--plan math_grpo --gpus two", "--gpus two: expected a whole number"),
        ("--plan math_grpo --gib -1", "--gib -1: expected a number above 0"),
        ("--plan math_grpo --gib nan", "--gib nan: expected a number above 0"),
        ("--plan math_grpo --model.name /no/such/folder", "/no/such/folder"),
        ("--plan math_grpo --optim.lr fast", "--optim.lr"),
        ("--plan rm_pairs", "rlvr rm rm_pairs"),
        ("--gpus 8", "without --plan"),
    ],
)
def test_bad_input_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], flags: str, words: str) -> None:
    """With exit code 2."""
    assert main(["doctor", *flags.split()]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


PUBLISHED = [line.split() for line in (GOLDEN / "known_models.txt").read_text().splitlines()[1:]]


@pytest.mark.parametrize(("name", "billions"), PUBLISHED)
def test_known_models_have_their_published_number_of_weights(name: str, billions: str) -> None:
    """To a thousandth."""
    assert shape_of_config(known_settings(name)).parameters / 1e9 == pytest.approx(float(billions), rel=1e-3)


def test_all_of_them_have_a_shape() -> None:
    """Others have none here."""
    assert all(shape_of_config(known_settings(name)).parameters > 1e8 for name in known_models())
    assert known_settings("Qwen/Qwen2.5-7B-Mine") is None


def test_a_plan_needs_no_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of the model is asked for."""
    monkeypatch.setattr("rlvr.model.memory.plan.find_converted", lambda *names: pytest.fail("the hub was asked"))
    flags = ["--model.name", "Qwen/Qwen2.5-0.5B-Instruct", "--gpus", "1", "--gib", "80"]
    assert main(["doctor", "--plan", "math_grpo", *flags]) == 0
    assert "0.49B weights" in capsys.readouterr().out
