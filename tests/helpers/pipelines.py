"""The pipelines of the recipes, cut down to seconds: settings for `--set`."""

from __future__ import annotations

SFT = ("eval.every=-1", "rollout.workers=1")
RL = (
    "run.steps=2",
    "rollout.workers=1",
    "eval.every=-1",
    "run.save_every=1",
    "rollout.problems_per_step=4",
    "rollout.group_size=4",
)


FEW_SHOWN = (
    "run.task_option=packs=bilingual_sums:3,notes:1 "
    "options=bilingual_sums.num_demonstrations=200,notes.num_demonstrations=50"
)


def of(stage: str, *settings: str) -> tuple[str, ...]:
    """Return the settings of a stage."""
    return tuple(f"{stage}.{setting}" for setting in settings)


FEW = "num_train=64 num_test=8 num_demonstrations=400"


def labelled(stage: str, labels: str) -> tuple[str, ...]:
    """Return the settings of a reward model on a few pairs of llama2: even digits are preferred to none."""
    return (
        *of(stage, "pairs.num_problems=24", "pairs.max_new_tokens=8", "pairs.held_out=0.3", "pairs.workers=1"),
        *of(stage, "pairs.verifier=regex", "pairs.verifier_option=pattern=[02468] match=search"),
        f"{stage}.pairs.task_option=labels={labels} {FEW}",
    )


SECRET = "num_train=24 num_test=8 num_demonstrations=200"
ANSWERED = "num_train=24 num_test=1 num_demonstrations=1"
CONSTITUTIONAL = (
    *(f"{stage}.run.task_option={SECRET}" for stage in ("helpful", "sl", "judge", "rl")),
    *(f"{stage}.task_option={ANSWERED} which=private" for stage in ("revise", "label")),
    f"answers.task_option={ANSWERED} which=public",
    f"helpful_pairs.pairs.task_option={ANSWERED}",
    "helpful_pairs.pairs.num_problems=12",
    "helpful_pairs.pairs.verifier=regex",
    "helpful_pairs.pairs.verifier_option=pattern=7.*7 match=search",
    "helpful.sft.steps=12",
    "sl.sft.steps=4",
    "judge.sft.steps=8",
    *(f"{stage}.eval.every=-1" for stage in ("helpful", "sl", "judge")),
    "label.confidence=0.5",
    "reward.train.epochs=1",
    "rl.run.steps=2",
    "rl.rollout.problems_per_step=4",
    "rl.rollout.group_size=4",
    "rl.eval.num_problems=8",
    "rl.eval.every=0",
)

QUICK: dict[str, tuple[str, ...]] = {
    "constitutional": CONSTITUTIONAL,
    "instructgpt": (
        *of("sft", "sft.steps=10", *SFT),
        *of("reward", "pairs.num_problems=12", "pairs.workers=1", "pairs.verifier=regex", "train.epochs=1"),
        "reward.pairs.verifier_option=pattern=7.*7 match=search",
        *of("ppo", *RL),
        *of("ppo-differences", "max_problems=4", "samples=1", "workers=1"),
    ),
    "r1": (
        *(
            name
            for stage in ("base", "small")
            for name in of(stage, FEW_SHOWN, "sft.steps=4", "sft.batch_size=8", *SFT)
        ),
        *(
            name
            for stage in ("cold", "tuned", "distilled")
            for name in of(stage, "sft.steps=2", "sft.batch_size=8", *SFT)
        ),
        *(name for stage in ("zero", "reason", "r1", "small-zero") for name in of(stage, *RL)),
        *(
            name
            for stage in ("best", "data")
            for name in of(
                stage, "max_problems=12", "samples=2", "workers=1", "keep=best", "min_score=-9", "max_new_tokens=80"
            )
        ),
        *of(
            "reward",
            "pairs.num_problems=12",
            "pairs.workers=1",
            "pairs.verifier=regex",
            "train.epochs=1",
            "pairs.max_new_tokens=40",
        ),
        "reward.pairs.verifier_option=pattern=7 match=search",
        *(
            name
            for stage in ("zero", "reason", "r1")
            for kind in ("both", "language")
            for name in of(f"{stage}-{kind}", "max_problems=4", "samples=1", "workers=1")
        ),
    ),
    "llama2": (
        *of("sft", f"run.task_option={FEW}", "sft.steps=5", *SFT),
        *(name for number in (1, 2) for name in labelled(f"help-{number}", "helpful")),
        *(name for number in (1, 2) for name in labelled(f"safe-{number}", "safe")),
        *(
            name
            for stage in ("best-1", "best-2")
            for name in of(stage, f"task_option={FEW}", "max_problems=8", "samples=3", "max_new_tokens=8", "workers=1")
        ),
        *(name for stage in ("tune-1", "tune-2") for name in of(stage, f"run.task_option={FEW}", "sft.steps=2", *SFT)),
        *of("ppo", f"run.task_option={FEW}", "rollout.max_new_tokens=8", *RL),
    ),
}
