"""Countdown with RLOO: reach a target from some numbers, each used once, with + - * / and parentheses.

The problems are made on the fly, so nothing is downloaded but the model. The reward is 1 where the expression in
the answer, parsed and evaluated exactly, uses each number once and gives the target. The default, Qwen/Qwen2.5-3B with
a reference policy, is for one GPU of 80 GB: 56 GB are held throughout (fp32 weights 12, gradients 12, AdamW 25,
reference 7), and `rlvr doctor --plan countdown_grpo` says what else; the 1.5B model with LoRA fits a GPU of 16 GB.

What to expect: these defaults have not been run on a GPU here. Published results with other trainers: about 50 to 60 %
of three- and four-number problems after several hundred steps with a 3B model; 0.5B models do not learn to search.

    rlvr train countdown_grpo
    rlvr train countdown_grpo --model.name Qwen/Qwen2.5-1.5B --model.lora-rank 32 --optim.lr 2e-5
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
    run=RunConfig(task="countdown", steps=400, out_dir=Path("runs/countdown_grpo"), save_every=50),
    model=ModelConfig(name="Qwen/Qwen2.5-3B", chat="never"),
    rollout=RolloutConfig(
        problems_per_step=32,
        group_size=16,
        max_new_tokens=768,
        truncated="penalize",
        overlong_buffer=128,
    ),
    algo=AlgoConfig("rloo", kl_coef=0.001, minibatches=2),
    sampler=fastest_sampler(gpu_memory_utilization=0.3),
    optim=OptimConfig(lr=1e-6, warmup_steps=10),
    eval=EvalConfig(num_problems=256, samples=4, k=(1, 4), every=50),
)


if __name__ == "__main__":
    script(globals())
