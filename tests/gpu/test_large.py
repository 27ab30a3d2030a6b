"""Five steps of a 7B shape on one GPU, with LoRA and with all weights, against the plan of `rlvr doctor --plan`.

Without CUDA the same functions train a small shape, whose peak is that of the tensors that are alive. Other than on a
GPU is the optimizer, where bitsandbytes is missing or the state would lie apart from the GPU.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest
import torch
from accelerate import Accelerator
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.config import AlgoConfig, Config, ModelConfig, OptimConfig, RolloutConfig, VLLMServerConfig
from rlvr.core.types import Completion, Group, Problem, Verdict
from rlvr.model.load.lora import with_adapter
from rlvr.model.load.policy import Policy
from rlvr.model.load.pretrained import recompute_activations, store_weights, switch_off_dropout
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.memory.estimate import SPARE
from rlvr.model.memory.plan import Plan, make_plan, shape_of_config
from rlvr.model.optim.health import check_weights
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.training.step.learner import Learner
from rlvr.training.step.update import update
from tests.helpers.files import ROOT
from tests.helpers.gpu import Measured, now
from tests.helpers.shapes import QWEN_7B
from tests.helpers.tensors import BytesAlive

GIB = 2**30
CLOSE = 0.95  # share of the memory above which a plan is near the limit, so that a way with less is run too


@dataclass(frozen=True)
class Work:
    """What is trained: sizes of a Qwen2, prompts, completions of each, tokens of a row and of its prompt, steps."""

    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    prompts: int = 8
    group: int = 8
    row: int = 1024
    prompt: int = 64
    steps: int = 5
    microbatch: int = 8192

    def model(self) -> Qwen2Config:
        """Return transformers' config."""
        return Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            intermediate_size=self.mlp,
            max_position_embeddings=32_768,
            tie_word_embeddings=False,
            eos_token_id=0,
            pad_token_id=1,
            bos_token_id=None,
        )


LARGE = Work(hidden=3584, mlp=18944, layers=28, heads=28, kv_heads=4, vocabulary=152_064)  # Qwen2.5-7B
SMALL = Work(256, 1024, 4, 4, 2, 8192, prompts=2, group=2, row=160, prompt=32, steps=2, microbatch=320)

WAYS = {
    "LoRA of rank 32": ({"lora_rank": 32}, {}),
    "all weights, 8-bit AdamW": ({"weights": "bfloat16"}, {"name": "adamw8bit"}),
    "all weights, 8-bit AdamW, offloaded": ({"weights": "bfloat16"}, {"name": "adamw8bit", "offload": True}),
}


def make_config(way: str, work: Work, device: torch.device) -> Config:
    """Return the settings of a way; completions come from elsewhere."""
    model, optim = WAYS[way]
    if device.type == "cpu" and optim:
        installed = importlib.util.find_spec("bitsandbytes") is not None
        optim = {"name": "adamw8bit" if installed else "adamw"}
    return Config(
        model=ModelConfig(device=str(device), dtype="bfloat16", gradient_checkpointing=True, **model),
        rollout=RolloutConfig(
            problems_per_step=work.prompts, group_size=work.group, max_new_tokens=work.row - work.prompt
        ),
        algo=AlgoConfig("grpo", kl_coef=0.0),
        optim=OptimConfig(lr=1e-4, tokens_per_microbatch=work.microbatch, **optim),
        sampler=VLLMServerConfig(url="http://127.0.0.1:8000"),
    )


def make_policy(work: Work, config: Config, device: torch.device) -> Policy:
    """Return a policy with random weights that are made in bfloat16 on the device, as `load_policy` sets one up."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM._from_config(work.model(), dtype=torch.bfloat16)
    if config.model.lora_rank:
        model = with_adapter(model, config.model, seed=0, task_type="CAUSAL_LM")
    else:
        store_weights(model, torch.bfloat16)
    switch_off_dropout(model)
    recompute_activations(model, lora=bool(config.model.lora_rank))
    tokenizer = tiny_tokenizer(["0123456789"])
    return Policy(model.to(device).train(), tokenizer, dtype=torch.bfloat16)


def make_groups(work: Work, step: int) -> list[Group]:
    """Return groups of rows of full length; half of each group's completions are right."""
    random = Random(step)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(random.choices(range(2, work.vocabulary), k=count))

    groups = []
    for number in range(work.prompts):
        logprobs = (-math.log(work.vocabulary),) * (work.row - work.prompt)
        completions = [Completion("", ids(len(logprobs)), logprobs) for _ in range(work.group)]
        verdicts = [Verdict.of(bool(g % 2)) for g in range(work.group)]
        groups.append(Group(Problem(str(number), "?"), list(ids(work.prompt)), completions, verdicts))
    return groups


def some(policy: Policy) -> torch.Tensor:
    """Return a few numbers of every trained weight, as one vector on the CPU."""
    return torch.cat([weight.detach().flatten()[:64].float().cpu() for weight in policy.parameters()])


@dataclass(frozen=True)
class Found:
    """Losses of the steps; seconds of a step after the first; bytes at the peak, and those the allocator reserved."""

    losses: list[float]
    seconds: float
    moved: bool
    trained_tokens: float
    peak: int = 0
    reserved: int = 0


def train(work: Work, config: Config, device: torch.device) -> Found:
    """Make a policy and train its steps through `update`; count the most bytes that this takes."""
    if device.type == "cpu":
        with BytesAlive() as alive:
            found = steps_of(work, config, device)
        return replace(found, peak=alive.peak)
    before = start_counting()
    found = steps_of(work, config, device)
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return replace(found, peak=peak - before, reserved=reserved)


def steps_of(work: Work, config: Config, device: torch.device) -> Found:
    """Return what `train` does, but for the memory."""
    policy = make_policy(work, config, device)
    optimizer = make_optimizer(policy.parameters(), config.optim)
    learner = Learner(config, policy, optimizer, Accelerator(cpu=True))
    first, losses, seconds, tokens = some(policy), [], [], 0.0
    for step in range(work.steps):
        groups = make_groups(work, step)
        start = now(device)
        advantages = [[1.0 if verdict.score else -1.0 for verdict in group.verdicts] for group in groups]
        stats = update(learner, step, groups, advantages, lambda text: None)
        seconds.append(now(device) - start)
        losses += [stats["loss"], stats["grad_norm"]]
        tokens = stats["trained_tokens"]
        assert not stats["skipped_updates"]
    check_weights(policy.model.named_parameters(), "after the steps")
    moved = bool((some(policy) != first).float().mean() > 0.1)
    return Found(losses, sorted(seconds[1:])[len(seconds[1:]) // 2], moved, tokens)


def start_counting() -> int:
    """Return the bytes that are held on a GPU, with its peaks set back."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


@pytest.fixture(autouse=True)
def memory_given_back() -> Iterator[None]:
    """What a test had is free for others after it, for vLLM's engine too."""
    yield
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def why_not(way: str, memory: int, host: int, free: int) -> str:
    """Return why a way of the 7B shape is not run on a GPU of `memory` bytes, and a host of `host`; "" if it is.

    free: the bytes of the GPU that nothing uses, not even this process.
    """
    plan = plan_of(way, memory)
    if not plan.fits:
        return f"the plan needs {plan.peak / GIB:.1f} GiB and the GPU has {memory / GIB:.1f}"
    if plan.peak - SPARE // 2 > free:
        return f"the plan needs {plan.peak / GIB:.1f} GiB, and {free / GIB:.1f} GiB of the GPU are free"
    if plan.host > host:
        return f"the plan needs {plan.host / GIB:.1f} GiB of the CPU's memory, of which {host / GIB:.1f} are there"
    inside = plan_of("all weights, 8-bit AdamW", memory)
    if way.endswith("offloaded") and inside.peak < CLOSE * memory:
        return f"without it the plan needs {inside.peak / GIB:.1f} GiB, and the GPU has {memory / GIB:.1f}"
    return ""


def plan_of(way: str, memory: int) -> Plan:
    """Return the plan of a way of the 7B shape on a GPU of `memory` bytes."""
    return make_plan(QWEN_7B, make_config(way, LARGE, torch.device("cuda")), memory=memory)


def host_bytes() -> int:
    """Return the bytes of the CPU's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize("way", WAYS)
def test_five_steps_of_a_7b_shape(device, measured: Measured, way: str) -> None:
    """Finite losses, weights that moved, a peak within 15 % of the plan's; a small shape on a CPU."""
    work = LARGE if device.type == "cuda" else SMALL
    config = make_config(way, work, device)
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    if device.type == "cuda":
        start_counting()
        if reason := why_not(way, total, host_bytes(), torch.cuda.mem_get_info(device)[0]):
            pytest.skip(reason)
        if config.optim.name == "adamw8bit":
            pytest.importorskip("bitsandbytes")
    found = train(work, config, device)
    assert all(math.isfinite(value) for value in found.losses)
    assert found.moved
    assert found.trained_tokens == work.prompts * work.group * (work.row - work.prompt)
    shape = shape_of_config(work.model())
    plan = make_plan(shape, config, memory=total, gpu=device.type == "cuda")
    expected = plan.peak - (SPARE if device.type == "cuda" else 0)
    rate = work.prompts * work.group * work.row / found.seconds
    says = f"{found.peak / GIB:.2f} GiB (planned {expected / GIB:.2f}), {found.reserved / GIB:.1f} reserved"
    name = f"{shape.parameters / 1e9:.2f}B, {way}{' (a stand-in)' if device.type == 'cpu' else ''}"
    measured(name, f"{says}, {rate:,.0f} tokens/s")
    assert found.peak == pytest.approx(expected, rel=0.15)


def test_the_shape_is_that_of_the_plan() -> None:
    """7.6e9 parameters, made without memory for them; the plan's numbers are those of transformers' model."""
    shape = shape_of_config(LARGE.model())
    assert shape == QWEN_7B
    assert shape.parameters == pytest.approx(7.6e9, rel=0.01)


@pytest.mark.parametrize(
    ("way", "gib", "host", "reason"),
    [
        ("LoRA of rank 32", 79.1, 128, ""),
        ("LoRA of rank 32", 16, 128, r"needs 1\d\.\d GiB and the GPU has 16\.0"),
        ("all weights, 8-bit AdamW", 139, 128, ""),
        ("all weights, 8-bit AdamW", 79.1, 128, r"needs 9\d\.\d GiB and the GPU has 79\.1"),
        ("all weights, 8-bit AdamW, offloaded", 79.1, 128, ""),
        ("all weights, 8-bit AdamW, offloaded", 47, 128, r"needs 4\d\.\d GiB and the GPU has 47\.0"),
        ("all weights, 8-bit AdamW, offloaded", 79.1, 32, r"4\d\.\d GiB of the CPU's memory, of which 32\.0"),
        ("all weights, 8-bit AdamW, offloaded", 139, 128, "without it the plan needs"),
    ],
)
def test_what_does_not_fit_is_told_with_its_bytes(way: str, gib: float, host: float, reason: str) -> None:
    """By the plan, before anything is made."""
    memory = int(gib * GIB)
    assert re.search(reason or "^$", why_not(way, memory, int(host * GIB), memory - SPARE // 4))
    assert why_not(way, memory, int(host * GIB), 8 * GIB)


def test_the_table_of_the_bench_is_the_plan() -> None:
    """docs/results/memory.md, row "7B" on one GPU: GRPO with a reference, as benchmarks/memory_plan.py plans it."""
    text = (ROOT / "docs" / "results" / "memory.md").read_text()
    [row] = re.findall(r"^\| 7B \| 1 \| (.*) \|$", text, re.MULTILINE)
    base = Config(
        model=ModelConfig(gradient_checkpointing=True, dtype="bfloat16"),
        rollout=RolloutConfig(max_new_tokens=4096),
        algo=AlgoConfig("grpo", kl_coef=0.01),
        optim=OptimConfig(tokens_per_microbatch=8192),
        sampler=VLLMServerConfig(url="http://127.0.0.1:8000"),
    )
    short = replace(base, model=replace(base.model, weights="bfloat16"))
    eight = replace(short, optim=replace(short.optim, name="adamw8bit"))
    away = replace(short, optim=replace(short.optim, offload=True))
    shape = shape_of_config(LARGE.model())
    plans = [make_plan(shape, config, memory=79 * GIB) for config in (base, short, eight, away)]
    assert row.split(" | ") == [f"{p.peak / GIB:.0f}{'' if p.fits else ', does not fit'}" for p in plans]
