"""MATH with Qwen3-8B-Base on eight GPUs of 80 GB, all of which train and sample; answers of up to 4,096 tokens.

Each GPU holds an eighth of the weights and of the optimizer's state, and an engine of vLLM with the whole model, which
drops its weights while the trainer trains. A step is 128 problems with 8 completions each and four updates, by Dr.
GRPO's loss with a higher upper clip. MATH-500 is held out.

What to expect: it has not been run on GPUs here; `rlvr doctor --plan qwen3_8b_math --gpus 8 --gib 80` says what a GPU
holds. The larger model without a base's untaught chat format is `--model.name Qwen/Qwen3-8B`, with
`--model.chat-option enable_thinking=false`, since thoughts seldom end within 4,096 tokens; it solves most of MATH
before any training, and wants harder problems (`--run.task deepscaler`).

    torchrun --nproc-per-node 8 -m -- rlvr train qwen3_8b_math
    torchrun --nproc-per-node 4 -m -- rlvr train qwen3_8b_math --model.shard 4    # on GPUs of 141 GB
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
    VLLMConfig,
)

CONFIG = Config(
    run=RunConfig(task="hendrycks_math", steps=200, out_dir=Path("runs/qwen3_8b_math"), save_every=20),
    model=ModelConfig(name="Qwen/Qwen3-8B-Base", shard=8),
    rollout=RolloutConfig(problems_per_step=128, group_size=8, max_new_tokens=4096),
    algo=AlgoConfig("dr_grpo", clip_high=0.28, normalize="constant", minibatches=4),
    sampler=VLLMConfig(sleep=2, gpu_memory_utilization=0.6, max_model_len=6144),
    optim=OptimConfig(lr=1e-6, warmup_steps=5),
    eval=EvalConfig(num_problems=500, samples=1, k=(1,), every=20, temperature=1.0),
)


if __name__ == "__main__":
    script(globals())
