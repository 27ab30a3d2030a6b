"""The groups run, curriculum, rollout, eval, monitor and sft: what a run does, and what it measures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from .settings import (
    ADVANCED,
    CORRELATION,
    COUNT,
    COUNT_OR_NONE,
    LEARNING_RATE,
    MOST,
    POSITIVE,
    POSITIVE_SHARE,
    RESUMABLE,
    SECONDS,
    SHARE,
    WEIGHT,
    Bound,
    Group,
    Rules,
    Used,
)
from .shared import (
    EnvironmentSettings,
    Ks,
    PassKSettings,
    Samples,
    SamplingSettings,
    SeedSetting,
    TaskSettings,
    TurnSettings,
    VerifierSettings,
)

WITH_TRACKERS = Used(lambda config: len(config.run.trackers) > 0, "with --run.trackers")
WITH_EVALUATIONS = Used(lambda config: config.eval.every >= 0, "with --eval.every 0 or more")


@dataclass(frozen=True)
class RunConfig(SeedSetting, EnvironmentSettings, TaskSettings):
    """What is trained on, for how long, and where the results are written."""

    leave_out: Annotated[Path | None, ADVANCED] = None
    """File that names problems not to train on: each line is an id, or a JSON object with one, as in the file that
    `rlvr audit --against ... --found FILE` writes."""
    out_dir: Annotated[Path, RESUMABLE] = Path("runs/run")
    """Output folder. A run that is already in it is resumed."""
    start_from: Annotated[Path | None, ADVANCED] = None
    """Checkpoint of another run, or that run's folder for its last one. This run begins with its weights and tokenizer,
    in place of model.name and of the fine-tuning; the optimizer begins anew."""
    steps: Annotated[int, COUNT_OR_NONE, RESUMABLE] = 100
    """Training steps; each samples one batch of rollouts and trains on it."""
    save_every: Annotated[int, COUNT_OR_NONE, RESUMABLE] = 25
    """Steps between checkpoints; the last step is always saved. 0: only the last."""
    async_save: Annotated[bool, ADVANCED, RESUMABLE] = False
    """Write checkpoints in a thread while the training goes on, from a copy in CPU memory."""
    stall_timeout: Annotated[float, SECONDS, ADVANCED, RESUMABLE] = 1800.0
    """Seconds that a rank may be without progress while others wait for it. Then all end with a line that names it."""
    keep_checkpoints: Annotated[int, COUNT, ADVANCED, RESUMABLE] = 2
    """Number of checkpoints to keep; older ones are deleted."""
    keep_best: Annotated[bool, ADVANCED, WITH_EVALUATIONS, RESUMABLE] = True
    """Also keep the checkpoint with the best held-out pass@1; it is saved as soon as it is measured."""
    overwrite: Annotated[bool, RESUMABLE] = False
    """Delete the run that is in out_dir and start again; files that no run wrote stay."""
    trackers: Annotated[tuple[str, ...], RESUMABLE] = ()
    """Experiment trackers: tensorboard, wandb, trackio, mlflow (through Accelerate)."""
    tracker_project: Annotated[str, WITH_TRACKERS, RESUMABLE] = "rlvr"
    """Project name in the trackers (tensorboard: a folder in out_dir)."""
    tracker_name: Annotated[str | None, WITH_TRACKERS, RESUMABLE] = None
    """Run name in the trackers. None: the name of out_dir."""
    sample_every: Annotated[int, COUNT_OR_NONE, ADVANCED, RESUMABLE] = 10
    """Every so many steps a rollout is printed to the terminal, and rollouts and histograms are sent to the trackers.
    0: never."""
    token_values: Annotated[int, COUNT_OR_NONE, ADVANCED, RESUMABLE] = 8
    """Number of rollouts of each step, the first that are trained on, for which rollouts.jsonl holds two values of each
    token: the policy's entropy, and the trainer's logprob minus the sampler's. The run's page colours tokens by them.
    0: none."""
    shuffle_rewards: Annotated[bool, ADVANCED] = False
    """Control experiment: permute the rewards within each batch, so that they carry no information."""
    dry_run: Annotated[bool, RESUMABLE] = False
    """Check the settings, the task and the tokenizer, show the first prompt, and exit without loading weights or
    writing anything (short: --dry-run)."""


WITH_SIGNAL = Used(lambda config: config.curriculum.draw == "signal", "with --curriculum.draw signal")
WITH_RATES = Used(lambda config: config.curriculum.tracks, "with --curriculum.draw signal or --curriculum.profile")


@dataclass(frozen=True)
class CurriculumConfig(Group):
    """Which problems are trained on, by their pass rates: the mean score p of a problem's completions."""

    profile: Annotated[Path | None, ADVANCED, RESUMABLE] = None
    """File with the problems' pass rates before the run: profile.jsonl, which `rlvr profile` writes."""
    pass_rate: Annotated[tuple[float, ...], SHARE, ADVANCED] = (0.0, 1.0)
    """Lowest and highest pass rate, in the profile, of the problems that are trained on. Problems that are not in the
    profile are left out, unless the numbers are 0 and 1."""
    draw: Annotated[Literal["epochs", "signal"], ADVANCED] = "epochs"
    """How problems are drawn. epochs: each once before any comes again. signal: with a probability in proportion to
    the expected p(1-p), from the profile and the run's own outcomes. The run then maximises the mean reward under that
    distribution, which follows the policy, and not the mean over all problems."""
    floor: Annotated[float, SHARE, ADVANCED, WITH_SIGNAL] = 0.1
    """Share of the probability that is spread evenly over all problems, so that each can be drawn."""
    half_life: Annotated[float, POSITIVE, ADVANCED, WITH_RATES] = 50.0
    """Steps after which an outcome, or the profile, counts only half, since the policy has changed."""

    def rules(self, at: str) -> Rules:
        low_high = len(self.pass_rate) == 2 and self.pass_rate[0] <= self.pass_rate[1]
        shown = " ".join(f"{rate:g}" for rate in self.pass_rate)
        return [
            *super().rules(at),
            (low_high, f"{at}pass_rate {shown}: expected two numbers, the lowest pass rate and the highest"),
            (
                self.profile is not None or not self.filters,
                f"{at}pass_rate {shown} without a profile to take the pass rates from; set --{at}profile too",
            ),
        ]

    @property
    def filters(self) -> bool:
        """Whether a range of pass rates was asked for."""
        return tuple(self.pass_rate) != (0.0, 1.0)

    @property
    def tracks(self) -> bool:
        """Whether the run keeps pass rates: to draw by them, or to predict the share of groups with signal."""
        return self.draw == "signal" or self.profile is not None


WITH_MONITOR = Used(lambda config: config.monitor is not None, "with --monitor NAME")
EVERY_SOME_STEPS = Used(lambda config: config.eval.every > 0, "with --eval.every 1 or more")


@dataclass(frozen=True)
class EvalConfig(PassKSettings):
    """Evaluation on held-out problems during training."""

    USES: ClassVar = dict.fromkeys(("samples", "k", "temperature", "threshold"), WITH_EVALUATIONS)
    MAY_CHANGE: ClassVar = True  # what is measured, and what a fall leads to from then on

    every: Annotated[int, Bound(-1, MOST)] = 0
    """Steps between evaluations. 0: only before the first and after the last step. -1: never."""
    patience: Annotated[int, COUNT_OR_NONE, ADVANCED, EVERY_SOME_STEPS] = 0
    """Evaluations in a row without a better held-out pass@k (of the smallest k) that end the run. 0: never."""
    num_problems: Annotated[int, COUNT_OR_NONE, WITH_EVALUATIONS] = 128
    """Number of held-out problems, from the start of the test split."""
    keep_answers: Annotated[int, COUNT_OR_NONE, ADVANCED, WITH_EVALUATIONS] = 256
    """Number of these problems, from the first on, whose answers each evaluation keeps for the run's page: at most 4 of
    each, at most 20,000 characters long. 0: none."""
    samples: Samples = 8
    k: Ks = (1, 8)
    on_regression: Annotated[Literal["warn", "stop", "rollback"], WITH_EVALUATIONS] = "warn"
    """What to do if held-out pass@k (of the smallest k) falls below the start's 95 % interval. stop: end after a
    checkpoint. rollback: go on from the best checkpoint with a quarter of the learning rate (three times at most)."""
    top_p: Annotated[float, POSITIVE_SHARE, ADVANCED, WITH_EVALUATIONS] = 1.0
    """Nucleus sampling in evaluations. 1: off."""
    max_new_tokens: Annotated[int | None, COUNT, ADVANCED, WITH_EVALUATIONS] = None
    """Maximum number of tokens in a completion. None: as in rollouts."""
    verifier: Annotated[Literal["reward", "monitor"], WITH_MONITOR] = "reward"
    """Verifier that decides what is correct: the reward's verifier, or the monitor."""


@dataclass(frozen=True)
class MonitorConfig(Group):
    """A second verifier, whose scores never enter the reward. An alarm is raised when reward and monitor diverge."""

    verifier: str
    """Second verifier that scores the same rollouts, to detect reward hacking: a registered name or module:attribute.
    none: no monitor."""
    verifier_option: tuple[str, ...] = ()
    """Options of the monitor's verifier, as key=value."""
    window: Annotated[int, COUNT] = 10
    """Number of steps over which reward and monitor are averaged before they are compared."""
    margin: Annotated[float, POSITIVE, ADVANCED] = 0.25
    """Divergence between reward and monitor, in score standard deviations, that counts as suspicious."""
    noise: Annotated[float, WEIGHT, ADVANCED] = 3.0
    """Significance threshold, in standard errors."""
    rank: Annotated[float, CORRELATION, ADVANCED] = 0.1
    """Rank correlation within groups below which reward and monitor count as unrelated."""
    patience: Annotated[int, COUNT, ADVANCED] = 5
    """Consecutive suspicious steps that raise the alarm; two are enough if the monitor falls fast."""
    on_alarm: Annotated[Literal["warn", "stop", "rollback"], RESUMABLE] = "warn"
    """What to do when the alarm is raised. stop: end after a checkpoint. rollback: continue from the best checkpoint
    that was saved before the monitor began to fall, with a quarter of the learning rate (three times at most)."""


WITH_SFT = Used(lambda config: config.sft.steps > 0, "with --sft.steps above 0")
WITH_DEMONSTRATIONS = Used(
    lambda config: config.demonstrates, "with --sft.steps, --algo.ptx-coef or --teacher.off-policy above 0"
)


@dataclass(frozen=True)
class SFTConfig(Group):
    """Supervised fine-tuning on demonstrations before RL (`rlvr sft` does only this)."""

    steps: Annotated[int, COUNT_OR_NONE] = 0
    """Optimizer steps. 0: no fine-tuning."""
    batch_size: Annotated[int, COUNT, WITH_SFT] = 64
    """Demonstrations per step."""
    lr: Annotated[float, LEARNING_RATE, WITH_SFT] = 3e-3
    """Peak learning rate; decays to zero on a cosine."""
    warmup_steps: Annotated[int, COUNT_OR_NONE, ADVANCED, WITH_SFT] = 10
    """Steps of linear warm-up."""
    save_every: Annotated[int, COUNT_OR_NONE, ADVANCED, WITH_SFT, RESUMABLE] = 100
    """Steps between checkpoints of the fine-tuning, from which the same command resumes it; they are deleted when it is
    complete. 0: save only if a signal ends it."""
    data: Annotated[Path | None, WITH_DEMONSTRATIONS] = None
    """JSON Lines file with prompt and completion (texts or chat messages) to use instead of the pack's
    demonstrations."""


WITH_PENALTY = Used(lambda config: config.rollout.truncated == "penalize", "with --rollout.truncated penalize")


@dataclass(frozen=True)
class RolloutConfig(TurnSettings, VerifierSettings, SamplingSettings):
    """Sampling and verification of the completions that are trained on."""

    problems_per_step: Annotated[int, COUNT] = 16
    """Problems (prompts) per step."""
    group_size: Annotated[int, COUNT] = 8
    """Completions sampled per problem."""
    resample_rounds: Annotated[int, COUNT_OR_NONE] = 0
    """Dynamic sampling (DAPO): maximum extra sampling rounds to replace groups whose rewards are all equal. 0: off."""
    truncated: Literal["keep", "mask", "penalize"] = "keep"
    """Completions cut off at max_new_tokens, or at the context's end: keep them with their scores, mask them, or
    penalize them (DAPO's soft overlong punishment). Masked ones are not trained on and do not count in their group's
    baseline, as if they had not been sampled; so the policy does not learn to end in time."""
    overlong_buffer: Annotated[int, COUNT_OR_NONE, WITH_PENALTY] = 64
    """Number of tokens before the limit over which the penalty grows from 0 to -1."""
    mask_void: Annotated[bool, ADVANCED] = False
    """With an environment: do not train on turns that it marks as void (neither a call nor an answer). Their rollouts
    still count in the baseline."""
    error_budget: Annotated[float, SHARE, ADVANCED, RESUMABLE] = 0.02
    """Fraction of verdicts that may be verifier errors (statuses bad_reference and error) before the run stops."""

    def rules(self, at: str) -> Rules:
        return [
            *super().rules(at),
            (
                self.group_size >= 2 or self.resample_rounds == 0,
                f"{at}resample_rounds {self.resample_rounds} with {at}group_size 1: a group of one never has differing "
                f"rewards, so resampling cannot help; set {at}resample_rounds to 0",
            ),
            (
                self.truncated != "penalize" or 0 < self.overlong_buffer <= self.max_new_tokens,
                f"{at}overlong_buffer {self.overlong_buffer}: expected 1 to max_new_tokens ({self.max_new_tokens})",
            ),
        ]
