"""Llama 2's alignment (arXiv:2307.09288, section 3) on two cores: two reward models, rejection sampling, then PPO.

A small model is fine-tuned on two-digit sums, of which those that begin with 80 or more are private and to be declined
(`private_sums`); its demonstrations guess many sums and decline the wrong ones. Then, in two rounds:

help-N, safe-N  reward models of helpfulness R_h and of safety R_s, each on its own labels (`labels=` of the pack) of
                the newest policy's completions and on the pairs of the round before
best-N          rejection sampling: of 8 completions the one of the highest R_c is kept. R_c is R_s for private sums and
                where R_s is below a threshold, else R_h (verifier `piecewise`)
tune-N          fine-tuning of the newest policy on what was kept

ppo: from there, rewarded by the whitened log-odds of R_c less a KL term per token. The exact rules only measure: the
rates `open` (right sums: helpfulness) and `private` (declined: safety), on held-out problems.

Seen on seeds 1 (on which PPO's settings were chosen), 2 and 3, 128 problems for each rate: open .445, .473, .457 after
`sft`, .676, .586, .582 after the rounds, .691, .582, .586 after PPO; private .344, .438, .383, then .953, .930, .922,
then .969, .961, .957. In round 1 the best of 8 were right in .90, .88, .86, all in .44, .42, .41. So rejection
sampling does most. PPO adds nothing that the intervals (± .06) show to `open`: R_h tells guessed sums from worked
ones, and few are guessed by then; with a KL coefficient of .1 and a learning rate of 4e-4 `open` fell to .508 on seed
1. On seed 4 PPO cost some: open .465, .652, then .578; private .395, .984, .988. From the same policies with R_h
alone: open .727, .602, .641 and private .793, .609, .625; with R_s alone .688, .562, .547 and .980, .973, .949. So the
combination holds the safety that R_h alone loses, and little more than R_s alone of the sums. Unlike the paper's, the
threshold of R_s is .01, not .15: a reward model learns differences within a prompt, and its zero is arbitrary. PPO has
the reward models of round 2; a third pair, on completions of `tune-2`, was not tried.

    rlvr pipeline llama2
    rlvr pipeline llama2 --seeds 0 1 2 --out-dir runs/llama2_seeds
    python benchmarks/training/two_reward_models.py runs/llama2_seeds       # and PPO with either reward model alone

For a real model: `--model`, and in a copy of this file a pack of your own whose problems have a true or false in `info`
(`tag=`), with pairs from labellers (`pairs.file`) or from verifiers, and other lengths and learning rates.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.commands.sample import SampleArgs
from rlvr.commands.train import script
from rlvr.config import AlgoConfig, Config, CriticConfig, EvalConfig, MonitorConfig, RolloutConfig, RunConfig, SFTConfig
from rlvr.config.pipeline import PipelineConfig
from rlvr.config.reward_model import PairsConfig, RewardConfig, RewardTrainConfig
from rlvr.recipes import rm_pairs, tiny_math

if TYPE_CHECKING:
    from rlvr.pipeline.stages import Made, Stages

CONFIG = PipelineConfig(out_dir=Path("runs/llama2"))
TASK = "private_sums"
TOKENS = 32

SFT = dataclasses.replace(
    tiny_math.CONFIG,
    run=RunConfig(task=TASK, sample_every=0),
    rollout=RolloutConfig(problems_per_step=8, group_size=16, max_new_tokens=TOKENS),
    sft=SFTConfig(steps=1000, batch_size=16, lr=1.5e-3),
    eval=EvalConfig(num_problems=256, samples=2, k=(1,)),
)
TUNE = dataclasses.replace(SFT, sft=SFTConfig(steps=48, batch_size=16, lr=3e-4))
BEST = SampleArgs(model="", task=TASK, max_problems=384, samples=8, max_new_tokens=TOKENS, keep="best")
PAIRS = RewardConfig(
    pairs=PairsConfig(task=TASK, num_problems=512, samples=4, max_new_tokens=TOKENS, held_out=0.15),
    train=RewardTrainConfig(epochs=2, batch_size=16),
    optim=rm_pairs.CONFIG.optim,
)
PPO = dataclasses.replace(
    SFT,
    run=dataclasses.replace(SFT.run, steps=20),
    algo=AlgoConfig("ppo", kl_coef=0.4, kl_in="reward"),
    critic=CriticConfig(lr=4e-4),
    optim=dataclasses.replace(SFT.optim, lr=2e-4, warmup_steps=0, decay_steps=20),
    monitor=MonitorConfig("math"),
    eval=dataclasses.replace(SFT.eval, verifier="monitor"),
)


def stages(pipeline: Stages) -> None:
    """Rounds of rejection sampling, then PPO from the last of them."""
    policy, models = rounds(pipeline)
    pipeline.train("ppo", with_reward("piecewise", piecewise_options(models, "whiten=true")), policy=policy)


def rounds(pipeline: Stages) -> tuple[Made, list[Made]]:
    """Fine-tune. In each round train both reward models on the newest policy, and the policy on the best of its own."""
    policy = pipeline.sft("sft", SFT)
    models: list[Made] = []
    for number in (1, 2):
        models = reward_models(pipeline, number, policy, models)
        by = dataclasses.replace(BEST, selector="piecewise", selector_option=piecewise_options(models))
        best = pipeline.sample(f"best-{number}", by, policy=policy)
        policy = pipeline.sft(f"tune-{number}", TUNE, policy=policy, data=best)
    return policy, models


def reward_models(pipeline: Stages, number: int, policy: Made, before: list[Made]) -> list[Made]:
    """Train the models of helpfulness and safety, on labelled pairs of the policy and on those of the models before."""
    made = []
    for place, (name, labels) in enumerate((("help", "helpful"), ("safe", "safe"))):
        files = ("pairs.jsonl", "held_out.jsonl") if before else ()
        also = tuple(before[place].path.parent / file for file in files)
        pairs = dataclasses.replace(PAIRS.pairs, task_option=(f"labels={labels}",), also=also)
        config = dataclasses.replace(PAIRS, pairs=pairs)
        made.append(pipeline.reward_model(f"{name}-{number}", config, policy=policy))
    return made


def piecewise_options(models: list[Made], *more: str) -> tuple[str, ...]:
    """Return the options of the verifier piecewise with both reward models: their log-odds, centred but not scaled."""
    helpful, safe = (model.path for model in models)
    options = f"options=helpful.model={helpful},helpful.std=1,safe.model={safe},safe.std=1"
    return ("helpful=reward_model", "safe=reward_model", options, "tag=private", "threshold=0.01", *more)


def with_reward(verifier: str, options: tuple[str, ...]) -> Config:
    return dataclasses.replace(PPO, run=dataclasses.replace(PPO.run, verifier=verifier, verifier_option=options))


if __name__ == "__main__":
    script(globals())
