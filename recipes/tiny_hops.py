"""Walks through a hidden permutation from nothing, on a CPU: turns with an environment, fine-tuning, RL, pass@k.

A model of 0.9M parameters is fine-tuned on conversations of which half miscount the hops, so that it gets about half of
the held-out problems right. Then RL sees nothing but the verdicts. On two cores the whole run takes one to two minutes,
and held-out pass@1 rises from about .5 to about .98.

    rlvr train tiny_hops
    rlvr train tiny_hops --algo.credit turn             # each turn is credited with what follows it
    rlvr train tiny_hops --rollout.max-turns 1          # control: no question is answered, so that 1 in 26 is right
    rlvr train tiny_hops --run.shuffle-rewards          # control: rewards that carry no information
"""

from pathlib import Path

from rlvr.commands.train import script
from rlvr.config import AlgoConfig, Config, EvalConfig, ModelConfig, OptimConfig, RolloutConfig, RunConfig, SFTConfig

CONFIG = Config(
    run=RunConfig(task="hops", steps=40, out_dir=Path("runs/tiny_hops"), save_every=20),
    model=ModelConfig(name="tiny"),
    sft=SFTConfig(steps=600, batch_size=16, lr=1.5e-3),
    rollout=RolloutConfig(problems_per_step=16, group_size=16, max_new_tokens=42, max_turns=9),
    algo=AlgoConfig("rloo"),
    optim=OptimConfig(lr=4e-4, schedule="linear", decay_steps=40, min_lr_ratio=0.1, tokens_per_microbatch=4096),
    eval=EvalConfig(num_problems=128, samples=8, k=(1, 8), every=20),
)


if __name__ == "__main__":
    script(globals())
