"""Seconds for rollouts of three turns with a slow tool, beside the same rollouts without its delay, in one process.

Takes about 130 seconds on two cores.

The work: problems times group size rollouts of the recipes' tiny model with random weights, which ends a turn by itself
or after 96 tokens; the tool answers the first two turns after a time that is the same for all, or at once. Both
alternate; medians and their ratio are printed for the torch sampler, for vLLM, and for vLLM in rounds. vLLM is left out
where it is not installed.

    OMP_WAIT_POLICY=passive python benchmarks/tool_latency.py
    OMP_WAIT_POLICY=passive python benchmarks/tool_latency.py --seconds 1 --spread     # from no delay to a second
"""

from __future__ import annotations

import argparse
import statistics
import string
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from random import Random

from rlvr.config import ModelConfig, RolloutConfig, TorchSamplerConfig, VLLMConfig
from rlvr.core.types import Conversations, Environment, Problem, Reply, Sampler, Sampling
from rlvr.model.cpu.processor import tune_cpu
from rlvr.model.load.policy import Policy, load_policy
from rlvr.sampling.samplers import make_sampler
from rlvr.training.rollout.episodes import TurnPlan
from rlvr.training.rollout.rollout import rollout

TURN_TOKENS = 96


def tool_of(seconds: float, *, spread: bool) -> Environment:
    """Return an environment of three turns; a reply takes `seconds`, or with `spread` a random share of that."""

    def answers(problem: Problem, rng: Random):
        yield None
        for _ in range(2):
            time.sleep(seconds * (rng.random() if spread else 1.0))
            yield Reply("42\n")

    return answers


class Rounds:
    """A sampler in rounds."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def converse(self, rollouts: Conversations) -> None:
        """Do as Sampler by default."""
        Sampler.converse(self.sampler, rollouts)


def seconds_of(policy: Policy, sampler: Sampler | Rounds, args: argparse.Namespace, delay: float) -> float:
    """Return the seconds of the rollouts with replies of this delay. Raises AssertionError where turns are missing."""
    limits = RolloutConfig(max_turns=3, turn_tokens=TURN_TOKENS)
    problems = [Problem(f"p{i}", f"{i}: ") for i in range(args.problems)]
    start = time.perf_counter()
    groups = rollout(
        policy,
        sampler,
        problems,
        Sampling(max_new_tokens=3 * TURN_TOKENS),
        group_size=args.group_size,
        seed=(0, "rollout", 0),
        plan=TurnPlan(tool_of(delay, spread=args.spread), limits),
    )
    taken = time.perf_counter() - start
    assert {sum(turn.sampled for turn in made.turns) for group in groups for made in group.completions} == {3}
    return taken


def main() -> None:
    """Print a line for each sampler."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a reply")
    parser.add_argument("--spread", action="store_true", help="replies take from no time to --seconds")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    tune_cpu()
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=[string.printable], seed=0)
    print(f"{policy.describe()}; {args.problems} problems x {args.group_size} rollouts of three turns")
    with ExitStack() as stack:
        samplers: dict[str, Sampler | Rounds] = {"torch": make_sampler(TorchSamplerConfig(), policy)}
        try:
            vllm = stack.enter_context(closing(make_sampler(VLLMConfig(), policy)))
            samplers |= {"vllm": vllm, "vllm, rounds": Rounds(vllm)}
        except ValueError as error:
            print(f"without vLLM: {error}")
        for name, sampler in samplers.items():
            compare(name, partial(seconds_of, policy, sampler, args), args)


def compare(name: str, run: Callable[[float], float], args: argparse.Namespace) -> None:
    """Print the medians without and with the delay, which alternate after one run that is not counted."""
    taken: dict[float, list[float]] = {0.0: [], args.seconds: []}
    run(0.0)
    for _ in range(args.rounds):
        for seconds, found in taken.items():
            found.append(run(seconds))
    without, slow = (statistics.median(found) for found in taken.values())
    print(f"{name:13} {without:6.2f} s, with the delay {slow:6.2f} s: {slow / without:.2f} times", flush=True)


if __name__ == "__main__":
    main()
