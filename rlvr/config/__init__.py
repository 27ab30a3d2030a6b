"""Every setting of a run. The text under a field is its `--help`.

Groups: run, model, rollout, algo, critic, optim, eval, monitor, vllm, sft. A recipe builds a `Config`; each field can
be set on the command line (`--algo.kl-coef 0.01`). Nothing reads a setting from anywhere else.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlvr.algo.algorithms import ALGORITHMS, LOSSES, Algorithm, PolicyLoss
from rlvr.config.rules import check
from rlvr.types import Sampling


@dataclass(frozen=True)
class RunConfig:
    """What is run, and where it is written."""

    task: str = "arithmetic"
    """Task pack: a registered name or module:attribute (see `rlvr list`)."""
    data: Path | None = None
    """Local file or folder in the data set's own format, read instead of the hub."""
    task_options: tuple[str, ...] = ()
    """Options of the task pack, as key=value."""
    verifier: str | None = None
    """Verifier to use instead of the pack's own."""
    verifier_options: tuple[str, ...] = ()
    """Options of that verifier, as key=value."""
    out_dir: Path = Path("runs/run")
    """Folder of the run; a run that is already in it is resumed."""
    seed: int = 0
    """Seed of every random choice."""
    steps: int = 100
    """Optimizer rounds: one batch of rollouts each."""
    save_every: int = 25
    """Steps between checkpoints; the last step is always saved. 0: only the last."""
    keep_checkpoints: int = 2
    """Checkpoints kept; older ones are deleted."""
    keep_best: bool = True
    """Keep the checkpoint with the best held-out pass@1 besides; an evaluation that improves on it is saved at once."""
    overwrite: bool = False
    """Start anew in a folder that holds another run: what it wrote is deleted, other files stay."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers, through Accelerate: tensorboard, wandb, trackio."""
    tracker_project: str = "rlvr"
    """The trackers' project (tensorboard: a folder in out_dir)."""
    tracker_name: str | None = None
    """The run's name in the trackers (tensorboard: a folder in the project's); the name of out_dir unless given."""
    sample_every: int = 10
    """Steps between printed sample rollouts; 0: none."""
    shuffle_rewards: bool = False
    """Control: permute the rewards over the whole batch, so that they carry no information. Logs keep the verdicts."""
    dry_run: bool = False
    """Check the config, the task and the tokenizer, show the first prompt and what would be written, and end. Loads no
    weights and writes nothing (`--dry-run` for short)."""


@dataclass(frozen=True)
class ModelConfig:
    """The policy."""

    name: str = "tiny"
    """Hub name or folder of a causal LM or of an adapter on one; "tiny" builds a small one for the task's alphabet. An
    adapter is merged into its base and all weights are trained; with its own lora_rank it is trained further itself."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub."""
    trust_remote_code: bool = False
    """Run the Python code that a model brings with it, with all that you may do on this machine."""
    attention: str = "auto"
    """transformers' attention implementation: sdpa, eager, flash_attention_2, ... auto: the packed one, which computes
    no padding, where it gives what sdpa gives, else transformers' choice."""
    tiny_tokens: str = "."
    """Regular expression of the tiny model's tokens; by default each character is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the computation; trained weights stay float32. auto: bfloat16 on a GPU that has it, else float32."""
    device: str = "auto"
    """auto: cuda, else mps, else cpu."""
    lora_rank: int = 0
    """0 trains all weights; above it LoRA adapters of this rank are trained."""
    lora_alpha: float = 32.0
    """LoRA scale is alpha / rank."""
    lora_targets: str = "all-linear"
    """Comma-separated module names that get adapters."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    system_prompt: str | None = None
    """Put before every prompt as a system message."""
    chat: Literal["auto", "always", "never"] = "auto"
    """Render prompts through the tokenizer's chat template. auto: where it has one."""


@dataclass(frozen=True)
class RolloutConfig:
    """Sampling and verification."""

    sampler: str = "torch"
    """Engine that samples: torch, vllm (in this process) or vllm-server."""
    problems_per_step: int = 16
    """P: problems drawn for a step."""
    group_size: int = 8
    """G: completions of each problem."""
    max_new_tokens: int = 256
    """Tokens of a completion at most."""
    max_prompt_tokens: int | None = None
    """Problems whose prompt is longer are left out of training and evaluation, and counted. Without it such a prompt
    is an error where prompt and completion do not fit the model's context."""
    temperature: float = 1.0
    """Sampling temperature; the policy that is trained is the one at this temperature."""
    top_p: float = 1.0
    """Nucleus sampling: smallest set of tokens that holds this mass. 1: off. Off policy; needs algo.importance none."""
    top_k: int = 0
    """Sample among the k likeliest tokens. 0: off. Off policy; needs algo.importance none."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion (kept in it)."""
    batch_size: int = 512
    """Sequences decoded at once by the torch sampler."""
    workers: int = 2
    """Worker processes that a verifier runs in, unless it opts out or brings its own concurrency."""
    timeout: float = 10.0
    """Seconds that a verifier may take for one completion in a worker process, which is then killed (score 0)."""
    error_budget: float = 0.02
    """Share of verdicts that may be verifier errors (bad_reference, error) before the run stops."""
    resample_rounds: int = 0
    """Dynamic sampling (DAPO): draw further problems, at most so many times, until P groups carry signal. What is
    logged describes all that was sampled."""
    max_staleness: int = 0
    """Train on batches sampled so many steps before: the batch of step s comes from the weights after step s - k.
    1 samples while the trainer trains; more is no faster. Needs vllm or vllm-server; corrected by algo.importance."""
    truncated: Literal["keep", "mask", "penalize"] = "keep"
    """Completions cut at max_new_tokens: keep; mask them out of the loss; or DAPO's soft overlong punishment."""
    overlong_buffer: int = 64
    """With punish: the penalty grows from 0 to -1 over the last so many tokens."""
    length_penalty: float = 0.0
    """Taken from the reward for each token beyond length_limit."""
    length_limit: int = 0
    """Tokens that length_penalty leaves free."""


@dataclass(frozen=True)
class AlgoConfig:
    """Advantages and the policy loss (rlvr/algo/advantages.py, rlvr/algo/losses.py: one function each)."""

    advantage: Literal[
        "grpo", "dr_grpo", "rloo", "reinforce", "reinforce_pp", "maxrl", "gdpo", "gae", "raft", "dpo"
    ] = "grpo"
    """How rewards of a group become advantages. gae: PPO, by the critic; raft: the best; dpo: best against worst."""
    advantage_scale: Literal["auto", "none", "batch_std", "whiten"] = "auto"
    """Divide by the standard deviation of the batch's rewards; or whiten over the batch (with gae over its tokens).
    auto: whiten with gae where no KL term is in its rewards, else none. A KL term in the reward is never scaled."""
    gamma: float = 1.0
    """With gae: discount of a reward for each token that lies before it."""
    gae_lambda: float = 0.95
    """With gae: 1 credits a token with all that followed, 0 with the next change of the critic's value alone."""
    reward_weights: tuple[str, ...] = ()
    """With gdpo: part=weight for each named part of the reward; 1 unless given."""
    loss: Literal["auto", "clip", "gspo", "sequence", "cispo", "nll", "dpo"] = "auto"
    """Policy loss: PPO's clipped ratio per token; GSPO's or the whole sequence's ratio; CISPO; likelihood; DPO's on
    pairs. auto: nll with raft, dpo with dpo, else clip."""
    clip_low: float = 0.2
    """Ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """Ratio is clipped above at 1 + clip_high (DAPO: 0.28; CISPO: 4)."""
    dual_clip: float | None = None
    """Bound of the ratio for negative advantages (dual-clip PPO), e.g. 3 or 10."""
    normalize: Literal["auto", "token", "sequence", "constant"] = "auto"
    """Average over the minibatch's tokens, over each sequence first, or divide by sequences x max_new_tokens. Counted
    is what was sampled, groups without signal too. auto: sequence with the losses gspo and sequence, else token."""
    kl_coef: float = 0.0
    """Weight of the KL divergence to the reference policy. 0: no reference is held."""
    kl_estimator: Literal["auto", "k1", "k2", "k3", "k3_is"] = "auto"
    """Estimator of the KL divergence (http://joschu.net/blog/kl-approx.html); k3_is: k3 times the ratio. In the reward
    k1; in the loss k2 or k3_is (gradient of the reverse KL) or k3 (of the forward KL). auto: k1 and k3."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL term enters: the loss (per token), or the reward (with gae per token, else summed over the
    completion, against a baseline of its own, after the task's rewards have been normalised)."""
    dpo_beta: float = 0.1
    """With dpo: how strongly the pairs are held to the reference policy."""
    epochs: int = 1
    """Passes over each batch of rollouts."""
    minibatches: int = 1
    """Optimizer updates per pass."""
    importance: Literal["auto", "none", "token", "token_mask", "sequence"] = "auto"
    """Truncated importance sampling, trainer against sampler. auto: token; none with the torch sampler in float32,
    which computes what the trainer does."""
    importance_cap: float = 2.0
    """Upper bound of the importance weight."""

    @property
    def row(self) -> Algorithm:
        """The algorithm's row of the table."""
        return ALGORITHMS[{"gae": "ppo"}.get(self.advantage, self.advantage)]

    @property
    def loss_row(self) -> PolicyLoss:
        """The policy loss's row of its table."""
        return LOSSES[self.policy_loss]

    @property
    def scale(self) -> str:
        """`advantage_scale` with auto resolved."""
        if self.advantage_scale != "auto":
            return self.advantage_scale
        return "none" if self.kl_coef and self.kl_in == "reward" else self.row.scale

    @property
    def estimator(self) -> str:
        """`kl_estimator` with auto resolved."""
        if self.kl_estimator != "auto":
            return self.kl_estimator
        return "k1" if self.kl_in == "reward" else "k3"

    @property
    def normalizer(self) -> str:
        """`normalize` with auto resolved."""
        if self.normalize != "auto":
            return self.normalize
        return "sequence" if self.loss_row.ratio == "sequence" else "token"

    @property
    def policy_loss(self) -> str:
        """The name of the loss, with auto resolved."""
        return self.row.loss if self.loss == "auto" else self.loss

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is held."""
        return self.kl_coef > 0 or self.row.reference


@dataclass(frozen=True)
class CriticConfig:
    """The critic of PPO (algo.advantage gae): it predicts the reward from each token on."""

    kind: Literal["separate", "head"] = "separate"
    """separate: a model of its own, a copy of the starting policy; head: one more output of the policy."""
    lr: float = 1e-5
    """Peak learning rate of the critic's own weights, on the policy's schedule."""
    warmup: int = 0
    """Steps at the start in which only the critic learns (of a head: the head alone)."""
    value_clip: float | None = 0.2
    """A value may move so far from where it stood before the step's updates; beyond, it gains nothing. None: freely."""
    value_coef: float = 0.1
    """With kind head: weight of the value loss beside the policy loss (TRL's default; .5 drowned the policy's)."""


@dataclass(frozen=True)
class OptimConfig:
    """AdamW."""

    lr: float = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or decaying to min_lr_ratio at the last step."""
    decay_steps: int = 0
    """Step at which the decay has ended; 0: run.steps. Set it where a run will be lengthened later."""
    warmup_steps: int = 0
    """Steps of linear warm-up."""
    min_lr_ratio: float = 0.1
    """Final learning rate as a share of lr."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay of the first and second moments."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Gradient norm is clipped to this."""
    tokens_per_microbatch: int = 16384
    """Tokens in one forward and backward pass; changes memory and speed, not the result."""


@dataclass(frozen=True)
class EvalConfig:
    """Held-out problems during training."""

    every: int = 0
    """Steps between evaluations; 0: only before the first and after the last step. -1: never."""
    num_problems: int = 128
    """Held-out problems (the first so many)."""
    samples: int = 8
    """n: completions per problem."""
    k: tuple[int, ...] = (1, 8)
    """pass@k for these k, each at most n."""
    temperature: float = 1.0
    """Sampling temperature of the evaluation."""
    top_p: float = 1.0
    """Nucleus of the evaluation."""
    max_new_tokens: int | None = None
    """Tokens at most; the rollout's unless given."""
    verifier: Literal["reward", "monitor"] = "reward"
    """Who judges held-out problems: the reward's own verifier, or the monitor (the rule, where a model rewards)."""
    threshold: float | None = None
    """For verifiers that grade: a score of at least this counts as right for pass@k. None: verdicts `correct` do."""


@dataclass(frozen=True)
class MonitorConfig:
    """A second verifier that judges the same rollouts without entering the reward, and the alarm when the two part."""

    verifier: str | None = None
    """The verifier that watches: a registered name or module:attribute. The reward is the proxy it is held against.
    With rollout.resample_rounds it sees all groups that are sampled, also those that are not trained on."""
    options: tuple[str, ...] = ()
    """Options of that verifier, as key=value."""
    window: int = 10
    """Steps over which proxy and monitor are averaged before they are compared."""
    margin: float = 0.25
    """Rise of the proxy that the monitor must share, and fall of the monitor that the proxy must share, in standard
    deviations of the single scores."""
    noise: float = 3.0
    """Standard errors by which a difference must stand out."""
    rank: float = 0.1
    """Rank correlation within groups below which the proxy says nothing of the monitor."""
    patience: int = 5
    """Suspicious steps in a row that raise the alarm."""
    stop: bool = False
    """End the run at the alarm, after a checkpoint."""


@dataclass(frozen=True)
class VLLMConfig:
    """The vLLM engine (rollout.sampler vllm or vllm-server)."""

    url: str | None = None
    """Server on this machine to sample from; without it vllm-server starts one."""
    timeout: float = 600.0
    """Seconds that a server may take to start, or to answer, before it counts as lost."""
    max_restarts: int = 2
    """Times that a lost server is started again with the current weights. In this process its loss ends the run."""

    gpu_memory_utilization: float = 0.4
    """Share of the GPU's memory that vLLM takes, weights included; the trainer has the rest."""
    max_model_len: int = 0
    """Tokens of prompt and completion together that the engine is made for. 0: the model's own limit."""
    sleep: Literal[0, 1, 2] = 0
    """Free the engine's GPU memory while the trainer trains (sampler vllm): 1 keeps its weights in the machine's
    memory, 2 drops them, since they are pushed before each use. 0: never."""
    lora: Literal["merge", "adapter"] = "merge"
    """Adapters are merged into the weights that are pushed; or pushed themselves and applied by vLLM."""
    sync_check_every: int = 25
    """Pushes between proofs that vLLM samples from the trainer's weights; one is made at the start. 0: only that."""
    mismatch_alarm: float = 0.1
    """Warn where logprobs of trainer and sampler differ by more than this on average over a step."""


@dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning on demonstrations, the pack's or a file's, before RL (`rlvr sft`)."""

    steps: int = 0
    """Optimizer steps; 0: no fine-tuning."""
    batch_size: int = 64
    """Demonstrations in a step."""
    lr: float = 3e-3
    """Peak learning rate, cosine to zero."""
    warmup_steps: int = 10
    """Steps of linear warm-up."""
    data: Path | None = None
    """JSON Lines with prompt and completion (texts or chat messages), instead of the pack's demonstrations."""


@dataclass(frozen=True)
class Config:
    """A run."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    vllm: VLLMConfig = field(default_factory=VLLMConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)

    def sampling(self) -> Sampling:
        """How training completions are drawn."""
        r = self.rollout
        return Sampling(r.max_new_tokens, r.temperature, r.top_p, r.top_k, r.stop)

    def eval_sampling(self) -> Sampling:
        """How held-out completions are drawn."""
        r, e = self.rollout, self.eval
        return Sampling(e.max_new_tokens or r.max_new_tokens, e.temperature, e.top_p, 0, r.stop)

    def staleness(self, step: int) -> int:
        """Steps between the weights that batch `step` (from 0) is sampled from and those that it trains."""
        return min(step, self.rollout.max_staleness)

    def check(self) -> None:
        """Raises ValueError with one line for the first setting that cannot work."""
        check(self)


def to_json(config: Any) -> str:
    """A config as indented JSON."""
    return json.dumps(dataclasses.asdict(config), indent=2, default=str)
