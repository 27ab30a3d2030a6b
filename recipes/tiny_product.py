"""Products with a program in the sandbox, from nothing, on a CPU: two turns, fine-tuning, RL, pass@k.

A model of 0.9M parameters is fine-tuned on conversations of which most guess the product, and some write a program and
copy what it prints. Then RL sees nothing but the verdicts, and the model gives up guessing. On two cores the whole run
takes two to three minutes; held-out pass@1 rises from about .35 to about .94.

    rlvr train tiny_product
    rlvr train tiny_product --rollout.max-turns 1       # control: no program's output is seen
    rlvr train tiny_product --run.shuffle-rewards       # control: rewards that carry no information
"""

from pathlib import Path

from rlvr.commands.train import script
from rlvr.config import AlgoConfig, Config, EvalConfig, ModelConfig, OptimConfig, RolloutConfig, RunConfig, SFTConfig

CONFIG = Config(
    run=RunConfig(task="product", steps=40, out_dir=Path("runs/tiny_product"), save_every=20),
    model=ModelConfig(name="tiny"),
    sft=SFTConfig(steps=600, batch_size=16, lr=1.5e-3),
    rollout=RolloutConfig(problems_per_step=16, group_size=16, max_new_tokens=42, max_turns=2),
    algo=AlgoConfig("rloo"),
    optim=OptimConfig(lr=4e-4, schedule="linear", decay_steps=40, min_lr_ratio=0.1, tokens_per_microbatch=4096),
    eval=EvalConfig(num_problems=128, samples=8, k=(1, 8), every=20),
)


if __name__ == "__main__":
    script(globals())
