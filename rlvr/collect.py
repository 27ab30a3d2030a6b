"""A step's rollouts: draw problems, sample groups, verify them."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.distributed import share
from rlvr.rollout import draw, draw_more, informative_groups, rollout, shuffle_verdicts, verify_shared
from rlvr.run import Run
from rlvr.seeding import derive_seed
from rlvr.types import Group, Problem


def collect(run: Run, step: int) -> list[Group]:
    """The verified groups of a step: P of them, or with dynamic sampling as many as carry signal, up to P."""
    config, seed = run.config, run.config.run.seed
    count = config.rollout.problems_per_step
    problems = draw(run.problems, count, seed=seed, step=step)
    groups = sample_and_verify(run, problems, step)
    kept = informative_groups(groups, config)
    for round_number in range(config.rollout.resample_rounds):
        if len(kept) >= count:
            break
        used = {group.problem.id for group in groups}
        extra = draw_more(run.problems, count, seed=seed, step=step, round_number=round_number, used=used)
        if not extra:
            break
        fresh = sample_and_verify(run, extra, step)
        groups += fresh
        kept += informative_groups(fresh, config)
    return (kept[:count] or groups[:count]) if config.rollout.resample_rounds else groups


def sample_and_verify(run: Run, problems: Sequence[Problem], step: int) -> list[Group]:
    """Groups of the given problems with their verdicts, each process doing its share."""
    config = run.config
    mine = share(problems, run.accelerator)
    with run.timed("sample"):
        groups = rollout(
            run.policy,
            run.sampler,
            mine,
            config.sampling(),
            group_size=config.rollout.group_size,
            seed=(config.run.seed, "rollout", step),
        )
    with run.timed("verify"):
        groups = verify_shared(groups, run.verifier, run.accelerator)
    if config.run.shuffle_rewards:
        groups = shuffle_verdicts(groups, seed=derive_seed(config.run.seed, "shuffle", step))
    return groups
