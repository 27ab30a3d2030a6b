"""One step of GRPO or RLOO, here and in TRL, alternating in one process: generation, reward, gradient, AdamW.

The work: 16 sums and differences, 16 completions each of at most 39 tokens, by the tiny model, which was fine-tuned on
sloppy column-by-column demonstrations of them. Operands have one to three digits, so that completions differ in length
(about 6,500 tokens in all) and some groups are all right; `--digits 3` gives the arithmetic pack's own problems, whose
completions are all about equally long. Both sides draw their own completions of the same prompts from the same weights,
with the same reward function; a learning rate of 1e-6 keeps the work the same from step to step. Our step is made of
the functions of rlvr.train; it runs with every row trained, and with the groups left out that carry no signal.

    pip install trl==1.16.0
    OMP_WAIT_POLICY=passive python tests/bench/step_vs_trl.py                     # beside TRL's fastest configuration
    OMP_WAIT_POLICY=passive python tests/bench/step_vs_trl.py --trl defaults      # beside its defaults
    OMP_WAIT_POLICY=passive python tests/bench/step_vs_trl.py --algorithm rloo

Prints medians, their ratios, and the growth of peak memory of each side run alone in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
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
from rlvr.config import Config, ModelConfig, OptimConfig, RolloutConfig, SFTConfig, make_algo
from rlvr.model.optim import make_optimizer, optimizer_step
from rlvr.model.policy import Policy, load_policy
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.training.rewards import group_advantages, group_rewards
from rlvr.training.rollout import rollout, verify
from rlvr.training.run import assemble
from rlvr.training.sft import sft
from rlvr.training.update import accumulate_gradient, to_batch
from rlvr.types import BatchVerifier, Problem, Verdict

GROUP_SIZE, NUM_PROBLEMS, MAX_NEW_TOKENS, LR = 16, 16, 39, 1e-6
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


def our_config(start: str, algorithm: str, dtype: str, microbatch: int) -> Config:
    """Our settings of the work."""
    return Config(
        model=ModelConfig(name=start, dtype=dtype, device="cpu"),  # type: ignore[arg-type]
        rollout=RolloutConfig(problems_per_step=NUM_PROBLEMS, group_size=GROUP_SIZE, max_new_tokens=MAX_NEW_TOKENS),
        algo=make_algo(algorithm),
        optim=OptimConfig(lr=LR, tokens_per_microbatch=microbatch),
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
        first = self.steps * NUM_PROBLEMS
        problems = [run.worker.problems[(first + i) % len(run.worker.problems)] for i in range(NUM_PROBLEMS)]
        seed = (0, "rollout", self.steps)
        groups = rollout(
            run.learner.policy, run.worker.sampler, problems, config.sampling(), group_size=GROUP_SIZE, seed=seed
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


def trl_trainer(
    start: str, algorithm: str, kind: str, work: Work, steps: int, after_step: Callable[[float], None]
) -> Any:
    """TRL's trainer; `after_step(seconds)` is called between its steps, with the time of the last."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    precision = "medium" if kind in EAGER_AND_MEDIUM else "highest"

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            torch.set_float32_matmul_precision(precision)
            self.start = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            after_step(time.perf_counter() - self.start)

    def reward(completions: list[str], reference: list[str], **_: Any) -> list[float]:
        return [score(text, gold) for text, gold in zip(completions, reference, strict=True)]

    rows = [
        {"prompt": problem.prompt, "reference": problem.reference} for problem in work.problems[: NUM_PROBLEMS * steps]
    ]
    attention = "eager" if kind in EAGER_AND_MEDIUM else "sdpa"
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32, attn_implementation=attention)
    Settings, Trainer = (GRPOConfig, GRPOTrainer) if algorithm == "grpo" else (RLOOConfig, RLOOTrainer)
    args = Settings(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        per_device_train_batch_size=NUM_PROBLEMS * GROUP_SIZE,
        num_generations=GROUP_SIZE,
        max_completion_length=MAX_NEW_TOKENS,
        beta=0.0,
        learning_rate=LR,
        max_steps=steps,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
        **TRL[kind],
    )
    return Trainer(
        model=model,
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(start),
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


def peak_memory_growth(work: Callable[[], None]) -> float:
    """MB by which the process's peak resident memory rises above what it holds before the work (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")

    def status(name: str) -> int:
        return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]

    before = status("VmRSS")
    work()
    return (status("VmHWM") - before) / 1024


def alone(args: argparse.Namespace, work: Work) -> float:
    """Peak memory growth of one side over a few steps, in this process."""
    if args.alone == "ours":
        side = Ours(our_config(args.start, args.algorithm, args.dtype, args.microbatch), work)
        return peak_memory_growth(lambda: [side.step(drop=False) for _ in range(4)] and None)
    trainer = trl_trainer(args.start, args.algorithm, args.trl, work, 4, lambda seconds: None)
    return peak_memory_growth(trainer.train)


def alternating(args: argparse.Namespace, work: Work) -> None:
    """Prints medians and ratios of both sides' steps, taken in turn."""
    ours = Ours(our_config(args.start, args.algorithm, args.dtype, args.microbatch), work)
    times: dict[str, list[float]] = {"TRL": [], "ours, all rows": [], "ours, groups left out": []}

    def after_step(seconds: float) -> None:
        times["TRL"].append(seconds)
        times["ours, all rows"].append(ours.step(drop=False))
        times["ours, groups left out"].append(ours.step(drop=True))

    trl_trainer(args.start, args.algorithm, args.trl, work, args.rounds + 2, after_step).train()
    medians = {name: statistics.median(seconds[2:]) for name, seconds in times.items()}
    for name, median in medians.items():
        ratio = statistics.median(t / o for t, o in zip(times["TRL"][2:], times[name][2:], strict=True))
        print(f"{name:24} {median:7.3f} s/step   TRL is {ratio:.2f} times as long")
    for name, seconds in ours.seconds.items():
        print(f"  ours, {name:26} {statistics.median(seconds[2:]):7.3f} s")
    print(f"  completion tokens a step    {statistics.mean(ours.tokens):7.0f}")
    print(f"  share of groups left out    {statistics.mean(ours.left_out):7.2f}")


def main() -> None:
    """Reads the command line and runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=["grpo", "rloo"], default="grpo")
    parser.add_argument("--trl", choices=list(TRL), default="fastest", help="TRL's configuration")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="type of our computation")
    parser.add_argument("--microbatch", type=int, default=4096, help="tokens in one of our forward passes")
    parser.add_argument("--digits", type=int, nargs="+", default=[1, 2, 3], help="of the operands")
    parser.add_argument("--sft-steps", type=int, default=250)
    parser.add_argument("--start", help="folder of the starting model; written if it does not exist")
    parser.add_argument("--no-memory", action="store_true", help="leave the memory measurement out")
    parser.add_argument("--alone", choices=["ours", "trl"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    work = make_work(args.digits, 16000)
    if args.alone:
        print(json.dumps(alone(args, work)))
        return
    args.start = args.start or tempfile.mkdtemp()
    if not (Path(args.start) / "config.json").exists():
        fine_tuned(Path(args.start), work, args.sft_steps)
    alternating(args, work)
    if not args.no_memory:
        for side in ("ours", "trl"):
            options = [f"--{key}={value}" for key, value in vars(args).items() if key in SHARED]
            digits = [str(count) for count in args.digits]
            command = [sys.executable, __file__, *options, f"--alone={side}", "--digits", *digits]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"peak memory of {side:5} above the loaded model: {json.loads(done.stdout.splitlines()[-1]):6.0f} MB")


SHARED = ("algorithm", "trl", "threads", "dtype", "microbatch", "start")

if __name__ == "__main__":
    main()
