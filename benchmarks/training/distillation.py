"""Held-out pass@1 of half-size `tiny_math` policies under a teacher, under their own verdicts, and under GRPO.

`teacher`: a policy of four layers is trained by GRPO for 20 steps and then teaches one of two layers, which a second
one of two layers does without. `told`: a policy of two layers is fine-tuned on demonstrations of which half have the
verifier's reason ("313, not 323") before the problem and few mistakes, so that it can use what it is told. From there
it is trained by GRPO, by `sdpo` with that reason, and by `sdpo` with reasons that name a random number (the control).

    OMP_NUM_THREADS=1 python benchmarks/training/distillation.py --out runs/distillation          # seeds 0, 1, 2
    OMP_NUM_THREADS=1 python benchmarks/training/distillation.py --what told --seeds 0
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Verdict
from rlvr.runs.records import with_interval
from rlvr.tasks.generated.arithmetic import arithmetic, scratchpad

SMALL = ["--model.tiny-layers", "2", "--eval.every", "5"]
QUIET = ["--run.sample-every", "0", "--run.keep-best", "false", "--run.save-every", "0"]
SDPO = ["--algo", "sdpo", "--rollout.problems-per-step", "128", "--algo.minibatches", "2"]
CONTROL = ["--run.verifier", f"{Path(__file__).stem}:wrong_reason"]
OPD = ["--algo", "opd", "--run.steps", "30"]
GRPO = ["--algo", "grpo", "--rollout.problems-per-step"]
ARMS = {"grpo": [*GRPO, "16"], "sdpo": SDPO, "control": [*SDPO, *CONTROL]}


def wrong_reason(problem: Problem, completion: str) -> Verdict:
    """Judge as the pack does, with a reason that names a random number in place of the right answer."""
    verdict = Verdict.of(make_verifier("math", unevaluated="reject")(problem, completion))
    said, is_told, _ = verdict.reason.partition(", not ")
    number = random.Random(problem.id + completion).randint(100, 1998)
    return replace(verdict, reason=f"{said}, not {number}") if is_told else verdict


def write_hints(path: Path) -> None:
    """Write demonstrations, of which every second has a reason before the problem, and then few forgotten carries."""
    rng = random.Random(1)
    rows = []
    for number, (problem, said) in enumerate(arithmetic().demonstrations):
        parts = re.fullmatch(r"(\d+)([+-])(\d+)=", str(problem.prompt))
        assert parts is not None
        a, sign, b = int(parts[1]), parts[2], int(parts[3])
        prompt = problem.prompt
        if number % 2:
            found = re.search(r"boxed\{(\d+)\}", scratchpad(a, sign, b, rng, 0.8))
            wrong = problem.reference if found is None else found[1]
            if rng.random() < 0.5 or wrong == problem.reference:
                wrong = str(int(problem.reference) + rng.choice([-110, -100, -90, -10, 10, 90, 100, 110]))
            prompt, said = f"{wrong}, not {problem.reference}|{prompt}", scratchpad(a, sign, b, rng, 0.15)
        rows.append(json.dumps({"prompt": prompt, "completion": said}) + "\n")
    path.write_text("".join(rows))


def rlvr(*arguments: str) -> None:
    """Run a command of rlvr in this script's folder, so that it finds `wrong_reason`."""
    command = [sys.executable, "-m", "rlvr", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    if done.returncode:
        raise SystemExit(f"rlvr {' '.join(arguments)}\n{done.stderr[-2000:]}")


def tune(folder: Path, seed: int, steps: int, *flags: str) -> list[str]:
    """Fine-tune a policy of two layers unless it is there; return the flags of a run that begins with it."""
    own = ["--run.seed", str(seed), "--model.tiny-layers", "2"]
    if not (folder / "start" / "state.json").exists():
        every = ["--sft.steps", str(steps), "--eval.every", "-1", "--run.out-dir", str(folder)]
        rlvr("sft", "tiny_math", *own, *every, *flags)
    return ["--run.start-from", str(folder / "start"), *own]


def report(name: str, folder: Path) -> None:
    """Print pass@1 of all evaluations."""
    rows = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
    curve = " ".join(f"{row['step']}:{row['pass@1']:.3f}" for row in rows)
    print(f"{name:15} {with_interval(rows[-1], 'pass@1')}  {curve}", flush=True)


def learn_from_teacher(out: Path, seeds: Sequence[int]) -> None:
    """Train a teacher; then for each seed a student under it, and by GRPO for comparison."""
    teacher = out / "teacher"
    rlvr("train", "tiny_math", *QUIET, "--run.steps", "20", "--eval.every", "20", "--run.out-dir", str(teacher))
    report("teacher", teacher)
    name = ["--teacher.name", str(teacher / "checkpoints" / "step-000020")]
    for seed in seeds:
        begin = tune(out / f"student-{seed}", seed, 600)
        for arm, flags in {"opd": [*OPD, *name], "grpo": [*GRPO, "64", "--run.steps", "80"]}.items():
            folder = out / f"{arm}-{seed}"
            rlvr("train", "tiny_math", *SMALL, *QUIET, *begin, *flags, "--run.out-dir", str(folder))
            report(f"{arm}, seed {seed}", folder)


def learn_from_verdicts(out: Path, seeds: Sequence[int]) -> None:
    """Train by GRPO, by what the verifier says, and by wrong reasons, from one start for each seed."""
    hints = out / "hints.jsonl"
    write_hints(hints)
    for seed in seeds:
        begin = tune(out / f"told-{seed}", seed, 700, "--sft.data", str(hints))
        for arm, flags in ARMS.items():
            folder = out / f"told-{arm}-{seed}"
            steps = ["--run.steps", "40", "--run.out-dir", str(folder)]
            rlvr("train", "tiny_math", *SMALL, *QUIET, *begin, *flags, *steps)
            report(f"{arm}, seed {seed}", folder)


def main() -> None:
    """Run what is asked for, and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/distillation"), help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--what", choices=("teacher", "told", "all"), default="all")
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if args.what in ("teacher", "all"):
        learn_from_teacher(out, args.seeds)
    if args.what in ("told", "all"):
        learn_from_verdicts(out, args.seeds)


if __name__ == "__main__":
    main()
