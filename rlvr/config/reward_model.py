"""Every setting of a reward model's training (`rlvr rm`). The text under a field is its `--help`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from rlvr.core.files.models import check_path

from .model import OptimConfig
from .settings import (
    ADVANCED,
    COUNT,
    COUNT_OR_NONE,
    RESUMABLE,
    TWO_OR_MORE,
    Bound,
    Group,
    Rules,
    Used,
    check_groups,
    require,
    settings_of,
)
from .shared import (
    BatchSizeSetting,
    LengthSettings,
    LoadSettings,
    LoRASettings,
    SeedSetting,
    ShardSetting,
    TaskSettings,
    VerifierSettings,
)

WHEN_SAMPLED = Used(lambda config: config.pairs.file is None, "without --pairs.file")


@dataclass(frozen=True)
class RewardRunConfig(SeedSetting):
    """Where the results are written."""

    out_dir: Annotated[Path, RESUMABLE] = Path("runs/rm")
    """Output folder: config.json, pairs.jsonl, metrics.jsonl, eval.jsonl, and the model, model-0. A training that is
    already in it is resumed. Of an ensemble each model has its own --run.seed and folder."""
    overwrite: Annotated[bool, RESUMABLE] = False
    """Delete the run that is in out_dir and start again; files that no run wrote stay."""


@dataclass(frozen=True)
class PairsConfig(BatchSizeSetting, VerifierSettings, LengthSettings, TaskSettings):
    """Preference pairs: from a file, or completions sampled from a policy and labelled by a verifier."""

    USES: ClassVar = {
        setting.name: WHEN_SAMPLED
        for kind in (BatchSizeSetting, VerifierSettings, LengthSettings, TaskSettings)
        for setting in settings_of(kind)
    }

    file: Path | None = None
    """JSON Lines file with prompt, chosen, rejected and optionally margin. None: sample pairs."""
    also: Annotated[tuple[Path, ...], ADVANCED] = ()
    """Further files of such pairs, such as those of an earlier policy; they are trained on and held out likewise."""
    policy: str | None = None
    """Hub name or folder of the causal LM to sample from."""
    num_problems: Annotated[int, TWO_OR_MORE, WHEN_SAMPLED] = 1024
    """Number of training problems to sample, from the start."""
    samples: Annotated[int, TWO_OR_MORE, WHEN_SAMPLED] = 8
    """Completions sampled per problem."""
    per_problem: Annotated[int, COUNT, WHEN_SAMPLED] = 8
    """Maximum number of pairs per problem: distinct correct completions with distinct incorrect ones, at random."""
    held_out: Annotated[float, Bound(0, 0.99, above=True)] = 0.1
    """Fraction of the problems (or of a file's prompts) held out to measure accuracy and calibration."""

    def rules(self, at: str) -> Rules:
        check_path(self.policy)
        return [
            *super().rules(at),
            (
                self.file is not None or self.policy is not None,
                f"no pairs: give --{at}file (prompt, chosen, rejected), or --{at}policy to sample from",
            ),
        ]


@dataclass(frozen=True)
class BaseModelConfig(LoRASettings, ShardSetting, LoadSettings):
    """The model that becomes a reward model."""

    name: str | None = None
    """Hub name or folder of a causal LM (its trunk gets a new head), of a sequence classifier, or of an adapter on one
    of them, which is merged. None: the model of pairs.policy."""
    max_tokens: Annotated[int, COUNT_OR_NONE] = 0
    """Longer texts are truncated on the left. 0: the model's own limit."""

    def rules(self, at: str) -> Rules:
        check_path(self.name)
        return super().rules(at)


@dataclass(frozen=True)
class RewardTrainConfig(Group):
    """Bradley-Terry loss: -log sigmoid(score of the chosen - score of the rejected - margin)."""

    epochs: Annotated[int, COUNT] = 1
    """Passes over the training pairs."""
    batch_size: Annotated[int, COUNT] = 32
    """Pairs per step."""
    save_every: Annotated[int, COUNT_OR_NONE, ADVANCED, RESUMABLE] = 100
    """Steps between checkpoints, from which the same command resumes; they are deleted when the model is complete.
    0: save only if a signal ends the training."""


@dataclass(frozen=True)
class RewardConfig:
    """Settings of a reward model's training."""

    run: RewardRunConfig = field(default_factory=RewardRunConfig)
    pairs: PairsConfig = field(default_factory=PairsConfig)
    model: BaseModelConfig = field(default_factory=BaseModelConfig)
    train: RewardTrainConfig = field(default_factory=RewardTrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)

    def check(self) -> None:
        check_groups(self)
        named = self.model.name is not None or self.pairs.policy is not None
        require([(named, "model.name: name the causal LM or classifier that becomes the reward model")])
