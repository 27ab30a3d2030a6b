"""Held-out pass@1 of `tiny_math` from a low start, before and after RL, at the recipe's rate and at a higher one.

Each seed's policy is fine-tuned for 300 steps in place of 1,000, which leaves pass@1 near .1. It is then trained at the
recipe's settings; at four times the learning rate; and at that with --eval.on-regression rollback. A run that ends
below the interval of its start must say so.

    OMP_NUM_THREADS=1 python benchmarks/training/low_start.py --out runs/low_start              # seeds 0 to 4
    OMP_NUM_THREADS=1 python benchmarks/training/low_start.py --arms recipe --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rlvr.recipes.tiny_math import CONFIG
from rlvr.runs.log import read_events
from rlvr.runs.records import interval, with_interval

FAST = ["--optim.lr", str(4 * CONFIG.optim.lr)]
ARMS = {"recipe": [], "4 x lr": FAST, "4 x lr, rollback": [*FAST, "--eval.on-regression", "rollback"]}


def rlvr(*arguments: str) -> None:
    """Run a command of rlvr. Exit code 1 is that of a guard that ended the run; SystemExit for other errors."""
    done = subprocess.run([sys.executable, "-m", "rlvr", *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"rlvr {' '.join(arguments)}\n{done.stderr[-2000:]}")


def describe_run(folder: Path) -> str:
    """Return pass@1 before and after, whether it fell below the start's interval, and what the run said of that."""
    evaluations = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
    first, last = evaluations[0], evaluations[-1]
    ends = interval(first, "pass@1")
    fell = ends is not None and last["pass@1"] < ends[0]
    said = [f"{event['kind']} at {event['step']}" for event in read_events(folder) if "pass@1" in event["message"]]
    told = ", ".join(said) or "nothing"
    moved = f"{with_interval(first, 'pass@1')} -> {with_interval(last, 'pass@1')} after {last['step']} steps"
    return f"{moved}; {'below its start' if fell else 'not below its start'}; it said: {told}"


def main() -> None:
    """Run all, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, help="folder of the runs; those in it are resumed. A temporary one unless given"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--sft-steps", type=int, default=300)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        out = args.out or Path(temporary)
        for seed in args.seeds:
            own = ["--run.seed", str(seed), "--model.device", "cpu"]
            start = out / f"start-{seed}"
            if not (start / "start" / "state.json").exists():
                tune = ["--sft.steps", str(args.sft_steps), "--eval.every", "-1", "--run.out-dir", str(start)]
                rlvr("sft", "tiny_math", *own, *tune)
            for arm in args.arms:
                folder = out / f"arm-{list(ARMS).index(arm)}-{seed}"
                flags = ["--run.start-from", str(start / "start"), "--run.steps", str(args.steps), *ARMS[arm]]
                rlvr("train", "tiny_math", *own, *flags, "--run.out-dir", str(folder))
                print(f"seed {seed:3} {arm:17} {describe_run(folder)}", flush=True)


if __name__ == "__main__":
    main()
