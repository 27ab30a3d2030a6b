"""Small list functions from nothing, on a CPU: fine-tuning, then RL on hidden tests, then pass@k.

The prompt `items 2 to 4; sort down; max or 0:` asks for a Python function. A model of 0.9M parameters is fine-tuned on
programs that err in half of the steps where one can err (a[2:4] for a[1:4], > for >=, no guard for the empty list), so
that less than half of what it writes is right. Then GRPO sees nothing but whether all hidden tests of a problem
pass, each program run in the sandbox. The whole run takes five minutes of one core, and held-out pass@1 rises
from about .5 to above .9.

    rlvr train tiny_code
    rlvr train tiny_code --run.seed 1 --run.out-dir runs/tiny_code_1
    rlvr train tiny_code --run.shuffle-rewards          # control: rewards that carry no information
    rlvr doctor                                         # the sandbox level: below 2, rewards from code are refused
"""

from pathlib import Path

from rlvr.commands.train import script
from rlvr.config import AlgoConfig, Config, EvalConfig, ModelConfig, OptimConfig, RolloutConfig, RunConfig, SFTConfig

CONFIG = Config(
    run=RunConfig(task="tiny_code", steps=100, out_dir=Path("runs/tiny_code"), save_every=20),
    model=ModelConfig(name="tiny", tiny_tokens=r" ?[a-z]+|."),
    sft=SFTConfig(steps=1000, batch_size=16, lr=1.5e-3),
    rollout=RolloutConfig(problems_per_step=16, group_size=16, max_new_tokens=52),
    algo=AlgoConfig("grpo"),
    optim=OptimConfig(lr=4e-4, schedule="linear", decay_steps=100, min_lr_ratio=0.1, tokens_per_microbatch=4096),
    eval=EvalConfig(num_problems=128, samples=8, k=(1, 8)),
)


if __name__ == "__main__":
    script(globals())
