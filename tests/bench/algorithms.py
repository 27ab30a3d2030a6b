"""Peak memory and seconds per step of RLOO, GRPO, PPO with a critic of its own, and PPO with a value head.

The work is the same for all: the same problems, as many completions of each, the sampling seeds of the step, a random
model that hardly moves (learning rate 1e-6), and verdicts that are coins tossed by the text, so that every rule trains
on every row. A step is the loop's own: `collect`, advantages, `update`. Seconds are medians of steps taken in turn in
one process; peak memory is that of a process which runs one algorithm alone, above the loaded policy.

    OMP_WAIT_POLICY=passive python tests/bench/algorithms.py                                       # 0.86M parameters
    OMP_WAIT_POLICY=passive python tests/bench/algorithms.py --hidden 512 --layers 8 --problems 4  # weights outweigh

The claim to compare with, of models of 1B and 6.9B parameters on GPUs, PPO and RLOO in TRL (Hugging Face, "Putting RL
back in RLHF", 2024; RLOO: arXiv:2402.14740): RLOO needs 50 to 70 % less memory than PPO and is 2 to 3 times as fast.
There both also held a reference policy and a reward model; `--kl 0.05` holds a reference here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from step_vs_trl import peak_memory_growth
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.config import AlgoConfig, Config, CriticConfig, ModelConfig, OptimConfig, RolloutConfig
from rlvr.core.traits import BatchVerifier
from rlvr.core.types import Problem, Verdict
from rlvr.model.cpu.processor import tune_cpu
from rlvr.model.load.policy import Policy
from rlvr.model.load.tiny import tiny_model, tiny_tokenizer
from rlvr.model.logprobs.critic import Critic
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.training.rollout.rollout import collect
from rlvr.training.run import Run
from rlvr.training.step.rewards import group_advantages, group_rewards
from rlvr.training.step.update import update

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.helpers.runs import assemble

LR = 1e-6
ALPHABET = "0123456789+-= ()"
ALGORITHMS: dict[str, dict[str, Any]] = {
    "RLOO": {"name": "rloo"},
    "GRPO": {"name": "grpo"},
    "PPO, separate critic": {"name": "ppo", "kind": "separate"},
    "PPO, value head": {"name": "ppo", "kind": "head"},
}


class Coins(BatchVerifier):
    """Right or wrong by the text's checksum: about half of each group."""

    def verify(self, pairs: list[tuple[Problem, str]]) -> list[Verdict]:
        """One verdict a pair."""
        return [Verdict.of(bool(zlib.crc32(text.encode()) % 2)) for _, text in pairs]


def make_policy(hidden: int, layers: int) -> Policy:
    """A random model; 128 and 4 give the demo's."""
    tokenizer = tiny_tokenizer([ALPHABET])
    config = Qwen2Config.from_dict(
        tiny_model(tokenizer, 0).config.to_dict()
        | {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers, "layer_types": None}
    )
    torch.manual_seed(0)
    return Policy(Qwen2ForCausalLM(config).eval(), tokenizer)


class Side:
    """One algorithm: `step()` is one step of the loop."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.policy = make_policy(args.hidden, args.layers)
        settings = dict(ALGORITHMS[name])
        kind = settings.pop("kind", None)
        algo = AlgoConfig(minibatches=args.minibatches, kl_coef=args.kl, **settings)
        self.config = Config(
            model=ModelConfig(device="cpu"),
            rollout=RolloutConfig(problems_per_step=args.problems, group_size=args.group_size, max_new_tokens=39),
            algo=algo,
            critic=CriticConfig(kind=kind, lr=LR) if kind else None,
            optim=OptimConfig(lr=LR, tokens_per_microbatch=args.microbatch),
        )
        self.has_critic = kind is not None
        self.run: Run | None = None
        self.seconds: list[float] = []

    def start(self) -> Run:
        """What training adds to the loaded policy: optimizer, critic, reference."""
        config, policy = self.config, self.policy
        optimizer, sampler = make_optimizer(policy.parameters(), config.optim), TorchSampler(policy)
        problems = [Problem(str(i), f"{i}+{7 * i}=") for i in range(1000)]
        run = assemble(config, policy, optimizer, sampler, problems, Coins(), None, Accelerator(cpu=True))  # type: ignore[arg-type]
        run.learner.reference = policy.reference() if config.algo.kl_coef else None
        run.learner.critic = Critic(policy, config.critic, config.optim) if config.critic is not None else None
        return run

    def step(self) -> float:
        """Seconds of one step."""
        self.run = self.run or self.start()
        number, start = len(self.seconds), time.perf_counter()
        torch.manual_seed(number)
        groups = collect(self.run.worker, number)
        rewards = group_rewards(groups, self.config.rollout)
        update(self.run.learner, number, groups, group_advantages(groups, rewards, self.config.algo))
        self.seconds.append(time.perf_counter() - start)
        return self.seconds[-1]


def memory_of(args: argparse.Namespace, argv: list[str]) -> dict[str, float]:
    """MB of each algorithm, each in a process of its own."""
    found = {}
    for name in ALGORITHMS:
        command = [sys.executable, __file__, *argv, "--alone", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minibatches", type=int, default=1)
    parser.add_argument("--microbatch", type=int, default=4096, help="tokens in one forward pass")
    parser.add_argument("--kl", type=float, default=0.0)
    parser.add_argument("--alone", choices=list(ALGORITHMS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    tune_cpu()
    if args.alone:
        side = Side(args, args.alone)
        print(json.dumps(peak_memory_growth(lambda: [side.step() for _ in range(3)] and None)))
        return
    memory = memory_of(args, sys.argv[1:])
    sides = {name: Side(args, name) for name in ALGORITHMS}
    for _ in range(args.rounds + 1):
        for side in sides.values():
            side.step()
    reference = "PPO, separate critic"
    parameters = sum(weight.numel() for weight in sides["RLOO"].policy.model.parameters())
    print(f"{parameters / 1e6:.2f}M parameters, {args.threads} threads, load {os.getloadavg()[0]:.1f}")
    print(f"{'':22} {'s/step':>8} {'PPO is':>12} {'peak MB':>9}  against {reference}")
    for name, side in sides.items():
        paired = zip(sides[reference].seconds[1:], side.seconds[1:], strict=True)
        times = statistics.median(theirs / mine for theirs, mine in paired)
        more = memory[name] / memory[reference] - 1
        print(
            f"{name:22} {statistics.median(side.seconds[1:]):8.3f} {times:7.2f} as long {memory[name]:6.0f}"
            f"  {100 * more:+.0f} %"
        )
    print("published, RLOO against PPO: 2 to 3 times as fast, 50 to 70 % less memory")


if __name__ == "__main__":
    main()
