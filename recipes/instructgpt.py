"""InstructGPT (arXiv:2203.02155) on two cores: fine-tuning, a reward model on pairs, PPO against it with PPO-ptx.

Three stages on three-digit sums. `sft`: a model of 0.9M parameters is fine-tuned on demonstrations, of which many are
wrong. `reward`: its completions are told apart in pairs by the math verifier, which stands in for the labellers, and a
reward model learns their choice. `ppo`: PPO against the reward model, with a KL term per token in the reward and the
language-model loss on the demonstrations beside it; the verifier monitors, enters nothing, and measures pass@1. A KL
coefficient of .02, as InstructGPT's, lets this small policy find what the reward model overrates: pass@1 then falls.

    rlvr pipeline instructgpt
    rlvr pipeline instructgpt --seeds 0 1 2 --out-dir runs/instructgpt_seeds
    rlvr pipeline instructgpt --set ppo.algo.ptx-coef=0 --out-dir runs/instructgpt_without_mix
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.config import CriticConfig, MonitorConfig, PPOConfig
from rlvr.config.pipeline import PipelineConfig
from rlvr.recipes import rm_pairs, tiny_math

if TYPE_CHECKING:
    from rlvr.commands.stages import Stages

CONFIG = PipelineConfig(out_dir=Path("runs/instructgpt"))
PPO = dataclasses.replace(
    tiny_math.CONFIG,
    run=dataclasses.replace(tiny_math.CONFIG.run, verifier="reward_model", steps=40),
    algo=PPOConfig(kl_coef=0.2, kl_in="reward", ptx_coef=0.02, ptx_batch_size=16),
    critic=CriticConfig(lr=4e-4),
    monitor=MonitorConfig("math"),
    eval=dataclasses.replace(tiny_math.CONFIG.eval, verifier="monitor"),
)


def stages(pipeline: Stages) -> None:
    """Fine-tune, learn the reward, train against it."""
    start = pipeline.sft("sft", tiny_math.CONFIG)
    reward = pipeline.reward_model("reward", rm_pairs.CONFIG, policy=start)
    run = dataclasses.replace(PPO.run, verifier_option=(f"model={reward.path}",))
    pipeline.train("ppo", dataclasses.replace(PPO, run=run), policy=start)


def main(config: PipelineConfig = CONFIG) -> None:
    """Run the stages."""
    from rlvr.commands.stages import run_pipeline  # here, since it imports torch: `--help` is faster without

    run_pipeline(config, stages)


if __name__ == "__main__":
    from rlvr.commands.pipeline import script

    script(globals())
