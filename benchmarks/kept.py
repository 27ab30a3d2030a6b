"""What a run pays for what it keeps for people to look at: rollouts, values of tokens, held-out answers.

    python benchmarks/kept.py                      # the model of tiny_math
    python benchmarks/kept.py --sizes 25M          # one of 25M parameters: much longer

Pairs of a step (and of an evaluation) do the same work twice, in turns with and without what is kept; weights do not
change. The figures are processor time of the process, which other work disturbs less than the clock: the median ratio
of the pairs with its quartiles, and beside it the share that the functions that keep take themselves.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.config import Config, ModelConfig, OptimConfig, RolloutConfig, RunConfig
from rlvr.core.types import Problem, Sampling
from rlvr.model.load.policy import Policy
from rlvr.model.load.tiny import tiny_model, tiny_tokenizer
from rlvr.training.evaluation.evaluate import evaluate
from rlvr.training.evaluation.kept import KeptAnswers
from rlvr.training.records import finish_step, rollout_metrics
from rlvr.training.run import Run
from rlvr.training.step.token_values import TokenValues
from rlvr.training.step.update import update

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.measuring import random_qwen
from tests.helpers.runs import CHARACTERS, build_run, groups_of

NUM_PROBLEMS = 128  # held out


class Spent:
    """Processor seconds within `measured` blocks of this thread."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Add the seconds of a block."""
        start = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - start


class TimedValues(TokenValues):
    """Token values that measure what they take in the update."""

    def __init__(self, most: int, spent: Spent) -> None:
        super().__init__(most)
        self.spent = spent

    def keep(self, *args: Any) -> None:
        with self.spent.measure():
            super().keep(*args)


def make_run(folder: Path, size: str, tokens: int) -> Run:
    """Return a run of a random model whose completions all have the greatest length."""
    tokenizer = tiny_tokenizer([CHARACTERS])
    model = tiny_model(tokenizer, 0) if size == "tiny" else random_qwen(tokenizer, 512, 8)
    with torch.no_grad():  # never the end
        model.get_input_embeddings().weight[tokenizer.eos_token_id] = 0.0
    config = Config(
        run=RunConfig(out_dir=folder, steps=1000, sample_every=0),
        model=ModelConfig(name="tiny", device="cpu", dtype="float32"),
        rollout=RolloutConfig(problems_per_step=16, group_size=8, max_new_tokens=tokens),
        optim=OptimConfig(lr=0.0, max_update_kl=0.0),
    )
    return build_run(config, policy=Policy(model, tokenizer))


def train_step(run: Run, number: int, kept: bool) -> float:
    """Sample and update, and log what a run logs. Return the seconds that keeping took."""
    spent = Spent()
    run.learner.token_values = TimedValues(run.config.run.token_values if kept else 0, spent)
    groups, advantages = groups_of(run, number)
    stats = update(run.learner, number, groups, advantages, lambda text: None)
    if kept:
        with spent.measure():
            finish_step(run, number + 1, groups, advantages, None, stats)
    else:
        rollout_metrics(groups, advantages, run.config.rollout)
    return spent.seconds


def evaluate_once(run: Run, number: int, kept: bool) -> float:
    """Evaluate, and write what a run writes. Return the seconds that keeping took."""
    spent, worker = Spent(), run.worker
    problems = [Problem(str(i), f"{i}+{i}=", str(2 * i)) for i in range(NUM_PROBLEMS)]
    answers = KeptAnswers(problems if kept else [])

    def keep(rows: Any) -> None:
        with spent.measure():
            answers.add(rows)

    sampling = Sampling(max_new_tokens=run.config.rollout.max_new_tokens)
    evaluate(worker.policy, worker.sampler, problems, worker.verifier, sampling=sampling, samples=4, ks=(1,), keep=keep)
    with spent.measure():
        answers.write(run.reporter.log, number, Accelerator(cpu=True))
    return spent.seconds


def measure_pairs(work: Callable[[int, bool], float], rounds: int) -> dict[str, list[float]]:
    """Return the ratios of processor time and of the clock, and the shares of keeping itself, of each pair."""
    found: dict[str, list[float]] = {"ratio": [], "clock": [], "share": []}
    for number in range(-1, rounds):  # the first pair warms up
        times = {}
        for kept in (False, True) if number % 2 else (True, False):
            clock, start = time.perf_counter(), time.process_time()
            own = work(max(number, 0), kept)
            times[kept] = time.process_time() - start, time.perf_counter() - clock, own
        if number >= 0:
            found["ratio"].append(times[True][0] / times[False][0])
            found["clock"].append(times[True][1] / times[False][1])
            found["share"].append(times[True][2] / times[True][0])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=42)
    parser.add_argument("--sizes", nargs="+", choices=("tiny", "25M"), default=["tiny"])
    args = parser.parse_args()
    print(f"{'':>16} {'processor time':>24} {'clock':>24} {'keeping itself':>15}")
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            run = make_run(Path(folder), size, args.tokens)
            for label, work in (("step", train_step), ("evaluation", evaluate_once)):
                rows = measure_pairs(partial(work, run), args.rounds)
                ratio, clock = (
                    "{1:.3f} [{0:.3f}, {2:.3f}]".format(*statistics.quantiles(rows[name], n=4))
                    for name in ("ratio", "clock")
                )
                share = f"{100 * statistics.median(rows['share']):.2f} %"
                print(f"{size + ', ' + label:>16} {ratio:>24} {clock:>24} {share:>15}", flush=True)


if __name__ == "__main__":
    main()
