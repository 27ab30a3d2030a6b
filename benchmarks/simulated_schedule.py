"""What `rlvr simulate-schedule` predicts for a run in slices, against what such a run takes.

The model is the recipes' tiny one, untrained: the lengths of its completions differ widely (median about 25 tokens, the
longest of a step 200). Lengths and rates come from a run that samples first and trains then; the learning rate is so
small that the second run has the same lengths. The first steps, in which the groups in progress are filled, do not
count.

    python benchmarks/simulated_schedule.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rlvr.commands.schedule.command import ScheduleArgs, describe_work, measure
from rlvr.commands.schedule.simulation import Schedule, simulate
from rlvr.runs.reading import read_lines

SLICE_TOKENS, STALENESS, SKIPPED, STEPS = 48, 3, 5, 20
WORK = ["--rollout.problems-per-step", "16", "--rollout.group-size", "8", "--rollout.max-new-tokens", "256"]
PLAIN = ["--sft.steps", "0", "--optim.lr", "1e-9", "--eval.every", "-1", "--run.sample-every", "0"]
SLICES = ["--sampler.slice-tokens", str(SLICE_TOKENS), "--sampler.max-staleness", str(STALENESS)]


def train(out: Path, *flags: str) -> float:
    """Train for some steps. Return the mean seconds of a step, those of the first ones left out."""
    command = [sys.executable, "-m", "rlvr", "train", "tiny_math", "--run.out-dir", str(out), *WORK, *PLAIN, *flags]
    subprocess.run([*command, "--run.steps", str(STEPS)], check=True, capture_output=True)
    rows = read_lines(out / "metrics.jsonl")[SKIPPED:]
    return fmean(sum(row[f"seconds/{phase}"] for phase in ("sample", "train")) for row in rows)


def main() -> None:
    """Run both, and print what was predicted and what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        measured = {"sample, then train": train(whole), "in slices": train(cut, *SLICES)}
        args = ScheduleArgs(run=(whole,), slice_tokens=SLICE_TOKENS, staleness=STALENESS, steps=100)
        work = describe_work(args, measure(whole))
        ways = {"sample, then train": Schedule(), "in slices": Schedule(STALENESS, SLICE_TOKENS)}
        for name, how in ways.items():
            random = Random(0)
            found = simulate(lambda: work.draw_group(random), work.problems, args.steps, how, work.machine)  # noqa: B023
            ratio = found.step_seconds / measured[name]
            print(f"{name}: {found.step_seconds:.2f} s a step predicted, {measured[name]:.2f} measured ({ratio:.2f})")


if __name__ == "__main__":
    main()
