"""Every setting of a reward model's training (`rlvr rm`). The text under a field is its `--help`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rlvr.config import OptimConfig
from rlvr.config.bounds import bound_rules
from rlvr.files.models import check_path


@dataclass(frozen=True)
class RewardRunConfig:
    """What is trained, and where it is written."""

    out_dir: Path = Path("runs/rm")
    """Folder of the run: config.json, pairs.jsonl, metrics.jsonl, eval.jsonl, and the models model-0, model-1, ..."""
    seed: int = 0
    """Seed of every random choice."""
    models: int = 1
    """Models trained on the same pairs, each with a head and an order of its own: an ensemble."""
    overwrite: bool = False
    """Start anew in a folder that holds another run: what it wrote is deleted, other files stay."""


@dataclass(frozen=True)
class PairsConfig:
    """Pairs of a better and a worse completion: from a file, or sampled from a policy and told apart by a verifier."""

    file: Path | None = None
    """JSON Lines with prompt, chosen, rejected and, if wanted, margin. Without it pairs are sampled."""
    task: str = "arithmetic"
    """Task pack whose training problems are sampled: a registered name or module:attribute."""
    data: Path | None = None
    """Local file or folder in the data set's own format, read instead of the hub."""
    task_options: tuple[str, ...] = ()
    """Options of the task pack, as key=value."""
    verifier: str | None = None
    """Verifier that tells right from wrong, instead of the pack's own."""
    verifier_options: tuple[str, ...] = ()
    """Options of that verifier, as key=value."""
    policy: str | None = None
    """Hub name or folder of the causal LM that is sampled."""
    num_problems: int = 1024
    """Problems that are sampled, the first so many."""
    samples: int = 8
    """Completions of each problem."""
    temperature: float = 1.0
    """Sampling temperature."""
    max_new_tokens: int = 256
    """Tokens of a completion at most."""
    batch_size: int = 512
    """Sequences decoded at once."""
    workers: int = 2
    """Worker processes that the verifier runs in, unless it opts out or brings its own concurrency."""
    timeout: float = 10.0
    """Seconds that the verifier may take for one completion."""
    per_problem: int = 8
    """Pairs of one problem at most: distinct correct completions with distinct others, drawn at random."""
    held_out: float = 0.1
    """Share of the problems (or of a file's prompts) whose pairs are held out, to measure accuracy and calibration."""


@dataclass(frozen=True)
class BaseModelConfig:
    """The model that becomes a reward model."""

    name: str | None = None
    """Hub name or folder of a causal LM (its trunk gets a new head), of a sequence classifier, or of an adapter on one
    of them, which is merged; pairs.policy unless given."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub; also pairs.policy's where that is the model."""
    trust_remote_code: bool = False
    """Run the Python code that the model, or pairs.policy, brings with it."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the computation; trained weights stay float32. auto: bfloat16 on a GPU that has it, else float32."""
    device: str = "auto"
    """auto: cuda, else mps, else cpu."""
    lora_rank: int = 0
    """0 trains all weights; above it LoRA adapters of this rank and the head are trained, and merged at the end."""
    lora_alpha: float = 32.0
    """LoRA scale is alpha / rank."""
    lora_targets: str = "all-linear"
    """Comma-separated module names that get adapters."""
    max_tokens: int = 0
    """Longer texts lose their beginning. 0: the model's own limit."""
    system_prompt: str | None = None
    """Put before every prompt as a system message."""
    chat: Literal["auto", "always", "never"] = "auto"
    """Render texts through the tokenizer's chat template. auto: where it has one."""


@dataclass(frozen=True)
class RewardTrainConfig:
    """Bradley-Terry: -log sigmoid(score of the better - score of the worse - margin)."""

    epochs: int = 1
    """Passes over the training pairs."""
    batch_size: int = 32
    """Pairs in a step."""


@dataclass(frozen=True)
class RewardConfig:
    """The training of a reward model."""

    run: RewardRunConfig = field(default_factory=RewardRunConfig)
    pairs: PairsConfig = field(default_factory=PairsConfig)
    model: BaseModelConfig = field(default_factory=BaseModelConfig)
    train: RewardTrainConfig = field(default_factory=RewardTrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)

    def check(self) -> None:
        """Raises ValueError with one line for the first setting that cannot work."""
        p, o = self.pairs, self.optim
        check_path(self.model.name)
        check_path(p.policy)
        rules = [
            (self.run.models >= 1, f"run.models {self.run.models}: expected at least 1"),
            (
                p.file is not None or p.policy is not None,
                "no pairs: give --pairs.file (prompt, chosen, rejected), or --pairs.policy to sample from",
            ),
            (
                self.model.name is not None or p.policy is not None,
                "model.name: name the causal LM or classifier that becomes the reward model",
            ),
            (
                p.verifier is not None or not p.verifier_options,
                "pairs.verifier_options without pairs.verifier, whose options they are; set --pairs.verifier",
            ),
            (p.num_problems >= 2, f"pairs.num_problems {p.num_problems}: expected at least 2"),
            (p.samples >= 2, f"pairs.samples {p.samples}: a pair needs at least 2"),
            (p.temperature > 0, f"pairs.temperature {p.temperature}: pairs need samples that differ, so above 0"),
            (p.max_new_tokens >= 1, f"pairs.max_new_tokens {p.max_new_tokens}: expected at least 1"),
            (p.batch_size >= 1, f"pairs.batch_size {p.batch_size}: expected at least 1"),
            (p.workers >= 1, f"pairs.workers {p.workers}: expected at least 1"),
            (p.timeout > 0, f"pairs.timeout {p.timeout}: expected seconds above 0"),
            (p.per_problem >= 1, f"pairs.per_problem {p.per_problem}: expected at least 1"),
            (0 < p.held_out < 1, f"pairs.held_out {p.held_out}: expected a share in (0, 1)"),
            (self.model.lora_rank >= 0, f"model.lora_rank {self.model.lora_rank}: expected at least 0"),
            (self.model.max_tokens >= 0, f"model.max_tokens {self.model.max_tokens}: expected tokens, or 0"),
            (self.train.epochs >= 1, f"train.epochs {self.train.epochs}: expected at least 1"),
            (self.train.batch_size >= 1, f"train.batch_size {self.train.batch_size}: expected at least 1"),
            (o.lr >= 0, f"optim.lr {o.lr}: expected at least 0"),
            (
                o.tokens_per_microbatch >= 1,
                f"optim.tokens_per_microbatch {o.tokens_per_microbatch}: expected at least 1",
            ),
            *bound_rules(self),
        ]
        for holds, message in rules:
            if not holds:
                raise ValueError(message)
