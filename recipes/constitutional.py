"""Constitutional AI (arXiv:2212.08073) on two cores: critique and revision, a judge that reads principles, RL.

DOC
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.config import AlgoConfig, EvalConfig, ModelConfig, MonitorConfig, SFTConfig
from rlvr.config.pipeline import PipelineConfig
from rlvr.config.reward_model import PairsConfig
from rlvr.pipeline.constitution import Constitution
from rlvr.pipeline.judged_pairs import PAIRS as FILE
from rlvr.pipeline.judged_pairs import JudgedPairsArgs, judged, names_judge, verified
from rlvr.pipeline.revisions import RevisionArgs, revised
from rlvr.recipes import rm_pairs, tiny_math
from rlvr.tasks.generated import private_sums as world

if TYPE_CHECKING:
    from rlvr.pipeline.stages import Stages

CONFIG = PipelineConfig(out_dir=Path("runs/constitutional"))
PACK = dataclasses.replace(tiny_math.CONFIG.run, task="private_sums")
EVAL = EvalConfig(num_problems=256, samples=4, k=(1,), every=20)
HELPFUL = dataclasses.replace(
    tiny_math.CONFIG,
    run=PACK,
    model=ModelConfig(name="tiny", tiny_tokens="[a-z]+|."),
    sft=SFTConfig(steps=600, batch_size=16, lr=1.5e-3),
    rollout=dataclasses.replace(tiny_math.CONFIG.rollout, max_new_tokens=36),
    eval=EVAL,
)
REVISED = dataclasses.replace(HELPFUL, sft=SFTConfig(steps=150, batch_size=16, lr=5e-4))
JUDGE = dataclasses.replace(
    HELPFUL,
    run=dataclasses.replace(PACK, task="judged_sums"),
    sft=SFTConfig(steps=240, batch_size=16, lr=1.5e-3),
    eval=dataclasses.replace(EVAL, samples=1, temperature=0.0),
)
PRINCIPLES = Constitution(world.REQUESTS, world.PRINCIPLES)
PUBLIC, PRIVATE = ("which=public",), ("which=private",)
PAIRS = PairsConfig(
    task="private_sums", task_option=PUBLIC, num_problems=2400, samples=6, per_problem=3, max_new_tokens=36
)
RL = dataclasses.replace(
    HELPFUL,
    run=dataclasses.replace(PACK, verifier="reward_model", steps=40),
    algo=AlgoConfig("grpo", kl_coef=0.1),
    monitor=MonitorConfig("regex"),
    eval=dataclasses.replace(EVAL, verifier="monitor"),
)


REVISE = RevisionArgs(
    task="private_sums",
    task_option=PRIVATE,
    max_problems=1024,
    max_new_tokens=36,
    revisions=2,
    critique_form=world.CRITIQUE_FORM,
    revision_form=world.REVISION_FORM,
)
LABEL = JudgedPairsArgs(
    task="private_sums",
    task_option=PRIVATE,
    max_problems=1024,
    max_new_tokens=36,
    confidence=0.6,
)


def stages(pipeline: Stages) -> None:
    """Answer, criticize and revise, and learn the revisions; label pairs by principles, learn the reward, and do RL."""
    from rlvr.commands.sample import DATA, SampleArgs  # here, since it imports torch: `--help` is faster without

    start = pipeline.sft("helpful", HELPFUL)
    own = SampleArgs(
        model="", task="private_sums", task_option=PUBLIC, max_problems=1024, max_new_tokens=36, samples=1, keep="best"
    )
    answers = pipeline.sample("answers", own, policy=start)
    revise = dataclasses.replace(REVISE, add=answers.path / DATA)
    policy = pipeline.sft(
        "sl", REVISED, policy=start, data=revised(pipeline, "revise", revise, PRINCIPLES, policy=start)
    )

    people = verified(pipeline, "helpful_pairs", dataclasses.replace(rm_pairs.CONFIG, pairs=PAIRS), policy=policy)
    label = dataclasses.replace(LABEL, add=people.path / FILE)
    judge = None
    if not names_judge(pipeline.changed("label", label)):
        judge = pipeline.sft("judge", JUDGE)
        label = dataclasses.replace(label, form=world.JUDGE_FORM, lead="", separators=world.SEPARATORS)
    pairs = judged(pipeline, "label", label, PRINCIPLES, policy=policy, judge=judge)
    learnt = dataclasses.replace(rm_pairs.CONFIG, pairs=dataclasses.replace(PAIRS, file=pairs.path / FILE))
    reward = pipeline.reward_model("reward", learnt, policy=policy)
    run = dataclasses.replace(RL.run, verifier_option=(f"model={reward.path}",))
    pipeline.train("rl", dataclasses.replace(RL, run=run), policy=policy)


def main(config: PipelineConfig = CONFIG) -> None:
    """Run the stages."""
    from rlvr.pipeline.stages import run_pipeline  # here, since it imports torch: `--help` is faster without

    run_pipeline(config, stages)


if __name__ == "__main__":
    from rlvr.commands.pipeline import script

    script(globals())
