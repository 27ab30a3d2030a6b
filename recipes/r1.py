"""DeepSeek-R1 (arXiv:2501.12948) on two cores: R1-Zero beside R1, and the distillation of R1 into a smaller model.

The base model answers two kinds of prompts: sums, worked in mixed Arabic and Chinese numerals and often without tags,
and requests (`note 347.`) without working, about half of both right.

zero        R1-Zero: RL from the base model, rewards by rules only: the answer is right, the tags are there
cold        R1 begins: the base model, fine-tuned on a few readable demonstrations
reason      RL with the same rules and a consistency reward: the share of the working in the numerals of the problem
best        rejection sampling from `reason`: sums that are right, tagged and in one kind of numerals; any replies
tuned       the base model again, fine-tuned on these
reward      a reward model of replies to requests, which stands in for helpfulness
r1          RL on both kinds of prompts: rules for sums, the reward model for requests
distilled   a smaller base model (`small`), fine-tuned on what r1 samples; beside it `small-zero`, RL on the smaller one

Seen with seeds 2, 3 and 4, held-out sums right: `base` .46, .40, .44; R1-Zero .79, .55, .73, of which only .30, .22,
.05 keep to one kind of numerals; `reason` .75, .40, .50, of which .99; `tuned` .96, .61, .78; `r1` .97, .73, .86, and
of the requests .57, .65, .71 right in `tuned` and .83, .93, .95 in `r1`; a smaller base .04, .02, .04, RL on it .01,
.02, .06 (it learns the tags only), `distilled` .96, .86, .89. So the cold start costs some sums at first and buys the
language; rejection sampling gains most; distillation does what RL on the smaller model cannot. With twice the learning
rate RL unlearned sums on seed 1 (R1-Zero .41 to .20).

    rlvr pipeline r1
    rlvr pipeline r1 --seeds 0 1 2 --out-dir runs/r1_seeds
    rlvr pipeline r1 --set r1.optim.lr=1e-4

`--model` replaces both base models: name the smaller one with `--set small.model.name=org/small` too.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.commands.train import script
from rlvr.config import AlgoConfig, Config, EvalConfig, ModelConfig, OptimConfig, RolloutConfig, RunConfig, SFTConfig
from rlvr.config.pipeline import PipelineConfig
from rlvr.config.reward_model import PairsConfig, RewardConfig, RewardTrainConfig

if TYPE_CHECKING:
    from rlvr.commands.sample import SampleArgs
    from rlvr.pipeline.stages import Made, Stages

CONFIG = PipelineConfig(out_dir=Path("runs/r1"))
SUMS, BOTH = "packs=bilingual_sums", "packs=bilingual_sums:3,notes:1"
FEW = "bilingual_sums.num_demonstrations=2000,notes.num_demonstrations=500"
READABLE = f"{FEW},bilingual_sums.mixing=0,bilingual_sums.untagged=0"
UNSHOWN = "options=bilingual_sums.num_demonstrations=0"  # stages that read no demonstrations begin faster without
RULES = f"{UNSHOWN},bilingual_sums.reward=consistent"
ZERO = f"{UNSHOWN},bilingual_sums.reward=zero"
BASE = Config(
    run=RunConfig(task="mixture", task_option=(BOTH,), save_every=20),
    model=ModelConfig(name="tiny", tiny_tokens="</?(?:think|answer)>|."),
    sft=SFTConfig(steps=1000, batch_size=16, lr=1.5e-3),
    rollout=RolloutConfig(problems_per_step=16, group_size=16, max_new_tokens=44),
    algo=AlgoConfig("grpo"),
    optim=OptimConfig(lr=2e-4, schedule="linear", decay_steps=60, min_lr_ratio=0.1, tokens_per_microbatch=4096),
    eval=EvalConfig(num_problems=128, samples=8, k=(1, 8), every=0),
)
REWARD = RewardConfig(
    pairs=PairsConfig(task="notes", num_problems=300, samples=8, max_new_tokens=24, held_out=0.15),
    train=RewardTrainConfig(epochs=3, batch_size=16),
    optim=OptimConfig(lr=1e-3, schedule="linear", min_lr_ratio=0.05, warmup_steps=10),
)


def stages(pipeline: Stages) -> None:
    """R1-Zero; R1 in its four stages; distillation. `measure_by_packs` adds what pass@1 of a stage does not say."""
    base = pipeline.sft("base", BASE)
    zero = pipeline.train("zero", rl(SUMS, ZERO), policy=base)
    measure_by_packs(pipeline, "zero", zero)

    cold = pipeline.sft("cold", tuned_on(BOTH, f"options={READABLE}", steps=60), policy=base)
    reason = pipeline.train("reason", rl(SUMS, RULES), policy=cold)
    measure_by_packs(pipeline, "reason", reason)
    best = pipeline.sample("best", sampling(problems=1200, samples=4), policy=reason)
    tuned = pipeline.sft("tuned", tuned_on(BOTH, UNSHOWN, steps=300), policy=base, data=best)
    reward = pipeline.reward_model("reward", REWARD, policy=base)
    learned = ("verifiers=notes=reward_model", f"verifier_options=notes.model={reward.path}")
    r1 = pipeline.train("r1", rl(BOTH, RULES, *learned), policy=tuned)
    measure_by_packs(pipeline, "r1", r1)

    data = pipeline.sample("data", sampling(problems=4000, samples=1), policy=r1)
    smaller = dataclasses.replace(BASE.model, tiny_layers=2, tiny_width=64)
    small = pipeline.sft("small", dataclasses.replace(BASE, model=smaller))
    pipeline.train("small-zero", rl(SUMS, ZERO), policy=small)
    pipeline.sft("distilled", tuned_on(BOTH, UNSHOWN, steps=600), policy=small, data=data)


def rl(*options: str) -> Config:
    return dataclasses.replace(BASE, run=dataclasses.replace(BASE.run, task_option=options, steps=60))


def tuned_on(*options: str, steps: int) -> Config:
    """Return fine-tuning of so many steps on a mixture with these options."""
    run = dataclasses.replace(BASE.run, task_option=options)
    return dataclasses.replace(BASE, run=run, sft=dataclasses.replace(BASE.sft, steps=steps))


def sampling(problems: int, samples: int) -> SampleArgs:
    """Return the sampling of sums that are right in all respects, and of any replies to requests."""
    from rlvr.commands.sample import SampleArgs

    options = (BOTH, f"{UNSHOWN},bilingual_sums.reward=all", "verifiers=notes=length")
    args = SampleArgs(model="", task="mixture", task_option=options, keep="correct", min_score=1.0)
    return dataclasses.replace(args, max_problems=problems, samples=samples, max_new_tokens=44)


def measure_by_packs(pipeline: Stages, name: str, policy: Made) -> None:
    """Measure by the exact verifiers of both packs, and how many held-out sums are worked in one kind of numerals."""
    from rlvr.commands.eval import EvalArgs

    args = EvalArgs(
        model="", task="mixture", task_option=(BOTH, UNSHOWN), max_problems=128, samples=4, max_new_tokens=44
    )
    pipeline.evaluate(f"{name}-both", args, policy=policy)
    language = dataclasses.replace(
        args, task="bilingual_sums", task_option=("num_demonstrations=0",), verifier="language_consistency"
    )
    pipeline.evaluate(f"{name}-language", language, policy=policy)


if __name__ == "__main__":
    script(globals())
