"""RL of the tiny policy against a learned reward, with the exact rule watching: does the truth rise with the reward?

The reward is the model that `rlvr rm rm_pairs` trained; the math verifier scores the same rollouts as a monitor, enters
nothing, and is what pass@k of held-out problems is measured by.

    rlvr rm rm_pairs
    rlvr train rm_grpo
    rlvr train rm_grpo --model.name runs/rm_pairs_policy_0/start --sft.steps 0     # no second fine-tuning
    rlvr train rm_grpo --run.verifier-option model=runs/other/model-0 --algo.kl-coef 0.05
"""

import dataclasses
from pathlib import Path

from rlvr.commands.train import script
from rlvr.config import AlgoConfig, EvalConfig, MonitorConfig, RolloutConfig, RunConfig
from rlvr.recipes import tiny_math

CONFIG = dataclasses.replace(
    tiny_math.CONFIG,
    run=RunConfig(
        task="arithmetic",
        verifier="reward_model",
        verifier_option=("model=runs/rm_pairs/model-0",),
        steps=80,
        out_dir=Path("runs/rm_grpo"),
        save_every=20,
    ),
    rollout=RolloutConfig(problems_per_step=16, group_size=16, max_new_tokens=42),
    algo=AlgoConfig("grpo"),
    # The reward model is soon wrong about what it taught. At 4e-4 the policy unlearns within three steps.
    optim=dataclasses.replace(tiny_math.CONFIG.optim, lr=1e-4, warmup_steps=10),
    monitor=MonitorConfig("math"),
    eval=EvalConfig(num_problems=128, samples=8, k=(1, 8), every=20, verifier="monitor"),
)
VARIANTS = {"ppo": tiny_math.VARIANTS["ppo"]}


if __name__ == "__main__":
    script(globals())
