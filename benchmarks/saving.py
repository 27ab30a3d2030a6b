"""How long training waits for a checkpoint that is written at once, and for one that is written beside it.

Takes about 48 seconds on two cores.

    python benchmarks/saving.py                    # 113M parameters, float32, with AdamW's moments

"waits" is how long `save` takes, "whole" when the checkpoint has its name, "beside" how much longer a matrix product
that takes some 20 ms takes while a thread writes (the median): what the training pays for sharing processor and memory.
The two ways alternate.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from rlvr.model.load.policy import Policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.training.saving import CheckpointSaver

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.measuring import random_qwen
from tests.helpers.processes import run_processes
from tests.helpers.runs import CHARACTERS, build_run
from tests.helpers.sharded import make_config


def make_policy(layers: int, hidden: int) -> Policy:
    """Return a random policy."""
    tokenizer = tiny_tokenizer([CHARACTERS])
    return Policy(
        random_qwen(tokenizer, hidden, layers, intermediate_size=4 * hidden, tie_word_embeddings=False), tokenizer
    )


def product(matrix: torch.Tensor) -> float:
    """Return the seconds of a matrix product."""
    start = time.perf_counter()
    matrix @ matrix
    return time.perf_counter() - start


def measure(folder: Path, args: argparse.Namespace) -> list[dict[str, float]]:
    """Return the figures of each save, at once and beside in turns."""
    policy = make_policy(args.layers, args.hidden)
    run = build_run(make_config(folder), policy=policy)
    for weight in policy.parameters():
        weight.grad = torch.full_like(weight, 1e-3)
    run.learner.optimizer.step()
    run.learner.optimizer.zero_grad()
    matrix = torch.randn(700, 700)
    found = []
    for number in range(2 * args.rounds + 2):
        beside = number % 2 == 1
        run.config = replace(run.config, run=replace(run.config.run, async_save=beside))
        alone = statistics.median(product(matrix) for _ in range(20))
        saver = CheckpointSaver(run)
        start = time.perf_counter()
        saver.save(number + 1, {})
        waits, times = time.perf_counter() - start, [alone]
        while saver.writing:
            times.append(product(matrix))
        saver.finish()
        whole = time.perf_counter() - start
        if number > 1:  # the first of each warms up
            row = {"beside": beside, "waits": waits, "whole": whole, "slower": statistics.median(times) / alone}
            found.append(row)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = run_processes(1, lambda rank: measure(Path(name), args), timeout=1200)[0]
    print(f"{'':>8} {'waits, s':>9} {'whole, s':>9} {'product takes':>14}")
    for beside in (False, True):
        chosen = [row for row in rows if row["beside"] == beside]
        middle = {key: statistics.median(row[key] for row in chosen) for key in ("waits", "whole", "slower")}
        label = "beside" if beside else "at once"
        print(f"{label:>8} {middle['waits']:>9.2f} {middle['whole']:>9.2f} {middle['slower']:>13.2f}x")


if __name__ == "__main__":
    main()
