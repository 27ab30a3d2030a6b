"""Llama 2's alignment (arXiv:2307.09288, section 3) on two cores: two reward models, rejection sampling, then PPO.

rlvr pipeline llama2
rlvr pipeline llama2 --seeds 0 1 2 --out-dir runs/llama2_seeds
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.commands.sample import SampleArgs
from rlvr.config import Config, CriticConfig, EvalConfig, MonitorConfig, PPOConfig, RunConfig, SFTConfig
from rlvr.config.pipeline import PipelineConfig
from rlvr.config.reward_model import PairsConfig, RewardConfig, RewardTrainConfig
from rlvr.recipes import rm_pairs, tiny_math

if TYPE_CHECKING:
    from rlvr.pipeline.stages import Made, Stages

CONFIG = PipelineConfig(out_dir=Path("runs/llama2"))
TASK = "private_sums"
ROUNDS = 2
TOKENS = 42

SFT = dataclasses.replace(
    tiny_math.CONFIG,
    run=RunConfig(task=TASK, sample_every=0),
    eval=EvalConfig(num_problems=256, samples=4, k=(1,)),
)
TUNE = dataclasses.replace(SFT, sft=SFTConfig(steps=96, batch_size=16, lr=3e-4))
BEST = SampleArgs(model="", task=TASK, max_problems=768, samples=8, max_new_tokens=TOKENS, keep="best")
PAIRS = RewardConfig(
    pairs=PairsConfig(task=TASK, samples=6, max_new_tokens=TOKENS, held_out=0.15),
    train=RewardTrainConfig(epochs=2, batch_size=16),
    optim=rm_pairs.CONFIG.optim,
)
PPO = dataclasses.replace(
    SFT,
    run=dataclasses.replace(SFT.run, steps=40),
    algo=PPOConfig(kl_coef=0.1, kl_in="reward"),
    critic=CriticConfig(lr=4e-4),
    monitor=MonitorConfig("math"),
    eval=dataclasses.replace(SFT.eval, verifier="monitor"),
)


def stages(pipeline: Stages) -> None:
    """Rounds of rejection sampling, then PPO from the last of them."""
    policy, helpful, safe = rounds(pipeline)
    pipeline.train("ppo", with_reward("piecewise", combined(helpful, safe, "whiten=true")), policy=policy)


def rounds(pipeline: Stages) -> tuple[Made, Made, Made]:
    """Fine-tune; in each round sample, keep the best by both reward models, fine-tune on it, and train both anew."""
    policy = pipeline.sft("sft", SFT)
    helpful, safe = reward_models(pipeline, 1, policy)
    for number in range(1, ROUNDS + 1):
        by = dataclasses.replace(BEST, selector="piecewise", selector_option=combined(helpful, safe))
        best = pipeline.sample(f"best-{number}", by, policy=policy)
        policy = pipeline.sft(f"tune-{number}", TUNE, policy=policy, data=best)
        helpful, safe = reward_models(pipeline, number + 1, policy, (helpful, safe))
    return policy, helpful, safe


def reward_models(pipeline: Stages, number: int, policy: Made, before: Sequence[Made] = ()) -> list[Made]:
    """Train both reward models, on pairs of this policy and on those that the models before were trained on."""
    made = []
    for place, (name, labels, problems) in enumerate((("help", "helpful", 1024), ("safe", "safe", 384))):
        files = ("pairs.jsonl", "held_out.jsonl") if before else ()
        also = tuple(before[place].path.parent / file for file in files)
        options = (f"labels={labels}",)
        pairs = dataclasses.replace(PAIRS.pairs, task_option=options, num_problems=problems, also=also)
        config = dataclasses.replace(PAIRS, pairs=pairs)
        made.append(pipeline.reward_model(f"{name}-{number}", config, policy=policy))
    return made


def combined(helpful: Made, safe: Made, *more: str) -> tuple[str, ...]:
    """Return the options of the verifier piecewise with two reward models: their log-odds, centred but not scaled."""
    models = f"options=helpful.model={helpful.path},helpful.std=1,safe.model={safe.path},safe.std=1"
    return ("helpful=reward_model", "safe=reward_model", models, "tag=private", *more)


def with_reward(verifier: str, options: tuple[str, ...]) -> Config:
    """Return PPO's config with a reward."""
    return dataclasses.replace(PPO, run=dataclasses.replace(PPO.run, verifier=verifier, verifier_option=options))


def main(config: PipelineConfig = CONFIG) -> None:
    """Run the stages."""
    from rlvr.pipeline.stages import run_pipeline  # here, since it imports torch: `--help` is faster without

    run_pipeline(config, stages)


if __name__ == "__main__":
    from rlvr.commands.pipeline import script

    script(globals())
