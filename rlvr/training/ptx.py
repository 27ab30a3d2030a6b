"""The pretraining mix of InstructGPT (PPO-ptx): the language-model loss on demonstrations beside the policy's loss."""

from __future__ import annotations

from rlvr.core.seeding import derive_seed
from rlvr.model.memory import microbatch_tokens
from rlvr.training.problems.draws import items_of_step
from rlvr.training.sft import add_gradient, demonstration_batch
from rlvr.training.step.learner import Learner


def accumulate_mix(learner: Learner, number: int) -> float:
    """Add the gradient of ptx_coef x the mean negative log-likelihood of some demonstrations' tokens; return that mean.

    number: of the update, from 0; the demonstrations are a function of it and the run's seed, in epochs. The gradient
    and the mean are this process's part: the caller adds them up over processes.
    """
    config, algo = learner.config, learner.algo
    seed = derive_seed(config.run.seed, "ptx")
    chosen = items_of_step(learner.demonstrations, algo.ptx_batch_size, seed=seed, step=number)
    batch = demonstration_batch(learner.policy, chosen, learner.plan, config.run.seed)
    tokens = microbatch_tokens(learner.policy, config)
    return add_gradient(learner.policy, batch, learner.accelerator, tokens, weight=algo.ptx_coef)
