"""PPO with and without the pretraining mix (PPO-ptx) of InstructGPT: the loss on the other text at equal reward.

Both runs of a seed go on from the fine-tuned policy and the reward model of the recipe `instructgpt`, on the same sums,
and save checkpoints. Of each checkpoint two numbers are measured: the mean reward of completions of held-out sums, and
the mean negative log-likelihood, per token, of held-out demonstrations of what the mix is about, differences. Equal
reward is the lower of the two runs' best rewards; the loss there is read off between the checkpoints around it.

    OMP_NUM_THREADS=1 python benchmarks/training/pretraining_mix.py --seeds 0 1 2  # goes on where it was interrupted

With --out-dir of an `rlvr pipeline instructgpt` its stages are not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from rlvr.commands.verifier_runners import open_runners
from rlvr.config import ModelConfig
from rlvr.config.pipeline import PipelineConfig
from rlvr.core.registry import make_task, make_verifier
from rlvr.core.types import Problem, Sampling
from rlvr.model.load.policy import load_policy
from rlvr.pipeline.stages import Made, Stages, run_pipeline
from rlvr.recipes import instructgpt
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.tasks.generated.arithmetic import scratchpad
from rlvr.training.evaluation.evaluate import evaluate
from rlvr.training.sft.sft import add_gradient, demonstration_batch

TEXTS, PROBLEMS, SAMPLES = 256, 128, 8


ARMS = {"ppo": instructgpt.PPO.algo.ptx_coef, "ppo-without-mix": 0.0}


def stages(pipeline: Stages) -> None:
    """Fine-tune, learn the reward, train in both ways; measure every checkpoint."""
    start, text, reward = instructgpt.before_ppo(pipeline)
    ppo = instructgpt.against(reward, text)
    for name, coef in ARMS.items():
        algo = dataclasses.replace(ppo.algo, ptx_coef=coef)
        trained = pipeline.train(name, dataclasses.replace(ppo, algo=algo), policy=start)
        pipeline.make(
            f"{name}-measured",
            {"policy": str(trained.path), "texts": TEXTS, "problems": PROBLEMS, "samples": SAMPLES},
            lambda folder, made=trained: measure(folder, start, made, reward),
        )


def measure(folder: Path, start: Made, trained: Made, reward: Made) -> dict[str, Any]:
    """Write reward, pass@1 and the loss on replies of the start and of each checkpoint; return the last ones."""
    paths = [start.path, *sorted(trained.path.parent.glob("step-*"))]
    scored = make_verifier("reward_model", model=str(reward.path))
    with (
        open_runners(scored, workers=1, timeout=60.0) as runners,
        open_runners(make_verifier("math"), workers=1, timeout=60.0) as exact,
    ):
        rows = [
            {"step": int(path.name.removeprefix("step-")) if path != start.path else 0}
            | measure_policy(path, runners["verifier"], exact["verifier"])
            for path in paths
        ]
    (folder / "checkpoints.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows[-1]


def measure_policy(path: Path, scorer: Any, exact: Any) -> dict[str, float]:
    """Return the mean reward and pass@1 on held-out problems, and the loss on replies, of one policy."""
    policy = load_policy(ModelConfig(name=str(path), device="cpu"))
    replies = held_out_text()
    loss = add_gradient(policy, demonstration_batch(policy, replies), Accelerator(cpu=True), 8192)
    problems = list(make_task("arithmetic", signs="+").test[:PROBLEMS])
    shared: dict[str, Any] = {"sampling": Sampling(42, 1.0), "samples": SAMPLES}
    found = evaluate(policy, TorchSampler(policy), problems, scorer, **shared)
    right = evaluate(policy, TorchSampler(policy), problems, exact, **shared)
    return {"reward": found["score"], "pass@1": right["pass@1"], "loss": loss}


def held_out_text() -> list[tuple[Problem, str]]:
    """Return held-out differences, worked as in the demonstrations: carries are forgotten as often."""
    problems = list(make_task("arithmetic", signs="-", num_test=TEXTS).test)
    drawn = [(int(a), "-", int(b)) for a, b in (str(p.prompt).removesuffix("=").split("-") for p in problems)]
    return [(p, scratchpad(*sums, random.Random(i), 0.6)) for i, (p, sums) in enumerate(zip(problems, drawn))]


def at_reward(rows: list[dict[str, float]], reward: float) -> float:
    """Return the loss where the reward first reaches a value, linearly between two checkpoints."""
    for before, after in itertools.pairwise(rows):
        if after["reward"] >= reward:
            share = (reward - before["reward"]) / (after["reward"] - before["reward"])
            return before["loss"] + max(share, 0.0) * (after["loss"] - before["loss"])
    return rows[-1]["loss"]


def main() -> None:
    """Run all stages of each seed, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out-dir", type=Path, default=Path("runs/pretraining_mix"))
    args = parser.parse_args()
    for seed in args.seeds:
        config = PipelineConfig(args.out_dir, seeds=(seed,))
        run_pipeline(config, stages, say=lambda text: None)
        folder = args.out_dir / f"seed-{seed}"
        curves = {
            name: [json.loads(line) for line in (folder / f"{name}-measured/checkpoints.jsonl").open()] for name in ARMS
        }
        equal = min(max(row["reward"] for row in rows) for rows in curves.values())
        start = next(iter(curves.values()))[0]
        print(
            f"seed {seed}: loss {start['loss']:.3f} and pass@1 {start['pass@1']:.3f} before; equal reward {equal:.2f}"
        )
        for name, rows in curves.items():
            last = rows[-1]
            print(
                f"  {name}: loss {at_reward(rows, equal):.3f} there; after the last step loss {last['loss']:.3f}, "
                f"reward {last['reward']:.2f}, pass@1 {last['pass@1']:.3f}"
            )


if __name__ == "__main__":
    main()
