"""Compare drawing problems by expected p(1-p) with epochs, on tiny_math with a pool of 256 problems, at equal rollouts.

    OMP_NUM_THREADS=1 python benchmarks/training/curriculum.py runs/curriculum --seeds 0 1 2

All runs begin with one fine-tuned model; a seed is that of the rollouts. A run that has ended is not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from statistics import fmean

from rlvr.config import AlgoConfig, Config, CurriculumConfig, EvalConfig, RolloutConfig, SFTConfig
from rlvr.recipes.tiny_math import CONFIG

ARMS = {"epochs": CurriculumConfig(), "signal": CurriculumConfig(draw="signal")}
POOL = 256


def config_of(folder: Path, arm: str, seed: int, steps: int) -> Config:
    """Return the config of a run; both arms differ in how problems are drawn only."""
    run = dataclasses.replace(
        CONFIG.run,
        out_dir=folder / f"{arm}_{seed}",
        seed=seed,
        steps=steps,
        task_option=(f"num_train={POOL}",),
        sample_every=0,
        save_every=0,
    )
    return dataclasses.replace(
        CONFIG,
        run=run,
        curriculum=ARMS[arm],
        model=dataclasses.replace(CONFIG.model, name=str(folder / "start" / "start"), device="cpu"),
        sft=SFTConfig(),
        rollout=RolloutConfig(problems_per_step=16, group_size=16, max_new_tokens=42),
        algo=AlgoConfig("grpo"),
        optim=dataclasses.replace(CONFIG.optim, lr=4e-4, warmup_steps=0, decay_steps=steps),
        eval=EvalConfig(num_problems=256, samples=8, k=(1, 8), every=max(1, steps // 4)),
    )


def start(folder: Path) -> None:
    """Fine-tune the model that all runs begin with, unless it is there."""
    from rlvr.launch import launch

    out_dir = folder / "start"
    run = dataclasses.replace(CONFIG.run, out_dir=out_dir, steps=0, sample_every=0)
    launch(dataclasses.replace(CONFIG, run=run, eval=dataclasses.replace(CONFIG.eval, every=-1)))


def row(folder: Path) -> dict[str, float]:
    """Return what a run's files say."""
    files = (folder / name for name in ("metrics.jsonl", "eval.jsonl"))
    metrics, evaluations = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    pass_at_1 = [evaluation["pass@1"] for evaluation in evaluations]
    found = {"start": pass_at_1[0], "mean over the run": fmean(pass_at_1[1:]), "end": pass_at_1[-1]}
    found["no signal"] = fmean(line["no_signal"] for line in metrics)
    found["rollouts"] = sum(line["rollout_tokens"] / line["completion_tokens"] for line in metrics)
    if "signal/seen" in metrics[0]:
        found |= {name: fmean(line[name] for line in metrics) for name in ("signal/predicted", "signal/seen")}
    return found


def main() -> None:
    """Train what is missing, and print a row for each run and the differences of pass@1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/curriculum"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    from rlvr.launch import launch

    start(args.folder)
    rows = {}
    for seed in args.seeds:
        for arm in ARMS:
            config = config_of(args.folder, arm, seed, args.steps)
            launch(config)
            rows[arm, seed] = row(config.run.out_dir)
            print(arm, seed, {name: round(value, 3) for name, value in rows[arm, seed].items()}, flush=True)
    for name in ("mean over the run", "end"):
        differences = [rows["signal", seed][name] - rows["epochs", seed][name] for seed in args.seeds]
        print(f"{name}: signal less epochs {fmean(differences):+.3f}", [round(d, 3) for d in differences])


if __name__ == "__main__":
    main()
