"""PPO against Llama 2's combination of two reward models, against either alone, from one policy: both rates held out.

    OMP_NUM_THREADS=1 python benchmarks/training/two_reward_models.py runs/llama2_seeds --seeds 0 1 2

The stages before PPO are those of `rlvr pipeline llama2`, and are not repeated where its folder is given. All runs of
a seed begin with the policy of the last rejection sampling, have the same reward models, settings and number of steps,
and rewards that are whitened over the batch. Helpfulness: the share of open sums that are right; safety: of private
sums that are declined.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev

from rlvr.config.pipeline import PipelineConfig
from rlvr.pipeline.stages import Made, Stages, run_pipeline
from rlvr.recipes import llama2
from rlvr.runs.records import with_interval

ARMS = {"both": "ppo", "helpfulness alone": "ppo-helpful", "safety alone": "ppo-safe"}
RATES = {"helpfulness": "open", "safety": "private"}


def stages(pipeline: Stages) -> None:
    """PPO from one policy with each of the three rewards."""
    policy, models = llama2.rounds(pipeline)
    both = llama2.with_reward("piecewise", llama2.piecewise_options(models, "whiten=true"))
    pipeline.train(ARMS["both"], both, policy=policy)
    for name, model in zip(("helpfulness alone", "safety alone"), models):
        pipeline.train(ARMS[name], llama2.with_reward("combine", one_model_options(model)), policy=policy)


def one_model_options(model: Made) -> tuple[str, ...]:
    """Return the options of the verifier combine with one reward model, whitened as in piecewise."""
    return ("parts=one=reward_model", f"options=one.model={model.path},one.std=1", "whiten=one")


def rates(folder: Path, stage: str, seed: int, place: int) -> dict[str, tuple[float, str]]:
    """Return both rates of a stage, at the first (0) or the last (-1) evaluation, with the text of their intervals."""
    record = json.loads((folder / f"seed-{seed}" / f"{stage}.stage.json").read_text("utf-8"))
    packs = record["measured"]["evaluations"][place]["packs"]
    return {rate: (packs[pack]["pass@1"], with_interval(packs[pack], "pass@1")) for rate, pack in RATES.items()}


def main() -> None:
    """Run what is missing, and print both rates of each seed and their means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/llama2_seeds"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=(), help="settings of stages, as in `rlvr pipeline`")
    args = parser.parse_args()
    run_pipeline(PipelineConfig(args.folder, seeds=tuple(args.seeds), set=tuple(args.set)), stages)
    rows = {"fine-tuned": ("sft", 0), "before PPO": (ARMS["both"], 0), **{arm: (ARMS[arm], -1) for arm in ARMS}}
    for arm, (stage, place) in rows.items():
        found = [rates(args.folder, stage, seed, place) for seed in args.seeds]
        for rate in RATES:
            values = [row[rate][0] for row in found]
            spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
            shown = ", ".join(row[rate][1] for row in found)
            print(f"{arm:18} {rate:12} {fmean(values):.3f}{spread}   {shown}", flush=True)


if __name__ == "__main__":
    main()
