"""The plan of `rlvr doctor --plan` against measured peaks of memory, on a CPU.

    OMP_WAIT_POLICY=passive python benchmarks/memory_plan.py
    OMP_WAIT_POLICY=passive python benchmarks/memory_plan.py --only "PPO, critic" --layers 20

Each configuration trains two steps of the loop in a process of its own, with one thread, on a random model and random
completions of full length, so that both microbatches of the second step are computed with gradients and moments held.
Measured is the peak of resident memory above what the interpreter holds once two steps of a tiny model have run; large
blocks are given back to the system when they are freed (MALLOC_MMAP_THRESHOLD_), as a GPU's allocator reuses them. The
rows are so long that attention does not hold its scores, as it never does on a GPU.
With --shapes the table of the plan for models of 1.5B, 7B and 32B on 1, 8 and 16 GPUs is printed instead.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.config import AlgoConfig, Config, ModelConfig, OptimConfig, RolloutConfig, RunConfig, VLLMServerConfig
from rlvr.core.traits import BatchVerifier
from rlvr.core.types import Completion, Problem, Reply, Sampler, Verdict
from rlvr.model.load.policy import load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.logprobs.critic import Critic
from rlvr.model.memory.plan import Plan, advice, make_plan, model_settings, shape_of_config
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.model.text.context import run_limit
from rlvr.training.checkpoint.checkpoint import take_snapshot
from rlvr.training.rollout.episodes import TurnPlan
from rlvr.training.rollout.rollout import collect
from rlvr.training.step.rewards import group_advantages, group_rewards
from rlvr.training.step.update import update

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.measuring import peak_memory_growth, random_qwen, run_alone
from tests.helpers.runs import assemble
from tests.helpers.shapes import QWEN_7B, QWEN_15B, QWEN_32B

ALPHABET = "0123456789+-= ()"
GIB = 2**30
# The settings of each configuration, by group.
CONFIGURATIONS: dict[str, dict[str, dict[str, Any]]] = {
    "GRPO": {"algo": {"name": "grpo"}},
    "GRPO, reference": {"algo": {"name": "grpo", "kl_coef": 0.05}},
    "PPO, critic": {"algo": {"name": "ppo"}},
    "LoRA, reference": {"algo": {"name": "grpo", "kl_coef": 0.05}, "model": {"lora_rank": 16}},
    "bfloat16 computed": {"algo": {"name": "grpo", "kl_coef": 0.05}, "model": {"dtype": "bfloat16"}},
    "bfloat16 weights": {"algo": {"name": "grpo", "kl_coef": 0.05}, "model": {"weights": "bfloat16"}},
    "several turns": {"algo": {"name": "grpo"}, "rollout": {"max_turns": 3}},
    "asynchronous checkpoint": {"algo": {"name": "grpo"}, "run": {"async_save": True}},
    "checkpointing": {"algo": {"name": "grpo", "kl_coef": 0.05}, "model": {"gradient_checkpointing": True}},
}
SHAPES = {"1.5B": QWEN_15B, "7B": QWEN_7B, "32B": QWEN_32B}


class AnyTokens(Sampler):
    """Draws random tokens of full length."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def generate(self, prompts: Any, sampling: Any, seeds: Any) -> list[list[Completion]]:
        """One completion a seed."""
        return [[self.draw(seed, sampling.max_new_tokens) for seed in group] for group in seeds]

    def draw(self, seed: int, length: int) -> Completion:
        """One completion."""
        tokens = random.Random(seed).choices(range(3, self.vocabulary), k=length)
        return Completion("x" * (seed % 7), tuple(tokens), (-9.0,) * length)

    def load_weights(self, policy: Any) -> None:
        """Nothing to update."""


def talkative(problem: Problem, rng: random.Random) -> Any:
    """Reply at length to every turn, which ends none."""
    said = yield None
    while True:
        said = yield Reply("0123456789" * 200 + said[:0])


class Lengths(BatchVerifier):
    """Right where the text has an odd length."""

    def verify(self, pairs: list[tuple[Problem, str]]) -> list[Verdict]:
        """One verdict a pair."""
        return [Verdict.of(bool(len(text) % 2)) for _, text in pairs]


def save_model(folder: Path, args: argparse.Namespace) -> None:
    """A random model of the sizes asked for."""
    tokenizer = tiny_tokenizer([ALPHABET])
    model = random_qwen(tokenizer, args.hidden, args.layers, args.vocabulary, max_position_embeddings=4096)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_config(name: str, args: argparse.Namespace) -> Config:
    """The settings of a configuration."""
    groups = CONFIGURATIONS[name]
    model = {"name": str(args.model), "device": "cpu", **groups.get("model", {})}
    if "weights" not in model:
        model.setdefault("dtype", "float32")
    # Rows of several turns are microbatches of their own: what they hold of replies decides.
    tokens = args.length // 4 if "rollout" in groups else args.rows * args.length + 100
    return Config(
        model=ModelConfig(**model),
        rollout=RolloutConfig(**rollout_settings(groups, args)),
        algo=AlgoConfig(**groups["algo"]),
        optim=OptimConfig(lr=1e-6, tokens_per_microbatch=tokens, **groups.get("optim", {})),
        run=RunConfig(**groups.get("run", {})),
    )


def rollout_settings(groups: dict[str, dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """The settings of rollouts: of a turn, or of several, most of whose tokens are those of replies."""
    made = {"problems_per_step": 2, "group_size": args.rows, "max_new_tokens": args.length}
    turns = groups.get("rollout", {}).get("max_turns")
    if turns is None:
        return made
    sampled, replies = args.length // 4, args.rows * args.length // turns
    return made | {
        "max_turns": turns,
        "max_new_tokens": sampled,
        "turn_tokens": sampled // turns,
        "reply_tokens": replies,
    }


def plan_of(config: Config) -> Plan:
    """The plan of a run on a CPU."""
    settings, turns = model_settings(config), several_turns(config)
    context = run_limit(config, settings)
    return make_plan(shape_of_config(settings), config, memory=0, gpu=False, turns=turns, context=context)


def several_turns(config: Config) -> bool:
    """Whether the rollouts of a configuration have several turns."""
    return config.rollout.turn_tokens is not None


def two_steps(config: Config, vocabulary: int) -> None:
    """Two steps of the loop, sampling aside."""
    policy = load_policy(config.model)
    optimizer, accelerator = make_optimizer(policy.parameters(), config.optim), Accelerator(cpu=True)
    problems = [Problem(str(i), f"{i}+{i}=", "") for i in range(100)]
    run = assemble(config, policy, optimizer, AnyTokens(vocabulary), problems, Lengths(), None, accelerator)  # type: ignore[arg-type]
    run.learner.reference = policy.reference() if config.algo.needs_reference else None
    if several_turns(config):
        run.worker = replace(
            run.worker, plan=TurnPlan(talkative, config.rollout, run_limit(config, policy.causal.config))
        )
    run.learner.critic = Critic(policy, config.critic, config.optim) if config.critic is not None else None
    held: list[Any] = []
    for step in range(2):
        groups = collect(run.worker, step)
        advantages = group_advantages(groups, group_rewards(groups, config.rollout), config.algo)
        update(run.learner, step, groups, advantages, lambda text: None)
        if config.run.async_save:  # written while the second step trains
            held[:] = (
                [take_snapshot(step, policy, optimizer, {}, run.learner.critic, copied=True)] if not step else held
            )


def measure(name: str, argv: list[str], folder: str) -> float:
    """The peak in GiB above the interpreter, in a process of its own."""
    environment = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    return float(run_alone(__file__, *argv, "--alone", name, "--model", folder, **environment))


def measure_here(args: argparse.Namespace) -> float:
    """What `measure` returns, in this process: two steps of a tiny model have run before."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"hidden": 64, "layers": 1, "vocabulary": 32, "length": 64, "model": folder}
        small = argparse.Namespace(**{**vars(args), **sizes})
        save_model(Path(folder), small)
        two_steps(make_config(args.alone, small), small.vocabulary)
    config = make_config(args.alone, args)
    return peak_memory_growth(lambda: two_steps(config, args.vocabulary)) * 2**20 / GIB


def compare(args: argparse.Namespace, argv: list[str]) -> None:
    """Prints plan and measurement of each configuration."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), args)
        for name in [args.only] if args.only else CONFIGURATIONS:
            plan = plan_of(make_config(name, argparse.Namespace(**{**vars(args), "model": folder})))
            found = measure(name, argv, folder)
            parts = ", ".join(f"{i.name} {i.training / GIB:.2f}" for i in plan.items if i.training)
            ratio = plan.peak / GIB / found
            print(
                f"{name:18} planned {plan.peak / GIB:5.2f} GiB, measured {found:5.2f}: {ratio:.3f}  ({parts})",
                flush=True,
            )


def cell(plan: Plan) -> str:
    """The GiB of a plan, and whether they are too many."""
    return f"{plan.peak / GIB:.0f}{'' if plan.fits else ', no'}"


def shapes() -> None:
    """Prints the plan of GRPO with a reference for Qwen2.5's sizes on GPUs of 80 GB (79 GiB), in as many shards."""
    memory = 79 * GIB
    config = Config(
        model=ModelConfig(gradient_checkpointing=True, dtype="bfloat16"),
        rollout=RolloutConfig(max_new_tokens=4096),
        algo=AlgoConfig("grpo", kl_coef=0.01),
        optim=OptimConfig(tokens_per_microbatch=8192),
        sampler=VLLMServerConfig(url="http://127.0.0.1:8000"),
    )
    short = replace(config, model=replace(config.model, weights="bfloat16"))
    ways = {
        "float32": config,
        "bfloat16 weights": short,
        "and 8-bit moments": replace(short, optim=replace(short.optim, name="adamw8bit")),
        "or offloaded": replace(short, optim=replace(short.optim, offload=True)),
    }
    print("| model | GPUs |", " | ".join(ways), "|")
    for name, shape in SHAPES.items():
        for gpus in (1, 8, 16):
            cells = [cell(make_plan(shape, way, memory=memory, shards=gpus)) for way in ways.values()]
            cells[1:] = cells[1:] if gpus == 1 else ["", "", ""]  # not with weights in shards
            print(f"| {name} | {gpus} |", " | ".join(cells), "|")
        print(f"  {name} on one GPU: {advice(shape, config, memory=memory, gpus=1, shards=1)}")


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a completion")
    parser.add_argument("--rows", type=int, default=2, help="completions of a prompt, which are one microbatch")
    parser.add_argument("--only", choices=list(CONFIGURATIONS), help="one configuration")
    parser.add_argument("--shapes", action="store_true", help="the table of large models")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args, argv = parser.parse_args(), sys.argv[1:]
    warnings.filterwarnings("ignore")
    torch.set_float32_matmul_precision("medium")
    if args.alone:
        print(json.dumps(measure_here(args)))
    elif args.shapes:
        shapes()
    else:
        compare(args, argv)


if __name__ == "__main__":
    main()
