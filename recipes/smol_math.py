"""Word problems for a real language model on a CPU: SmolLM2-135M-Instruct, prompts in its chat template, MaxRL.

The model knows how to talk and can hardly calculate. It sees questions of one step (seven of eight) and of two, as
people ask them, and nothing but the verdicts of the math verifier; there is no fine-tuning before. On seeds 2, 3 and 4
held-out pass@1 on questions of one step went from .055, .078 and .062 to .863, .859 and .855 in 80 steps; on those of
two steps it stayed below .07. Seed 2 was the first run of these settings, and seeds 3 and 4 chose nothing. With
shuffled rewards (seed 2) it ended at .043.

    rlvr fetch smollm2-135m models/smollm2-135m
    rlvr train smol_math
    rlvr train smol_math --model.lora-rank 16 --optim.lr 2e-4      # an adapter in place of all weights
    rlvr train smol_math --run.shuffle-rewards                     # control: rewards that carry no information
"""

from pathlib import Path

from rlvr.commands.train import script
from rlvr.config import AlgoConfig, Config, EvalConfig, ModelConfig, OptimConfig, RolloutConfig, RunConfig

CONFIG = Config(
    run=RunConfig(
        task="mixture",
        # Sums and differences of numbers up to 10: with larger ones the model learns to add, and hardly to subtract.
        task_option=(
            "packs=one_step_problems:7,two_step_problems:1",
            "options=one_step_problems.largest=10,two_step_problems.largest=10",
        ),
        steps=80,
        out_dir=Path("runs/smol_math"),
        save_every=20,
    ),
    model=ModelConfig(name="models/smollm2-135m", dtype="bfloat16"),
    rollout=RolloutConfig(problems_per_step=16, group_size=8, max_new_tokens=48),
    # Its advantage is large where few completions are right: differences are learned, and the entropy falls later.
    algo=AlgoConfig("maxrl"),
    optim=OptimConfig(
        lr=2e-5, warmup_steps=5, schedule="linear", decay_steps=80, min_lr_ratio=0.1, tokens_per_microbatch=4096
    ),
    eval=EvalConfig(num_problems=512, samples=1, k=(1,), every=40, temperature=1.0),
)


if __name__ == "__main__":
    script(globals())
