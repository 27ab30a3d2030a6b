"""The share of a distillation that is done on demonstrations in place of the policy's own rollouts (GKD)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlvr.core.seeding import derive_seed
from rlvr.model.logprobs.comparison import compare_tokens, teacher_states

from ...problems.draws import items_of_step
from ...rollout.episodes import TurnPlan
from ...sft.demonstrations import Demonstration
from ...sft.sft import demonstration_batch
from ..learner import Learner
from ..prepare import Microbatch, run_learner


def accumulate_off_policy(
    learner: Learner, demonstrations: Sequence[Demonstration], plan: TurnPlan | None, number: int
) -> float:
    """Add the gradient of the divergence on some demonstrations' tokens, share x weight of its mean; return that mean.

    The rollouts' part has the rest of the share (arXiv:2306.13649, algorithm 1, where a coin is tossed for each batch).
    number: of the update, from 0; the demonstrations are a function of it and the run's seed, in epochs. The gradient
    and the mean are this process's part: the caller adds them up over processes.
    """
    teacher, config = learner.teacher, learner.config
    assert teacher is not None
    assert teacher.policy is not None
    own, settings, r = teacher.policy, teacher.settings, config.rollout
    rollouts = r.problems_per_step * r.group_size / config.algo.minibatches
    count = max(1, round(rollouts * settings.off_policy / (1 - settings.off_policy)))
    seed = derive_seed(config.run.seed, "off_policy")
    chosen = items_of_step(demonstrations, count, seed=seed, step=number)
    batch = demonstration_batch(learner.policy, chosen, plan, config.run.seed)
    total = batch.num_completion_tokens

    def compute(part: Microbatch) -> torch.Tensor:
        micro = part.rows
        found = compare_tokens(
            learner.policy,
            micro.tokens,
            micro.scored,
            micro.scored,
            teacher_states(own, micro.tokens, micro.scored),
            temperature=r.temperature,
            with_entropy=False,
            beta=settings.beta,
            top_k=settings.top_k,
        )
        loss = found.divergence.sum() / total
        part.backward(settings.off_policy * settings.weight * loss)
        return loss.detach()

    losses = run_learner(learner, batch, compute, learner.policy.parameters())
    return float(sum(losses))
