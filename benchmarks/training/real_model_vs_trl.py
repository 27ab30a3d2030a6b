"""A real language model trained here and by TRL: held-out pass@1 of SmolLM2-135M-Instruct over steps and over minutes.

Both sides start from the same checkpoint and train on the same pack (one_step_problems, each side in an order of its
own), in the same chat template, with the rewards of the same verifier, as many rollouts a step, at the same learning
rate, in bfloat16. TRL has its fastest settings on a CPU. Each trains alone in a process of its own; minutes are those
of its steps, without loading, saving and evaluation. `rlvr eval` measures both sides' checkpoints on the same held-out
problems.

    pip install trl==1.16.0
    rlvr fetch smollm2-135m models/smollm2-135m
    OMP_WAIT_POLICY=passive python benchmarks/training/real_model_vs_trl.py --model models/smollm2-135m --seeds 0 1 2

Prints for each side and seed a line of pass@1 by step and minute, and at the end the time that each needed for TRL's
last pass@1. About two hours a seed on two cores.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rlvr.core.registry import make_task
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem
from rlvr.recipes.smol_math import CONFIG

PACK, LARGEST = "one_step_problems", 10  # and its largest number in sums, as in the recipe
SHARED = ("model", "steps", "every", "dtype", "accumulation")  # arguments that a side's own process gets


def rlvr(*arguments: str) -> None:
    """Run a command of rlvr; SystemExit with what it printed where it fails."""
    done = subprocess.run([sys.executable, "-m", "rlvr", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"rlvr {' '.join(arguments)}\n{(done.stdout + done.stderr)[-3000:]}")


def train_here(args: argparse.Namespace, folder: Path) -> None:
    """Train with `rlvr train smol_math`; leaves checkpoints, and seconds.json with those of each step."""
    flags = f"--run.steps {args.steps} --run.save-every {args.every} --run.keep-checkpoints 1000 --eval.every -1"
    flags += (
        f" --run.seed {args.seed} --run.task {PACK} --model.dtype {args.dtype} --model.device cpu --run.sample-every 0"
    )
    here = ["--run.out-dir", str(folder), "--model.name", str(args.model), "--run.no-overwrite"]
    rlvr("train", "smol_math", *flags.split(), "--run.task-option", f"largest={LARGEST}", *here)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = [sum(row[name] for name in row if name.startswith("seconds/")) for row in rows]
    (folder / "seconds.json").write_text(json.dumps(seconds))


def train_with_trl(args: argparse.Namespace, folder: Path) -> None:
    """Train with TRL's GRPOTrainer; leaves checkpoints, and seconds.json with those of each step."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    task = make_task(PACK, largest=LARGEST)
    by_prompt = {problem.prompt[0]["content"]: problem for problem in task.train}  # type: ignore[index]
    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            seconds.append(time.perf_counter() - self.start)
            (folder / "seconds.json").write_text(json.dumps(seconds))

    def reward(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        judged = zip(prompts, completions, strict=True)
        return [task.verifier(by_prompt[p[-1]["content"]], c[-1]["content"]).score for p, c in judged]

    rollout, optim = CONFIG.rollout, CONFIG.optim
    problems = shuffle_problems(list(task.train), args, rollout.problems_per_step)
    torch.set_float32_matmul_precision("medium")
    settings = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=args.dtype == "bfloat16",
        gradient_checkpointing=False,
        per_device_train_batch_size=rollout.problems_per_step * rollout.group_size // args.accumulation,
        gradient_accumulation_steps=args.accumulation,
        num_generations=rollout.group_size,
        max_completion_length=rollout.max_new_tokens,
        beta=0.0,
        loss_type="grpo",
        learning_rate=optim.lr,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=optim.warmup_steps,
        weight_decay=optim.weight_decay,
        max_grad_norm=optim.max_grad_norm,
        max_steps=args.steps,
        shuffle_dataset=False,
        seed=args.seed,
        save_steps=args.every,
        save_only_model=True,
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": problem.prompt} for problem in problems]),
        processing_class=AutoTokenizer.from_pretrained(args.model),
        callbacks=[Clock()],
    )
    trainer.train()


def shuffle_problems(problems: list[Problem], args: argparse.Namespace, count: int) -> list[Problem]:
    """Return `count` problems for each step, in an order that depends on the seed."""
    from random import Random

    Random(derive_seed(args.seed, "order")).shuffle(problems)
    return [problems[i % len(problems)] for i in range(count * args.steps)]


def measure(args: argparse.Namespace, model: Path, out: Path) -> float:
    """Return held-out pass@1 of a checkpoint; measured once."""
    if not (out / "result.json").exists():
        flags = f"--task {PACK} --task-option largest={LARGEST} --k 1 --samples 1 --temperature 1"
        flags += f" --max-new-tokens {CONFIG.rollout.max_new_tokens}"
        here = ["--model", str(model), "--out-dir", str(out), "--dtype", args.dtype, "--device", "cpu"]
        rlvr("eval", *flags.split(), *here)
    return float(json.loads((out / "result.json").read_text())["pass@1"])


def checkpoint(folder: Path, side: str, step: int) -> Path:
    """Return the folder of a side's checkpoint."""
    return folder / "checkpoints" / f"step-{step:06d}" if side == "here" else folder / f"checkpoint-{step}"


def main() -> None:
    """Train and evaluate all, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of `rlvr fetch smollm2-135m`")
    parser.add_argument("--out", type=Path, help="folder of the runs; those in it are not repeated")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=CONFIG.run.steps)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints that are evaluated")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--accumulation", type=int, default=4, help="TRL's microbatches of a step")
    parser.add_argument("--side", choices=["here", "trl"], help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp())
    if args.side:
        folder = out / f"{args.side}-{args.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        (train_here if args.side == "here" else train_with_trl)(args, folder)
        whose = resource.RUSAGE_CHILDREN if args.side == "here" else resource.RUSAGE_SELF
        (folder / "memory.json").write_text(json.dumps(resource.getrusage(whose).ru_maxrss / 1024))
        return
    print(f"start: pass@1 {measure(args, args.model, out / 'start'):.3f}", flush=True)
    for seed in args.seeds:
        curves = {}
        for side in ("trl", "here"):
            folder = out / f"{side}-{seed}"
            if not (folder / "memory.json").exists():
                own = [sys.executable, __file__, "--side", side, "--seed", str(seed), "--out", str(out)]
                same = [f"--{name}={getattr(args, name)}" for name in SHARED]
                subprocess.run([*own, *same], check=True)
            seconds = json.loads((folder / "seconds.json").read_text())
            curves[side] = [
                (step, sum(seconds[:step]) / 60, measure(args, checkpoint(folder, side, step), folder / f"eval-{step}"))
                for step in range(args.every, args.steps + 1, args.every)
            ]
            line = ", ".join(
                f"{value:.3f} after {step} steps, {minutes:.1f} min" for step, minutes, value in curves[side]
            )
            memory = json.loads((folder / "memory.json").read_text())
            print(f"seed {seed}, {side:4}: {line}; peak memory {memory:,.0f} MB", flush=True)
        wanted = curves["trl"][-1][2]
        first = next((minutes for _, minutes, value in curves["here"] if value >= wanted), None)
        reached = "was not reached here" if first is None else f"was reached here after {first:.1f} min"
        print(f"seed {seed}: TRL's last pass@1 {wanted:.3f} ({curves['trl'][-1][1]:.1f} min) {reached}", flush=True)


if __name__ == "__main__":
    main()
