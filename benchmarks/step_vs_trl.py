"""One step of GRPO or RLOO, here and in TRL, alternating in one process: generation, reward, gradient, AdamW.

The work: 16 sums and differences, 16 completions each of at most 39 tokens, by the tiny model, which was fine-tuned on
sloppy column-by-column demonstrations of them. Operands have one to three digits, so that completions differ in length
(about 6,500 tokens in all) and some groups are all right; `--digits 3` gives the arithmetic pack's own problems, whose
completions are all about equally long. Both sides draw their own completions of the same prompts from the same weights,
with the same reward function; a learning rate of 1e-6 keeps the work the same from step to step. Our step is made of
the functions of rlvr.train; it runs with every row trained, and with the groups left out that carry no signal.

    pip install trl==1.16.0
    OMP_WAIT_POLICY=passive python benchmarks/step_vs_trl.py                     # beside TRL's fastest configuration
    OMP_WAIT_POLICY=passive python benchmarks/step_vs_trl.py --trl defaults      # beside its defaults
    OMP_WAIT_POLICY=passive python benchmarks/step_vs_trl.py --algorithm rloo
    OMP_WAIT_POLICY=passive python benchmarks/step_vs_trl.py --random 40 --problems 4 --group 8 --new-tokens 512

With `--random` the model has random weights, so many millions of them, and nearly every completion is cut at
`--new-tokens`: the work of a step on a real model. All of its rewards are 0, and both sides train on every row.

Prints medians, their ratios, and the growth of peak memory of each side run alone in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.algo.batch import collate
from rlvr.config import AlgoConfig, Config, ModelConfig, OptimConfig, RolloutConfig, SFTConfig
from rlvr.core.traits import BatchVerifier
from rlvr.core.types import Problem, Verdict
from rlvr.model.cpu.processor import has_bfloat16
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.memory.estimate import MICROBATCH
from rlvr.model.optim.optimizer import make_optimizer, optimizer_step
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.training.rollout.rollout import rollout, verify
from rlvr.training.sft.sft import sft
from rlvr.training.step.rewards import group_advantages, group_rewards
from rlvr.training.step.update import accumulate_gradient, to_batch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.measuring import peak_memory_growth, random_qwen, run_alone
from tests.helpers.runs import assemble

LR = 1e-6
# What TRL is given; "medium" and eager attention are set on the process and the model.
TRL = {
    "fastest": {"bf16": True, "gradient_checkpointing": False},
    "float32": {"bf16": False, "gradient_checkpointing": False},
    "defaults": {},
}
EAGER_AND_MEDIUM = {"fastest"}


def score(text: str, reference: str) -> float:
    """The reward of both sides: whether the last box holds the reference."""
    boxes = re.findall(r"\\boxed\{(\d+)\}", text)
    return float(bool(boxes) and int(boxes[-1]) == int(reference))


class Judge(BatchVerifier):
    """The reward as our side calls it."""

    def verify(self, pairs: list[tuple[Problem, str]]) -> list[Verdict]:
        """One verdict a pair."""
        return [Verdict.of(score(text, problem.reference)) for problem, text in pairs]


def scratchpad(a: int, sign: str, b: int, random: Random) -> str:
    """The columns from the right, as in the arithmetic pack; a carry is forgotten with probability .5."""
    columns, result, carry = [], 0, 0
    for place in range(len(str(a))):
        x, y = a // 10**place % 10, b // 10**place % 10
        carry = carry if random.random() < 0.5 else 0
        total = x + y + carry if sign == "+" else x - y - carry
        terms = f"{x}{sign}{y}" + (f"{sign}{carry}" if place else "")
        carry, digit = int(not 0 <= total <= 9), total % 10
        columns.append(f"{terms}={carry}{digit}")
        result += digit * 10**place
    if sign == "+":
        result += carry * 10 ** len(str(a))
    return " ".join(columns) + f" \\boxed{{{result}}}"


def make_work(digits: list[int], count: int) -> Work:
    """`count` problems with demonstrations; both operands of a problem have as many digits, drawn from `digits`."""
    random, problems, demonstrations = Random(0), [], []
    for i in range(count):
        size = random.choice(digits)
        a, b = sorted((random.randrange(10 ** (size - 1), 10**size) for _ in range(2)), reverse=True)
        sign = random.choice("+-")
        problems.append(Problem(str(i), f"{a}{sign}{b}=", str(a + b if sign == "+" else a - b)))
        demonstrations.append((problems[-1], scratchpad(a, sign, b, random)))
    return Work(problems, demonstrations)


@dataclass(frozen=True)
class Work:
    """Problems, and a demonstration of each."""

    problems: list[Problem]
    demonstrations: list[tuple[Problem, str]]


def our_config(args: argparse.Namespace) -> Config:
    """Our settings of the work."""
    return Config(
        model=ModelConfig(name=args.start, dtype=args.dtype, device="cpu"),
        rollout=RolloutConfig(problems_per_step=args.problems, group_size=args.group, max_new_tokens=args.new_tokens),
        algo=AlgoConfig(args.algorithm),
        optim=OptimConfig(lr=LR, tokens_per_microbatch=args.microbatch),
    )


class Ours:
    """Our side: `step(drop)` is one step on the next problems, `drop` leaves groups without signal out."""

    def __init__(self, config: Config, work: Work) -> None:
        policy = load_policy(config.model)
        optimizer = make_optimizer(policy.parameters(), config.optim)
        sampler = TorchSampler(policy)
        accelerator = Accelerator(cpu=True)
        self.run = assemble(config, policy, optimizer, sampler, work.problems, Judge(), None, accelerator)  # type: ignore[arg-type]
        self.seconds: dict[str, list[float]] = {}
        self.tokens: list[int] = []
        self.left_out: list[float] = []
        self.steps = 0

    def step(self, drop: bool) -> float:
        """Seconds of one step."""
        torch.set_float32_matmul_precision("medium")
        run, config, start = self.run, self.run.config, time.perf_counter()
        count, size = config.rollout.problems_per_step, config.rollout.group_size
        first = self.steps * count
        problems = [run.worker.problems[(first + i) % len(run.worker.problems)] for i in range(count)]
        seed = (0, "rollout", self.steps)
        groups = rollout(
            run.learner.policy, run.worker.sampler, problems, config.sampling(), group_size=size, seed=seed
        )
        sampled = time.perf_counter()
        groups = verify(groups, run.worker.verifier)
        advantages = group_advantages(groups, group_rewards(groups, config.rollout), config.algo)
        batch = (
            to_batch(run.learner, groups, advantages)
            if drop
            else collate(groups, advantages, pad_id=run.learner.policy.pad_id)
        )
        if len(batch):
            accumulate_gradient(run.learner, batch)
            optimizer_step(run.learner.optimizer, lr=LR, max_grad_norm=1.0)
        end = time.perf_counter()
        self.steps += 1
        self.left_out.append(1 - sum(any(row) for row in advantages) / len(advantages))
        self.tokens.append(sum(len(c.token_ids) for group in groups for c in group.completions))
        self.seconds.setdefault("generation", []).append(sampled - start)
        self.seconds.setdefault("training, groups left out" if drop else "training, all rows", []).append(end - sampled)
        return end - start


def trl_trainer(args: argparse.Namespace, work: Work, steps: int, after_step: Callable[[float], None]) -> Any:
    """TRL's trainer; `after_step(seconds)` is called between its steps, with the time of the last."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    precision = "medium" if args.trl in EAGER_AND_MEDIUM else "highest"

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            torch.set_float32_matmul_precision(precision)
            self.start = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            after_step(time.perf_counter() - self.start)

    def reward(completions: list[str], reference: list[str], **_: Any) -> list[float]:
        return [score(text, gold) for text, gold in zip(completions, reference, strict=True)]

    rows = [
        {"prompt": problem.prompt, "reference": problem.reference} for problem in work.problems[: args.problems * steps]
    ]
    attention = "eager" if args.trl in EAGER_AND_MEDIUM else "sdpa"
    model = AutoModelForCausalLM.from_pretrained(args.start, dtype=torch.float32, attn_implementation=attention)
    Settings, Trainer = (GRPOConfig, GRPOTrainer) if args.algorithm == "grpo" else (RLOOConfig, RLOOTrainer)
    settings = Settings(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        per_device_train_batch_size=args.problems * args.group,
        num_generations=args.group,
        max_completion_length=args.new_tokens,
        beta=0.0,
        learning_rate=LR,
        max_steps=steps,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
        **TRL[args.trl],
    )
    return Trainer(
        model=model,
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(args.start),
        callbacks=[Clock()],
    )


def fine_tuned(folder: Path, work: Work, steps: int) -> None:
    """Writes the model both sides start from."""
    torch.set_float32_matmul_precision("medium")
    alphabet = [problem.prompt + text for problem, text in work.demonstrations]  # type: ignore[operator]
    policy: Policy = load_policy(ModelConfig(device="cpu"), corpus=alphabet)
    config = SFTConfig(steps=steps)
    sft(policy, work.demonstrations, config, Accelerator(cpu=True), seed=0, tokens_per_microbatch=4096)
    policy.save(folder)


def random_model(folder: Path, work: Work, millions: int) -> None:
    """Writes a model of so many million random weights; few of its tokens are the tokenizer's, and one ends a text."""
    vocabulary, layers = 8192, 10
    tokenizer = tiny_tokenizer([problem.prompt for problem in work.problems[:100]])
    # A layer has 12 weights for each pair of hidden units: 2 + 1 in attention with shared keys, 9 in the MLP.
    hidden = round(math.sqrt(millions * 1e6 / (12 * layers)) / 64) * 64
    model = random_qwen(tokenizer, hidden, layers, vocabulary)
    print(f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.0f}M weights")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measure_here(args: argparse.Namespace, work: Work) -> float:
    """Peak memory growth of one side over a few steps, in this process."""
    if args.alone == "ours":
        side = Ours(our_config(args), work)
        return peak_memory_growth(lambda: [side.step(drop=False) for _ in range(4)] and None)
    trainer = trl_trainer(args, work, 4, lambda seconds: None)
    return peak_memory_growth(trainer.train)


def alternating(args: argparse.Namespace, work: Work) -> None:
    """Prints medians and ratios of both sides' steps, taken in turn."""
    ours = Ours(our_config(args), work)
    times: dict[str, list[float]] = {"TRL": [], "ours, all rows": []}
    if not args.random:
        times["ours, groups left out"] = []

    def after_step(seconds: float) -> None:
        times["TRL"].append(seconds)
        times["ours, all rows"].append(ours.step(drop=False))
        if not args.random:
            times["ours, groups left out"].append(ours.step(drop=True))

    trl_trainer(args, work, args.rounds + args.warm_up, after_step).train()
    medians = {name: statistics.median(seconds[args.warm_up :]) for name, seconds in times.items()}
    for name, median in medians.items():
        ratio = statistics.median(
            t / o for t, o in zip(times["TRL"][args.warm_up :], times[name][args.warm_up :], strict=True)
        )
        print(f"{name:24} {median:7.3f} s/step   TRL is {ratio:.2f} times as long")
    for name, seconds in ours.seconds.items():
        print(f"  ours, {name:26} {statistics.median(seconds[args.warm_up :]):7.3f} s")
    print(f"  completion tokens a step    {statistics.mean(ours.tokens):7.0f}")
    print(f"  share of groups left out    {statistics.mean(ours.left_out):7.2f}")


def main() -> None:
    """Reads the command line and runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=["grpo", "rloo"], default="grpo")
    parser.add_argument("--trl", choices=list(TRL), default="fastest", help="TRL's configuration")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before, which do not count")
    parser.add_argument("--problems", type=int, default=16, help="prompts of a step")
    parser.add_argument("--group", type=int, default=16, help="completions of a prompt")
    parser.add_argument("--new-tokens", type=int, default=39, help="of a completion at most")
    parser.add_argument("--random", type=int, default=0, metavar="MILLIONS", help="a random model of this size")
    parser.add_argument("--threads", type=int, default=2)
    fastest = "bfloat16" if has_bfloat16() else "float32"
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default=fastest, help="type of our computation")
    microbatch = MICROBATCH
    parser.add_argument("--microbatch", type=int, default=microbatch, help="tokens in our forward passes at once")
    parser.add_argument("--digits", type=int, nargs="+", default=[1, 2, 3], help="of the operands")
    parser.add_argument("--sft-steps", type=int, default=250)
    parser.add_argument("--start", help="folder of the starting model; made if there is none")
    parser.add_argument("--no-memory", action="store_true", help="leave the memory measurement out")
    parser.add_argument("--alone", choices=["ours", "trl"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    work = make_work(args.digits, 16000)
    if args.alone:
        print(json.dumps(measure_here(args, work)))
        return
    start = Path(args.start or tempfile.mkdtemp())
    args.start = str(start)
    if args.random and start.exists() and any(start.iterdir()):
        parser.error(f"--start {start} holds something already; name an empty folder for the random model, or none")
    if args.random:
        random_model(start, work, args.random)
    elif not (start / "config.json").exists():
        fine_tuned(start, work, args.sft_steps)
    alternating(args, work)
    if not args.no_memory:
        for side in ("ours", "trl"):
            options = [f"--{key.replace('_', '-')}={value}" for key, value in vars(args).items() if key in SHARED]
            digits = [str(count) for count in args.digits]
            grown = run_alone(__file__, *options, f"--alone={side}", "--digits", *digits)
            print(f"peak memory of {side:5} above the loaded model: {grown:6.0f} MB")


SHARED = ("algorithm", "trl", "threads", "dtype", "microbatch", "start", "problems", "group", "new_tokens", "random")

if __name__ == "__main__":
    main()
