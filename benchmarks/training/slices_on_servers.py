"""The time of a step with two vLLM servers and log-normal lengths: synchronous, one batch ahead, and in slices.

The model is the recipes' tiny one, untrained. How long a completion gets is drawn from a log-normal distribution by its
seed (median 60 tokens, sigma 1, at most 480), and the engines sample exactly so many tokens: their work is real, and
the same for all. The first steps, in which the groups in progress are filled, do not count. Beside each measured time
stands that which the simulator of `rlvr simulate-schedule` predicts for these lengths and for the synchronous run's
servers, calibrated after its last step. The schedule in slices must be the simulator's: the same tokens of the same
versions. Needs vLLM; on a CPU in the environment of `.ci/vllm`, with one thread for each server.

    OMP_NUM_THREADS=1 python benchmarks/training/slices_on_servers.py
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import mean

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rlvr.commands.schedule.rates import AHEAD, time_sampler
from rlvr.commands.schedule.simulation import Machine, Outcome, Schedule, simulate
from rlvr.config import Config, ModelConfig, OptimConfig, RolloutConfig, RunConfig, VLLMServerConfig
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Ask, Completion, Group, Problem, Sampling
from rlvr.model.load.policy import Policy, load_policy
from rlvr.sampling.vllm.engine import Batch, Output
from rlvr.sampling.vllm.sampler import VLLMSampler
from rlvr.train import train
from rlvr.training.rollout.slices import row_key
from rlvr.training.run import Run
from tests.helpers.runs import CHARACTERS, build_run
from tests.helpers.schedules import read_versions, versions_of
from tests.helpers.verifiers import OddDigits

LONGEST, MEDIAN, SIGMA = 480, 60, 1.0


def length_of(seed: int) -> int:
    """Return how many tokens the completion of a seed gets."""
    drawn = np.random.Generator(np.random.Philox(key=seed)).normal()
    return int(np.clip(MEDIAN * np.exp(SIGMA * drawn), 1, LONGEST))


class ScriptedLengths(VLLMSampler):
    """vLLM, whose completions have the lengths of their seeds."""

    def sample_rows(self, asks: Sequence[Ask], on_row: Callable[[int, Completion], None]) -> None:
        """Sample what is left of each row, up to its limit."""
        left = [length_of(ask.seed) - ask.drawn for ask in asks]
        requests = [
            replace(
                self._request(ask.context, ask.sampling, ask.own_seed),
                max_new_tokens=min(count, ask.sampling.max_new_tokens),
                stop_ids=(),
            )
            for ask, count in zip(asks, left, strict=True)
        ]

        def take(place: int, output: Output) -> None:
            reason = "stop" if left[place] <= asks[place].sampling.max_new_tokens else "length"
            text = self.policy.decode(output.token_ids)
            on_row(place, Completion(text, output.token_ids, output.logprobs, reason))

        self.engine.sample(Batch(requests, take))

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        on_group: Callable[[int, list[Completion]], None],
    ) -> list[list[Completion]]:
        """Sample whole rows."""
        places = [(p, g) for p, row in enumerate(seeds) for g in range(len(row))]
        made: list[dict[int, Completion]] = [{} for _ in prompts]

        def keep(place: int, completion: Completion) -> None:
            p, g = places[place]
            made[p][g] = completion
            if len(made[p]) == len(seeds[p]):
                on_group(p, [made[p][i] for i in range(len(seeds[p]))])

        self.sample_rows([Ask(tuple(prompts[p]), sampling, seeds[p][g]) for p, g in places], keep)
        return [[row[i] for i in range(len(row))] for row in made]


SERVERS = VLLMServerConfig(servers=2, sync_check_every=0, mismatch_alarm=100.0)


def new_policy() -> Policy:
    """Return the untrained policy."""
    return load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=[CHARACTERS], seed=0)


def measure(sampler: VLLMSampler, folder: Path, steps: int, settings: dict[str, int]) -> Run:
    """Train with the servers, from the untrained policy on."""
    config = Config(
        run=RunConfig(out_dir=folder, steps=steps, sample_every=0, save_every=0),
        model=ModelConfig(name="tiny", device="cpu", dtype="float32"),
        rollout=RolloutConfig(problems_per_step=8, group_size=4, max_new_tokens=LONGEST),
        optim=OptimConfig(lr=1e-5),
        sampler=replace(SERVERS, **settings),
    )
    config.check()
    problems = [Problem(str(i), f"{i}+{i}=", str(2 * i)) for i in range(1000)]
    run = build_run(config, OddDigits(), policy=new_policy(), sampler=lambda policy: sampler, problems=problems)
    sampler.load_weights(run.learner.policy)
    train(run)
    return run


def calibrate(sampler: VLLMSampler, run: Run) -> Machine:
    """Return the servers and the trainer of a synchronous run, with their rates."""
    rows = run.reporter.log.read("metrics")[1:]
    training = sum(row["seconds/train"] for row in rows) / sum(row["rollout_tokens"] for row in rows)
    on = Machine(SERVERS.servers, SERVERS.batch_size, 1, 0.0, 0.0, training)
    prompt = tuple(sampler.policy.encode("123+123="))
    texts = [[(prompt, (5,) * length_of(4 * g + i)) for i in range(4)] for g in range(8 * AHEAD)]
    return time_sampler(sampler, run.learner.policy, texts, 8, run.config.sampling(), on)


def predict(run: Run, on: Machine) -> Outcome:
    """Return what the simulator makes of a run's completions, whose lengths are functions of their seeds."""
    config = run.config
    groups = (
        [length_of(derive_seed(*row_key(config, step, Group(problem, (), ()), i))) for i in range(4)]
        for step in count()
        for problem in run.worker.draws.of_step(step)
    )
    how = Schedule(config.sampler.max_staleness, config.sampler.slice_tokens or None)
    return simulate(groups.__next__, config.rollout.problems_per_step, config.run.steps, how, on)


def summarize(run: Run, skipped: int) -> dict[str, float]:
    """Return the means of the counted steps."""
    rows = run.reporter.log.read("metrics")[skipped:]
    seconds = [sum(value for name, value in row.items() if name.startswith("seconds/")) for row in rows]
    tokens = [row["rollout_tokens"] for row in rows]
    found = {"seconds": mean(seconds), "tokens": mean(tokens), "rate": sum(tokens) / sum(seconds)}
    return found | {name: mean(row.get(name, 0.0) for row in rows) for name in ("slices/age", "slices/waited")}


def main() -> None:
    """Measure the three, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--skipped", type=int, default=6)
    given = parser.parse_args()
    kinds = {
        "synchronous": {},
        "one batch ahead": {"max_staleness": 1},
        "slices of 96": {"max_staleness": 4, "slice_tokens": 96},
    }
    machine = first = None
    with tempfile.TemporaryDirectory() as folder, closing(ScriptedLengths(new_policy(), SERVERS)) as sampler:
        for name, settings in kinds.items():
            run = measure(sampler, Path(folder) / name, given.steps, settings)
            machine = machine or calibrate(sampler, run)
            found, outcome = summarize(run, given.skipped), predict(run, machine)
            first, predicted = first or found, mean(outcome.steps[given.skipped :])
            same = not run.config.sampler.slice_tokens or versions_of(outcome) == read_versions(run)
            print(
                f"{name}: {found['seconds']:.2f} s a step ({found['seconds'] / first['seconds']:.2f}), predicted "
                f"{predicted:.2f} ({predicted / found['seconds'] - 1:+.0%}); "
                f"{found['tokens']:.0f} tokens a step, {found['rate']:.0f} tokens a second "
                f"({found['rate'] / first['rate']:.2f}); tokens {found['slices/age']:.1f} steps old, "
                f"{found['slices/waited']:.1f} slices waited for; {'as' if same else 'NOT as'} scheduled",
                flush=True,
            )
    print(machine)


if __name__ == "__main__":
    main()
