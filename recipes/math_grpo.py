"""GSM8K with Dr. GRPO, for any causal LM of the hub or a local folder.

The default is Qwen/Qwen2.5-1.5B-Instruct, trained in full with 8 completions for each of 64 problems a step and
Dr. GRPO's loss: no division by the group's std, a constant normaliser. 25 GB are held throughout (fp32 weights 6,
gradients 6, AdamW 12), on a GPU of 40 GB or more; `rlvr doctor --plan math_grpo` says what else there is, and whether
activations are recomputed. `--model.lora-rank 32 --optim.lr 2e-5` fits a GPU of 16 GB.

What to expect: these defaults have not been run on a GPU here. Published results on GSM8K with other trainers: verl's
LoRA GRPO takes Qwen2.5-0.5B-Instruct from 49.6 to 54.3 % and reaches 77.9 % with the 1.5B model; SimpleRL-Zoo takes the
1.5B base model from 55.7 to 74.4 % in about 100 steps.

    rlvr train math_grpo
    rlvr train math_grpo --model.name Qwen/Qwen2.5-0.5B-Instruct --run.out-dir runs/gsm8k_05b
    rlvr train math_grpo --run.data path/to/gsm8k          # train.jsonl and test.jsonl, instead of the hub
    rlvr train math_grpo --model.name tiny --run.data path/to/gsm8k --run.steps 5    # try it on a CPU
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
    run=RunConfig(task="gsm8k", steps=200, out_dir=Path("runs/math_grpo"), save_every=50),
    model=ModelConfig(name="Qwen/Qwen2.5-1.5B-Instruct"),
    rollout=RolloutConfig(problems_per_step=64, group_size=8, max_new_tokens=512),
    algo=AlgoConfig("dr_grpo", clip_high=0.28, normalize="constant", minibatches=2),
    sampler=fastest_sampler(),
    optim=OptimConfig(lr=1e-6, warmup_steps=5),
    eval=EvalConfig(num_problems=256, samples=4, k=(1, 4), every=50, temperature=1.0),
)


if __name__ == "__main__":
    script(globals())
