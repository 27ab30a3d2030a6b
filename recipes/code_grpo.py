"""MBPP with Dr. GRPO, for any causal LM of the hub or a local folder: programs that are run against hidden tests.

A prompt gives the task in words and one of its tests; the reward is 1 where the program passes all of them in the
sandbox. Problems whose tests a program could talk its way around are left out. The default is
Qwen/Qwen2.5-Coder-1.5B-Instruct, trained in full with Dr. GRPO's loss. 25 GB are held throughout (fp32 weights 6,
gradients 6, AdamW 12), on a GPU of 40 GB or more; `rlvr doctor --plan code_grpo` says what else there is, and whether
activations are recomputed. `--model.lora-rank 32 --optim.lr 2e-5` fits a GPU of 16 GB.

What to expect: these defaults have not been run on a GPU here, and 374 problems are few, so that gains beyond the first
epochs (6 steps each) are memory as much as skill: look at held-out pass@1, and at HumanEval, which the run never sees.

    rlvr doctor                                          # code rewards need sandbox level 2 or 3
    rlvr train code_grpo
    rlvr train code_grpo --run.data path/to/mbpp.jsonl   # instead of the hub
    rlvr train code_grpo --run.task-option sanitized=true
    rlvr train code_grpo --model.name tiny --run.data path/to/mbpp.jsonl --run.steps 2    # try it on a CPU
    rlvr eval --model runs/code_grpo/checkpoints/LAST --task humaneval --k 1 --samples 4
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
    run=RunConfig(task="mbpp", steps=120, out_dir=Path("runs/code_grpo"), save_every=30),
    model=ModelConfig(name="Qwen/Qwen2.5-Coder-1.5B-Instruct"),
    rollout=RolloutConfig(problems_per_step=64, group_size=8, max_new_tokens=512),
    algo=AlgoConfig("dr_grpo", clip_high=0.28, normalize="constant", minibatches=2),
    sampler=fastest_sampler(),
    optim=OptimConfig(lr=1e-6, warmup_steps=5),
    eval=EvalConfig(num_problems=250, samples=4, k=(1, 4), every=30, temperature=1.0),
)


if __name__ == "__main__":
    script(globals())
