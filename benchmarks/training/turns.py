"""Held-out pass@1 of the recipes with turns, before and after RL, and of the controls, which must not gain.

Each recipe runs with three seeds that played no part in choosing it. The controls of a seed start from the policy that
its run has fine-tuned: with one turn no question is answered and no program is run; with shuffled rewards each rollout
gets the reward of another one.

    OMP_NUM_THREADS=1 python benchmarks/training/turns.py                          # both recipes, seeds 8, 9, 10
    OMP_NUM_THREADS=1 python benchmarks/training/turns.py --recipes tiny_hops --extra --algo.credit turn
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONTROLS = {"one turn": ["--rollout.max-turns", "1"], "shuffled rewards": ["--run.shuffle-rewards"]}


def train(recipe: str, out: Path, flags: list[str]) -> tuple[float, float, float]:
    """Run a recipe. Return held-out pass@1 before and after, and the seconds that it took."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "rlvr", "train", recipe, "--run.out-dir", str(out), "--eval.every", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    found = [json.loads(line)["pass@1"] for line in (out / "eval.jsonl").read_text().splitlines()]
    return found[0], found[-1], time.perf_counter() - begun


def main() -> None:
    """Run all, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["tiny_hops", "tiny_product"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[8, 9, 10])
    parser.add_argument("--control-seeds", nargs="*", type=int, default=[8], help="seeds that have the controls too")
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="further flags of all runs, last")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for recipe in args.recipes:
            for seed in args.seeds:
                out = Path(folder) / f"{recipe}_{seed}"
                flags = ["--run.seed", str(seed), *args.extra]
                show(recipe, seed, "", train(recipe, out, flags))
                if seed not in args.control_seeds:
                    continue
                start = ["--model.name", str(out / "start"), "--sft.steps", "0"]
                for name, own in CONTROLS.items():
                    show(
                        recipe,
                        seed,
                        name,
                        train(recipe, out.with_name(f"{out.name}_{own[0][2:]}"), flags + start + own),
                    )


def show(recipe: str, seed: int, control: str, result: tuple[float, float, float]) -> None:
    """Print the line of a run."""
    before, after, seconds = result
    what = control or "as it stands"
    print(f"{recipe:14} seed {seed:3} {what:17} {before:.3f} -> {after:.3f}   {seconds:4.0f} s", flush=True)


if __name__ == "__main__":
    main()
