"""A tiny reward model on a CPU: pairs sampled from the tiny policy, told apart by the math verifier.

The policy of `tiny_math` is fine-tuned as there (or taken from --pairs.policy), sampled on the arithmetic pack's
problems, and the math verifier says which completions are right; a copy of the policy with a new head then learns to
tell them apart. Its accuracy on pairs of held-out problems is measured at the end: above nine in ten, after about a
minute of fine-tuning and a hundred seconds of sampling and training on two cores.

    rlvr rm rm_pairs
    rlvr rm rm_pairs --pairs.policy runs/tiny_math/start --run.seed 1 --run.out-dir runs/rm_pairs_1    # another model
    rlvr rm rm_pairs --pairs.file pairs.jsonl --model.name runs/tiny_math/start
    rlvr train rm_grpo
"""

import dataclasses
import os
from pathlib import Path

from rlvr.commands.train import script
from rlvr.config import OptimConfig
from rlvr.config.reward_model import PairsConfig, RewardConfig, RewardRunConfig, RewardTrainConfig
from rlvr.recipes import tiny_math

CONFIG = RewardConfig(
    run=RewardRunConfig(out_dir=Path("runs/rm_pairs")),
    pairs=PairsConfig(task="arithmetic", num_problems=3584, samples=6, max_new_tokens=42, held_out=0.15),
    train=RewardTrainConfig(epochs=3, batch_size=16),
    optim=OptimConfig(lr=1e-3, schedule="linear", min_lr_ratio=0.05, warmup_steps=10),
)


def main(config: RewardConfig = CONFIG) -> None:
    from rlvr.commands.rm.launch import launch_reward_model, prepare, with_policy

    if config.pairs.file is None and config.pairs.policy is None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(
                "with several processes name the policy to sample from: --pairs.policy FOLDER (`rlvr sft tiny_math` "
                "makes one, OUT_DIR/start), or --pairs.file"
            )
        config = with_policy(config, policy_folder(config) / "start")
        prepare(config)  # raises, before a minute of fine-tuning
        tiny_policy(config)
    launch_reward_model(config)


def policy_folder(config: RewardConfig) -> Path:
    """Return the folder of the run that fine-tunes the policy."""
    return config.run.out_dir.with_name(f"{config.run.out_dir.name}_policy_{config.run.seed}")


def tiny_policy(config: RewardConfig) -> Path:
    """Fine-tune the policy that `tiny_math` starts from, where it is not there yet; return its folder."""
    from rlvr.launch import launch

    base, folder = tiny_math.CONFIG, policy_folder(config)
    run = dataclasses.replace(base.run, out_dir=folder, steps=0, seed=config.run.seed)
    model = dataclasses.replace(base.model, device=config.model.device)
    launch(dataclasses.replace(base, run=run, model=model, eval=dataclasses.replace(base.eval, every=-1)))
    return folder / "start"


if __name__ == "__main__":
    script(globals())
