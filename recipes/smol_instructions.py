"""Instructions that a program can check, for a real language model on a CPU: SmolLM2-135M-Instruct with GRPO.

Each prompt asks for a short text and one or two things about its form (no commas, a title, at most 40 words, ...). The
held-out prompts are of the same kinds and, apart, of kinds that are never trained (capital letters, a postscript, ...).
`rlvr eval` on `ifeval` then says what is left of it on the 541 prompts of IFEval. The recipe has not been run to its
end.

    rlvr fetch smollm2-135m models/smollm2-135m
    rlvr train smol_instructions
    rlvr eval --model runs/smol_instructions/checkpoints/step-000060 --task ifeval --k 1 --samples 1
"""

from pathlib import Path

from rlvr.commands.train import script
from rlvr.config import AlgoConfig, Config, EvalConfig, ModelConfig, OptimConfig, RolloutConfig, RunConfig

CONFIG = Config(
    run=RunConfig(
        task="mixture",
        task_option=("packs=checked_instructions,unseen_instructions",),
        steps=60,
        out_dir=Path("runs/smol_instructions"),
        save_every=20,
    ),
    model=ModelConfig(name="models/smollm2-135m"),
    rollout=RolloutConfig(problems_per_step=16, group_size=8, max_new_tokens=96),
    algo=AlgoConfig("grpo"),
    optim=OptimConfig(lr=1e-5, warmup_steps=5, tokens_per_microbatch=4096),
    eval=EvalConfig(num_problems=128, samples=1, k=(1,), every=20, temperature=1.0),
)


if __name__ == "__main__":
    script(globals())
