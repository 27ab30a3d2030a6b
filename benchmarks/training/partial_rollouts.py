"""Held-out pass@1 after RL with partial rollouts and weights that change in flight, against the same steps synchronous.

Each recipe trains with three seeds that played no part in choosing the settings; both runs of a seed start from the
policy that the first has fine-tuned. `--sampler` is torch or vllm, on a CPU in the environment of `.ci/vllm`.

    OMP_NUM_THREADS=1 python benchmarks/training/partial_rollouts.py --recipes tiny_math
    OMP_NUM_THREADS=1 python benchmarks/training/partial_rollouts.py --sampler vllm --extra --sampler.in-flight keep
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

SLICES = ["--sampler.slice-tokens", "14", "--sampler.max-staleness", "3"]


def train(recipe: str, out: Path, flags: list[str]) -> tuple[float, float]:
    """Run a recipe. Return held-out pass@1 at its end, and the seconds that it took."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "rlvr", "train", recipe, "--run.out-dir", str(out), "--eval.every", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    last = (out / "eval.jsonl").read_text().splitlines()[-1]
    return float(json.loads(last)["pass@1"]), time.perf_counter() - begun


def mean_metric(out: Path, name: str) -> float:
    """Return the mean of a metric over the steps of a run."""
    return mean(json.loads(line)[name] for line in (out / "metrics.jsonl").read_text().splitlines())


def main() -> None:
    """Run all, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["tiny_math", "tiny_hops"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[8, 9, 10])
    parser.add_argument("--sampler", choices=("torch", "vllm"), default="torch")
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="flags of the runs in slices")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for recipe in given.recipes:
            gaps = []
            for seed in given.seeds:
                flags = ["--run.seed", str(seed), "--sampler", given.sampler]
                whole, cut = (Path(folder) / f"{recipe}-{seed}-{kind}" for kind in ("whole", "cut"))
                one, seconds = train(recipe, whole, flags)
                tuned = ["--model.name", str(whole / "start"), "--sft.steps", "0"]
                other, seconds_cut = train(recipe, cut, [*flags, *tuned, *SLICES, *given.extra])
                gaps.append(other - one)
                print(
                    f"{recipe} seed {seed}, {given.sampler}: pass@1 {one:.3f} synchronous ({seconds:.0f} s), "
                    f"{other:.3f} in slices ({seconds_cut:.0f} s); {mean_metric(cut, 'slices/cut'):.0%} of the "
                    f"rows cut, tokens {mean_metric(cut, 'slices/age'):.1f} steps old",
                    flush=True,
                )
            print(f"{recipe}: in slices {mean(gaps):+.3f} on average over {len(gaps)} seeds", flush=True)


if __name__ == "__main__":
    main()
