"""A game of several turns with RLOO and credit per turn: find a number from "higher" and "lower".

The default is Qwen/Qwen2.5-0.5B-Instruct in full, with 8 games for each of 32 numbers a step. Each guess that is wrong
costs .05, and the number is worth 1; with `algo.credit turn` a guess is credited with what follows it. 8 GB are held
throughout (fp32 weights 2, gradients 2, AdamW 4); `rlvr doctor --plan game_rloo` says what the peak is.

What to expect: this has not been run on a GPU here. Halving the interval finds a number in at most seven guesses; watch
turns/count fall and credit/return_1 rise.

    rlvr train game_rloo
    rlvr train game_rloo --algo.credit outcome             # the same expected gradient, with other noise
    rlvr train game_rloo --run.task-option tries=5 cost=0.1
"""

from pathlib import Path

from rlvr.commands.train import script
from rlvr.config import (
    AlgoConfig,
    Config,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    fastest_sampler,
)

CONFIG = Config(
    run=RunConfig(task="higher_lower", steps=150, out_dir=Path("runs/game_rloo"), save_every=50),
    model=ModelConfig(name="Qwen/Qwen2.5-0.5B-Instruct"),
    rollout=RolloutConfig(problems_per_step=32, group_size=8, max_new_tokens=512, max_turns=7, turn_tokens=128),
    algo=AlgoConfig("rloo", credit="turn", clip_high=0.28, normalize="constant"),
    sampler=fastest_sampler(),
    optim=OptimConfig(lr=1e-6, warmup_steps=5),
    eval=EvalConfig(num_problems=128, samples=4, k=(1, 4), every=50, temperature=1.0),
)


if __name__ == "__main__":
    script(globals())
