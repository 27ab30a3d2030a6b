"""Held-out pass@1 by two trainers with their weights in shards and two vLLM servers, against one process alone.

`tiny_math` after a fine-tuning that both share, with the recipe's settings but steps of 16 problems of 16 completions,
a learning rate of 4e-4, a number of RL steps for each seed. One of the servers is killed (SIGKILL) after a third of the
steps, and both trainers after two thirds. Then a server is started at the lost one's URL and the same command resumes.
Every answer says of which push it is, and another than the last one ends the run: a run that ends has met none. Needs
vLLM, on a CPU the environment of `.ci/vllm`."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.helpers.files import lines
from tests.helpers.served import ENVIRONMENT, children, rlvr, serve_command, server_at, torchrun

PORT = 18400
STEP = "--rollout.problems-per-step 16 --rollout.group-size 16 --algo.minibatches 1"
RL = f"{STEP} --optim.lr 4e-4 --optim.warmup-steps 0 --eval.k 1 --run.sample-every 0 --run.save-every 1".split()


def finish(command: list[str], seconds: float) -> None:
    """Run a command to its end; SystemExit with what it printed where it fails."""
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")


def kill_trainers_after(
    command: list[str], folder: Path, step: int, seconds: float, kills: Callable[[int], None]
) -> str:
    """Run a command until its metrics have a number of steps, then kill all its processes; return what it printed.

    kills: called with the number of steps that are done.
    """
    output = folder.with_suffix(".log")
    with output.open("w") as log:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=log, stderr=log)
    try:
        deadline, metrics = time.monotonic() + seconds, folder / "metrics.jsonl"
        while (done := metrics.read_text().count("\n") if metrics.exists() else 0) < step:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"ended after {done} of {step} steps:\n{output.read_text()[-3000:]}")
            kills(done)
            time.sleep(0.2)
    finally:
        for pid in (*children(process.pid), process.pid):  # torchrun's processes are in sessions of their own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    return output.read_text()


def pass_at_1(folder: Path) -> dict[int, float]:
    """Held-out pass@1 by the steps after which it was measured."""
    path = folder / "eval.jsonl"
    return {row["step"]: row["pass@1"] for row in lines(path)} if path.exists() else {}


def compare(seed: int, args: argparse.Namespace, folder: Path) -> tuple[float, float, float]:
    """Return held-out pass@1 of a seed before RL, after it by one process, and by trainers with servers."""
    own = ["--model.device", "cpu", "--run.seed", str(seed), "--sft.steps", str(args.sft_steps)]
    rl = [*own, *RL, "--eval.num-problems", str(args.problems), "--eval.samples", str(args.samples)]
    rl += ["--eval.every", str(args.steps), "--run.steps", str(args.steps)]
    tuned, one, many = (folder / f"{name}-{seed}" for name in ("tuned", "one", "many"))
    if not (tuned / "start").exists():
        finish(rlvr("sft", "tiny_math", *own, "--eval.every", "-1", "--run.out-dir", str(tuned)), args.timeout)
    if not one.exists():
        shutil.copytree(tuned, one)
    if args.steps not in pass_at_1(one):
        finish(rlvr("train", "tiny_math", *rl, "--run.out-dir", str(one)), args.timeout)
    shutil.rmtree(many, ignore_errors=True)
    shutil.copytree(tuned, many)
    model = tuned / "start"
    with serve_command(model, folder / "logs", "--servers", "2", "--port", str(PORT)) as (urls, process):
        settings = [*rl, "--model.shard", "2", "--sampler", "vllm-server", "--sampler.url", *urls]
        command = torchrun(2, "-m", "--", "rlvr", "train", "tiny_math", *settings, "--run.out-dir", str(many))
        victim = [server_at(process.pid, urls[1])]

        def kill_server(done: int) -> None:
            if victim and done >= max(args.steps // 3, 1):
                os.kill(victim.pop(), signal.SIGKILL)

        told = kill_trainers_after(command, many, max(2 * args.steps // 3, 2), args.timeout, kill_server)
        if "1 of 2 are left" not in told:
            raise SystemExit(f"the killed server was not noticed:\n{told[-3000:]}")
        with serve_command(model, folder / "logs-again", "--servers", "1", "--port", urls[1].rpartition(":")[2]):
            done = len(lines(many / "metrics.jsonl"))
            if done >= args.steps:
                raise SystemExit(f"nothing was left to resume after {done} steps")
            finish(command, args.timeout)
    if [row["step"] for row in lines(many / "metrics.jsonl")] != list(range(1, args.steps + 1)):
        raise SystemExit(f"{many}/metrics.jsonl does not have every step once")
    return pass_at_1(one)[0], pass_at_1(one)[args.steps], pass_at_1(many)[args.steps]


def main() -> None:
    """Print a table, and whether the means agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40, help="RL steps")
    parser.add_argument("--sft-steps", type=int, default=1000, help="steps of the fine-tuning that both start from")
    parser.add_argument("--problems", type=int, default=128, help="held-out problems")
    parser.add_argument("--samples", type=int, default=8, help="completions of each")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds that a command may take")
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder for the runs, which are deleted otherwise; what of them is there is used again",
    )
    args = parser.parse_args()
    if find_spec("vllm") is None:
        print("vLLM cannot be imported here: nothing is measured; see .ci/vllm for an environment that has it")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print("| seed | before | one process | two trainers, two servers |\n|---|---|---|---|", flush=True)
        rows = []
        for seed in args.seeds:
            rows.append(compare(seed, args, folder))
            print(f"| {seed} | {' | '.join(f'{value:.3f}' for value in rows[-1])} |", flush=True)
    means = [mean(column) for column in zip(*rows, strict=True)]
    print(f"| mean | {' | '.join(f'{value:.3f}' for value in means)} |")
    apart = abs(means[2] - means[1])
    print(f"the means differ by {apart:.3f}: {'within' if apart <= 0.03 else 'MORE THAN'} .03")


if __name__ == "__main__":
    main()
