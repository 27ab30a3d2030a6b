"""What was cut where, by a run's log and by the simulator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rlvr.commands.schedule.simulation import Machine, Outcome, Schedule, simulate
from rlvr.config import Config
from rlvr.training.problems.draws import Draws
from rlvr.training.run import Run

Versions = list[list[list[int]]]
"""Of each completion of a step the pairs (version, tokens)."""


def read_versions(run: Run) -> list[Versions]:
    """The versions in rollouts.jsonl, by step."""
    found: dict[int, Versions] = defaultdict(list)
    for record in run.reporter.log.read("rollouts"):
        found[record["step"]].append(record["versions"])
    return [found[step] for step in sorted(found)]


def replay_versions(run: Run) -> list[Versions]:
    """The versions of the simulator for completions as long as those in rollouts.jsonl."""
    lengths: dict[str, list[int]] = defaultdict(list)
    for record in run.reporter.log.read("rollouts"):
        lengths[record["problem"]].append(record["tokens"])
    return replay(run.config, run.worker.draws, lengths, run.config.run.steps)


def replay(config: Config, draws: Draws, lengths: Mapping[str, Sequence[int]], steps: int) -> list[Versions]:
    """The versions of the simulator for completions of these lengths, by problem, which are drawn once at most."""
    sampler = config.sampler
    drawn = [problem.id for step in range(steps + sampler.max_staleness) for problem in draws.of_step(step)]
    assert len(set(drawn)) == len(drawn)
    unfinished = [config.rollout.max_new_tokens]  # when the run ended
    groups = iter([lengths.get(name, unfinished) for name in drawn])
    how = Schedule(sampler.max_staleness, sampler.slice_tokens)
    on = Machine(1, 1, 1, 0.0, 0.0, 0.0)
    return versions_of(simulate(lambda: next(groups), config.rollout.problems_per_step, steps, how, on))


def versions_of(outcome: Outcome) -> list[Versions]:
    """The versions of a simulated run, by step."""
    return [[[list(run) for run in row.versions] for row in rows] for rows in outcome.trained]
