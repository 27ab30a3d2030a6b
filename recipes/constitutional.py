"""Constitutional AI (arXiv:2212.08073) on two cores: critique and revision, a judge that reads principles, RL.

The world: two-digit sums, of which those from 80 on are private (pack `secret_sums`). Exact rules measure, and enter
nothing: `harmless`, the share of private sums that are declined without a digit; `helpful`, that of other sums right.

helpful        a model of 0.9M parameters that answers everything, and criticizes and revises when it is asked
answers        its answers to public sums, as they are
revise         its answers to private sums, criticized and revised by it twice, by requests drawn from a list
sl             fine-tuned on the revisions and the answers
helpful_pairs  its completions of public sums in pairs, told apart by the rule, which stands in for people
judge          another tiny model, fine-tuned on comparisons whose labels are known by rules, a tenth of them wrong
label          completions of private sums in pairs, by the judge: a principle drawn for each, both orders, the mean
reward         a reward model on both kinds of pairs
rl             GRPO against it

Seen with seeds 1, 2 and 3, on held-out problems: harmless 0 to begin with; .64, .54, .69 and .86, .79, .90 after one
and two revisions (of training problems); .84, .75, .90 after `sl`, .93, .91, .90 after `rl` (intervals ± .04). Helpful
.43, .62, .60, then .31, .51, .49, then .30, .49, .42 (± .06): fine-tuning on the model's own answers costs some, and
RL gives none of it back, since the reward model tells .74, .72, .67 of held-out pairs apart, and most private ones.
Hence the KL coefficient of 1: with .1, twice the learning rate and 40 steps RL found wrong sums that are overrated,
and helpful fell to .06 [.04, .11] (seed 0). The judge shows how a judge's errors pass on, not how good a real one is.
It is right on .99, .98, .92 of comparisons like those it learned, and .99, .96, .98 of its labels are the rule's where
that prefers one. Its orders agree on .78, .79, .72; where they do not, most often both completions tell what is
private, and neither is better. Seed 4 shows what a weak judge does: its orders agree on .49, the reward model tells .67
apart, harmless is .69 after `sl` and .64 after `rl` (.77 halfway), helpful .56, .41, .37.

    rlvr pipeline constitutional
    rlvr pipeline constitutional --seeds 0 1 2 --out-dir runs/constitutional_seeds
    rlvr pipeline constitutional --set revise.revisions=1 --out-dir runs/constitutional_one_revision
    rlvr pipeline constitutional --set "label.judge_option=url=http://127.0.0.1:8000/v1 model=NAME"

With real models: `--model org/name --set helpful.sft.steps=0` begins with a model that helps already, and texts are
messages where it has a chat template; `label.judge=org/name` is a judge in this process, `revise.constitution` and
`label.constitution` are files of requests and principles, and each stage's task, data and lengths are settings.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.commands.train import script
from rlvr.config import AlgoConfig, EvalConfig, ModelConfig, MonitorConfig, RolloutConfig, SFTConfig
from rlvr.config.pipeline import PipelineConfig
from rlvr.config.reward_model import PairsConfig
from rlvr.pipeline.judged_pairs import PAIRS as FILE
from rlvr.pipeline.judged_pairs import JudgedPairsArgs, label_by_judge, label_by_verifier, names_judge
from rlvr.pipeline.revisions import RevisionArgs, revise_answers
from rlvr.pipeline.sampled import Constitution
from rlvr.recipes import rm_pairs, tiny_math
from rlvr.tasks.generated import private_sums as world

if TYPE_CHECKING:
    from rlvr.pipeline.stages import Stages

CONFIG = PipelineConfig(out_dir=Path("runs/constitutional"))
PACK = dataclasses.replace(tiny_math.CONFIG.run, task="secret_sums")
EVAL = EvalConfig(num_problems=256, samples=4, k=(1,), every=20)
HELPFUL = dataclasses.replace(
    tiny_math.CONFIG,
    run=PACK,
    model=ModelConfig(name="tiny", tiny_tokens="[a-z]+|."),
    sft=SFTConfig(steps=600, batch_size=16, lr=1.5e-3),
    rollout=RolloutConfig(problems_per_step=16, group_size=16, max_new_tokens=36),
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
    task="secret_sums", task_option=PUBLIC, num_problems=2400, samples=6, per_problem=3, max_new_tokens=36
)
RL = dataclasses.replace(
    HELPFUL,
    run=dataclasses.replace(PACK, verifier="reward_model", steps=30),
    algo=AlgoConfig("grpo", kl_coef=1.0),
    optim=dataclasses.replace(tiny_math.CONFIG.optim, lr=2e-4, warmup_steps=0),
    monitor=MonitorConfig("regex"),
    eval=dataclasses.replace(EVAL, every=10, verifier="monitor"),
)


REVISE = RevisionArgs(
    task="secret_sums",
    task_option=PRIVATE,
    max_problems=1024,
    max_new_tokens=36,
    revisions=2,
    critique_form=world.CRITIQUE_FORM,
    revision_form=world.REVISION_FORM,
)
LABEL = JudgedPairsArgs(
    task="secret_sums",
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
        model="", task="secret_sums", task_option=PUBLIC, max_problems=1024, max_new_tokens=36, samples=1, keep="best"
    )
    answers = pipeline.sample("answers", own, policy=start)
    revise = dataclasses.replace(REVISE, add=answers.path / DATA)
    policy = pipeline.sft(
        "sl", REVISED, policy=start, data=revise_answers(pipeline, "revise", revise, PRINCIPLES, policy=start)
    )

    people = label_by_verifier(
        pipeline, "helpful_pairs", dataclasses.replace(rm_pairs.CONFIG, pairs=PAIRS), policy=policy
    )
    label = dataclasses.replace(LABEL, add=people.path / FILE)
    judge = None
    if not names_judge(pipeline.with_flags("label", label)):
        judge = pipeline.sft("judge", JUDGE)
        label = dataclasses.replace(label, form=world.JUDGE_FORM, lead="", separators=world.SEPARATORS)
    pairs = label_by_judge(pipeline, "label", label, PRINCIPLES, policy=policy, judge=judge)
    learnt = dataclasses.replace(rm_pairs.CONFIG, pairs=dataclasses.replace(PAIRS, file=pairs.path / FILE))
    reward = pipeline.reward_model("reward", learnt, policy=policy)
    run = dataclasses.replace(RL.run, verifier_option=(f"model={reward.path}",))
    pipeline.train("rl", dataclasses.replace(RL, run=run), policy=policy)


if __name__ == "__main__":
    script(globals())
