"""Three-digit addition and subtraction from nothing, on a CPU: fine-tuning, then RL with a verifier, then pass@k.

A model of 0.9M parameters is fine-tuned on worked examples in which many carries are forgotten, so that it gets about
half of the held-out problems right. Then GRPO sees nothing but the verdicts of the math verifier. On two cores the
whole run takes two to three minutes, and held-out pass@1 rises from about .5 to about .9.

    rlvr train tiny_math
    rlvr train tiny_math --run.seed 1 --run.out-dir runs/tiny_math_1
    rlvr train tiny_math --run.shuffle-rewards          # control: rewards that carry no information
    rlvr train tiny_math --algo ppo                     # with a critic; also raft, dpo, rloo, ... (see --help)
"""

from pathlib import Path

from rlvr.commands.train import script
from rlvr.config import (
    AlgoConfig,
    Config,
    CriticConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    SFTConfig,
)

CONFIG = Config(
    run=RunConfig(task="arithmetic", steps=80, out_dir=Path("runs/tiny_math"), save_every=20),
    model=ModelConfig(name="tiny"),
    sft=SFTConfig(steps=1000, batch_size=16, lr=1.5e-3),
    rollout=RolloutConfig(problems_per_step=16, group_size=16, max_new_tokens=42),
    algo=AlgoConfig("grpo"),
    # From a pass rate near .1 a rate of 4e-4 without a warm-up is too high. The few problems with signal teach their
    # digits to all columns: the first update has a KL of .09 a token, and pass@1 is 0 within ten steps.
    optim=OptimConfig(
        lr=1e-4, warmup_steps=10, schedule="linear", decay_steps=80, min_lr_ratio=0.1, tokens_per_microbatch=4096
    ),
    eval=EvalConfig(num_problems=128, samples=8, k=(1, 8), every=20),
)
# What another choice brings: with `--algo ppo` a critic that learns as fast as this small policy.
VARIANTS = {"ppo": {"critic": CriticConfig(lr=4e-4)}}


if __name__ == "__main__":
    script(globals())
