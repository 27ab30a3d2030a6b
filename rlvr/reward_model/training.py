"""Training a reward model on preference pairs, and evaluating it on held-out ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from rlvr.config import Config, ModelConfig, OptimConfig
from rlvr.config.reward_model import BaseModelConfig, RewardTrainConfig
from rlvr.core.seeding import derive_seed
from rlvr.distributed import sum_gradients, sum_stats
from rlvr.model.load.lora import with_adapter
from rlvr.model.load.pretrained import pick_device, pick_dtype, switch_off_dropout
from rlvr.model.memory.estimate import microbatch_tokens
from rlvr.model.optim.health import GradientWatch, check_weights, count_not_finite, python_warning
from rlvr.model.optim.optimizer import learning_rate, make_optimizer, optimizer_step
from rlvr.model.optim.sharding import (
    copy_without_weights,
    fill,
    full,
    gather_weights,
    is_sharded,
    leads,
    shard_model,
    with_weights,
    within,
)
from rlvr.training.evaluation.passk import Estimate, estimate_mean
from rlvr.training.problems.draws import items_of_step
from rlvr.training.sft.sft import SupervisedCheckpoints

from .preferences import PreferencePair
from .scorer import Classifier, Scorer, load_classifier
from .text import Encoded, Renderer, token_limit

FILE = "model.safetensors"


class TrainedWeights:
    """The trained weights of a reward model, which its checkpoints hold: the model's own, or a copy.

    mesh: of the ranks that hold them in shards. Frozen weights are loaded again from the base model.
    """

    def __init__(self, named: Mapping[str, Tensor], mesh: DeviceMesh | None = None) -> None:
        self.named = named
        self.mesh = mesh

    def snapshot(self) -> TrainedWeights | None:
        """Return a copy in the CPU's memory with full weights. Of sharded weights only the first rank gets it."""
        copied = {}
        for name, weight in self.named.items():
            whole = full(weight.detach())
            if self.mesh is None or leads():
                copied[name] = whole.to("cpu", copy=True)
        return TrainedWeights(copied) if self.mesh is None or leads() else None

    def save(self, folder: Path) -> None:
        save_file({name: weight.detach().contiguous().cpu() for name, weight in self.named.items()}, folder / FILE)

    def load_weights(self, folder: Path) -> None:
        """Restore what `save` wrote, bit for bit. Raises ValueError for the weights of another model."""
        held = load_file(folder / FILE)
        if held.keys() != self.named.keys():
            raise ValueError(f"{FILE} has other weights: {', '.join(sorted(held.keys() ^ self.named.keys())[:3])}")
        for name, weight in self.named.items():
            fill(weight, held[name])


BINS = 10
EncodedPair = tuple[Encoded, Encoded, float]


@dataclass
class TrainableRewardModel:
    """A reward model with what training needs.

    model: what is trained, with LoRA adapters where they are used. classifier: computes scores with it. renderer: makes
    token ids of a prompt and a completion. dtype: of the computation (see `computing`). Where the weights are sharded,
    empty is the model without weights, and mesh that of the ranks.
    """

    model: Any
    classifier: Classifier
    tokenizer: Any
    renderer: Renderer
    dtype: torch.dtype
    empty: Any = None
    mesh: DeviceMesh | None = None

    @property
    def causal(self) -> Any:
        """transformers' model: `model`, or what its adapters are on."""
        return self.classifier.model

    @property
    def device(self) -> torch.device:
        return self.classifier.device

    def parameters(self) -> list[nn.Parameter]:
        return list(self.trained_weights().values())

    def trained_weights(self) -> dict[str, nn.Parameter]:
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def encode(self, pair: PreferencePair) -> EncodedPair:
        """Return the two texts of a pair as token ids, and its margin."""
        chosen, rejected = (self.renderer.encode(pair.prompt, text) for text in (pair.chosen, pair.rejected))
        return chosen, rejected, pair.margin

    def scores(self, pairs: Sequence[EncodedPair]) -> Tensor:
        """Return the scores (n, 2) of n pairs: chosen, rejected."""
        texts = [text for pair in pairs for text in pair[:2]]

        def compute() -> Tensor:
            with self.computing():
                return self.classifier.logits(texts)

        return within(self.model, compute).view(-1, 2)

    def computing(self) -> torch.autocast:
        """Return the context of passes: autocast, unless the dtype is float32 or the weights are gathered in it."""
        needed = self.dtype is not torch.float32 and self.mesh is None
        return torch.autocast(self.device.type, self.dtype, enabled=needed)

    def gather(self) -> TrainableRewardModel:
        """Return the model with full weights. A sharded model gives a copy, and every rank must call this."""
        if self.empty is None:
            return self
        model = with_weights(self.empty, gather_weights(self.model)).eval()
        own = self.classifier
        within_peft = model.get_base_model() if hasattr(model, "peft_config") else model
        classifier = Classifier(within_peft, pad_id=own.pad_id)
        return replace(self, model=model, classifier=classifier, empty=None, mesh=None)

    def save(self, folder: Any) -> None:
        """Write the model, adapters merged, as transformers' AutoModelForSequenceClassification loads it."""
        model = self.model.merge_and_unload() if self.model is not self.classifier.model else self.model
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_trainer(
    config: BaseModelConfig, name: str, *, seed: int, mesh: DeviceMesh | None = None
) -> TrainableRewardModel:
    """Load the trunk of a causal LM or of a reward model with a new head, drawn from the seed, onto its device.

    mesh: of the ranks that hold shards; each first loads the full weights. Raises ValueError for a model that does not
    become a causal trunk with a linear head.
    """
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    # Frozen weights may be stored in the compute dtype; trained ones would lose small updates to rounding.
    weights_dtype: Literal["auto", "float32", "bfloat16"] = config.dtype if config.lora_rank else "float32"
    classifier, tokenizer = load_classifier(
        name,
        device=config.device,
        dtype=weights_dtype,
        num_labels=1,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )
    model = classifier.model
    if classifier.trunk is None:
        raise ValueError(f"model {name!r} loads as {type(model).__name__}; expected a causal LM with a linear head")
    init_head(model.score.weight, seed)
    switch_off_dropout(model)
    set_padding(tokenizer, model)
    renderer = Renderer(
        tokenizer,
        system_prompt=config.system_prompt,
        chat=config.chat,
        max_tokens=token_limit(tokenizer, model.config, config.max_tokens),
    )
    trained = model
    if config.lora_rank:
        trained = with_adapter(
            model, config, seed=derive_seed(seed, "adapter"), task_type="SEQ_CLS", trained_whole=["score"]
        )
    trained.to(device)
    empty = None if mesh is None else copy_without_weights(trained)
    if mesh is not None:
        shard_model(trained, model, mesh, dtype)
    return TrainableRewardModel(trained, classifier, tokenizer, renderer, dtype, empty, mesh)


def init_head(weight: Tensor, seed: int) -> None:
    """Draw a head's weight (1, hidden size), on the CPU, from the seed; leave the CPU's random state as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "head"))
        # For hidden states with entries near 1, initial scores have a standard deviation near 1, whatever the width.
        torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


def set_padding(tokenizer: Any, model: Any) -> None:
    """Give tokenizer and config a padding token other than the end token, if the tokenizer has a spare one.

    transformers' own forward pass scores the last token that is not padding. If the end token were padding, that would
    be the token before it.
    """
    if tokenizer.pad_token is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        spare = [tokenizer.unk_token, *sorted(tokenizer.get_added_vocab(), key=lambda token: "pad" not in token)]
        tokenizer.pad_token = next(
            (token for token in spare if token not in (None, tokenizer.eos_token, tokenizer.bos_token)),
            tokenizer.eos_token,
        )
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id


def bradley_terry(scores: Tensor, margins: Tensor) -> Tensor:
    """Return the sum over pairs of -log sigmoid(s_chosen - s_rejected - margin).

    Bradley and Terry 1952; arXiv:2203.02155, eq. 1; with the margin of arXiv:2307.09288, eq. 2. scores: (n, 2), chosen
    first; margins: (n,).
    """
    return -F.logsigmoid(scores[:, 0] - scores[:, 1] - margins).sum()


def train_reward_model(
    trainer: TrainableRewardModel,
    pairs: Sequence[PreferencePair],
    config: RewardTrainConfig,
    optim: OptimConfig,
    *,
    accelerator: Accelerator,
    seed: int,
    on_step: Callable[[dict[str, float]], None] | None = None,
    checkpoints: SupervisedCheckpoints | None = None,
) -> None:
    """Train for `epochs` passes over the pairs with AdamW, from the last of `checkpoints` on.

    All ranks hold the same pairs, and each computes a share of each batch. `on_step` gets each step's metrics: step,
    lr, grad_norm, and those of `accumulate_gradients`, measured before the update. Raises NotFinite where gradients
    are not finite for several steps in a row, or the weights are not at the end; Stopped where a signal ends it, after
    a checkpoint.
    """
    hint = f"--optim.lr ({optim.lr:g}) and --model.dtype (float32 does not overflow where the others do)"
    gradients = GradientWatch(python_warning, hint)
    encoded = [trainer.encode(pair) for pair in pairs]
    optimizer = make_optimizer(trainer.parameters(), optim)
    max_tokens = most_tokens(trainer, optim, 1 if trainer.mesh is None else trainer.mesh.size(-1))
    num_steps = num_training_steps(len(encoded), config)
    trainer.model.train()
    weights = TrainedWeights(trainer.trained_weights(), trainer.mesh)
    left = checkpoints.steps(num_steps, weights, optimizer, gradients) if checkpoints else range(num_steps)
    for step in left:
        batch = items_of_step(encoded, min(config.batch_size, len(encoded)), seed=seed, step=step)
        metrics = accumulate_gradients(trainer, batch, max_tokens, accelerator)
        lr = learning_rate(step, optim, num_steps)
        norm = optimizer_step(optimizer, lr=lr, max_grad_norm=optim.max_grad_norm)
        if on_step:
            on_step({"step": step + 1, **metrics, "grad_norm": norm, "lr": lr})
        gradients.observe(step + 1, count_not_finite([norm]))
    check_weights(trainer.model.named_parameters(), f"the training broke the reward model (look at {hint})")
    trainer.model.eval()


def most_tokens(trainer: TrainableRewardModel, optim: OptimConfig, shard: int = 1) -> int:
    """Return the most tokens of a microbatch: as many as for a policy of this size without a reference policy."""
    adapters = [] if trainer.model is trainer.causal else list(trainer.model.peft_config.values())
    model = ModelConfig(lora_rank=max((adapter.r for adapter in adapters), default=0), shard=shard)
    return microbatch_tokens(trainer, Config(model=model, optim=optim))


def accumulate_gradients(
    trainer: TrainableRewardModel, batch: Sequence[EncodedPair], max_tokens: int, accelerator: Accelerator
) -> dict[str, float]:
    """Add the gradients of the batch's mean loss, in microbatches of at most `max_tokens` tokens. Return its metrics.

    Each rank computes its share; gradients and metrics are summed over all. loss: mean over pairs. accuracy: share of
    pairs whose chosen text scores higher. margin: mean difference of scores.
    """
    loss, correct, difference = 0.0, 0, 0.0
    count = accelerator.num_processes
    plans = [list(microbatches(batch[rank::count], max_tokens)) for rank in range(count)]
    mine = plans[accelerator.process_index]
    for microbatch in mine:
        scores = trainer.scores(microbatch)
        margins = torch.tensor([margin for _, _, margin in microbatch], device=scores.device)
        part = bradley_terry(scores, margins) / len(batch)
        part.backward()
        differences = (scores[:, 0] - scores[:, 1]).detach()
        loss += float(part.detach())
        correct += int((differences > 0).sum())
        difference += float(differences.sum())
    if is_sharded(trainer.model):
        # FSDP's all-gathers need every rank: one with fewer microbatches runs dummy ones with weight 0.
        for _ in range(max(map(len, plans)) - len(mine)):
            (0 * trainer.scores(batch[:1]).sum()).backward()
    if count > 1:
        sum_gradients(trainer.parameters(), accelerator)
    sums = {"loss": loss, "correct": float(correct), "difference": difference}
    sums = sum_stats(sums, accelerator, trainer.device)
    accuracy, margin = (sums[name] / len(batch) for name in ("correct", "difference"))
    return {"loss": sums["loss"], "accuracy": accuracy, "margin": margin}


def num_training_steps(num_pairs: int, config: RewardTrainConfig) -> int:
    """Return the steps of the whole training, in which every pair is seen at least `epochs` times."""
    return math.ceil(config.epochs * num_pairs / min(config.batch_size, num_pairs))


def microbatches(pairs: Sequence[EncodedPair], max_tokens: int) -> Iterator[list[EncodedPair]]:
    """Yield the pairs in order, in parts of one pair or of at most `max_tokens` tokens, padding included."""
    part: list[EncodedPair] = []
    width = 0
    for pair in pairs:
        longest = max(len(pair[0].ids), len(pair[1].ids))
        if part and 2 * (len(part) + 1) * max(width, longest) > max_tokens:
            yield part
            part, width = [], 0
        part.append(pair)
        width = max(width, longest)
    if part:
        yield part


def measure(trainer: TrainableRewardModel, pairs: Sequence[PreferencePair], *, batch_size: int = 64) -> dict[str, Any]:
    """Return a reward model's metrics on held-out pairs. Raises ValueError for scores that are not finite.

    accuracy with a 95 % interval clustered by prompt; the mean Bradley-Terry loss; ece and reliability (see
    `calibration`); mean and std of the scores of all distinct held-out completions.
    """
    scores = score_completions(trainer, pairs, batch_size=batch_size)
    differences = [scores[p.key, p.chosen] - scores[p.key, p.rejected] for p in pairs]
    accuracy = clustered_share([d > 0 for d in differences], [p.key for p in pairs])
    ece, reliability = calibration(differences)
    values = list(scores.values())
    mean = math.fsum(values) / len(values)
    return {
        "pairs": len(pairs),
        "prompts": len({p.key for p in pairs}),
        "accuracy": accuracy.mean,
        "accuracy_ci": [accuracy.low, accuracy.high],
        "loss": math.fsum(math.log1p(math.exp(-abs(d))) + max(-d, 0.0) for d in differences) / len(differences),
        "ece": ece,
        "reliability": reliability,
        "mean": mean,
        "std": math.sqrt(math.fsum((s - mean) ** 2 for s in values) / len(values)),
        "completions": len(values),
    }


def score_completions(
    trainer: TrainableRewardModel, pairs: Sequence[PreferencePair], *, batch_size: int
) -> dict[tuple[str, str], float]:
    """Return the score of each distinct completion by its prompt's key and its text.

    Raises ValueError for a score that is not finite.
    """
    texts: dict[tuple[str, str], Encoded] = {}
    for pair in pairs:
        for text in (pair.chosen, pair.rejected):
            if (pair.key, text) not in texts:
                texts[pair.key, text] = trainer.renderer.encode(pair.prompt, text)
    classifier = trainer.classifier
    scorer = Scorer(classifier, label=0, device=classifier.device, batch_size=batch_size, offload=False)
    with trainer.computing():
        scores = [values[0] for values in scorer.score(list(texts.values()))]
    if not all(map(math.isfinite, scores)):
        raise ValueError("the trained model's scores are not finite; lower --optim.lr")
    return dict(zip(texts, scores))


def clustered_share(hits: Sequence[bool], clusters: Sequence[str]) -> Estimate:
    """Return the share of hits with its 95 % interval, clustered by prompt; a prompt counts by its pairs."""
    groups: dict[str, list[bool]] = {}
    for hit, cluster in zip(hits, clusters, strict=True):
        groups.setdefault(cluster, []).append(hit)
    rows = list(groups.values())
    return estimate_mean([sum(row) / len(row) for row in rows], weights=[len(row) for row in rows])


def calibration(differences: Sequence[float]) -> tuple[float, list[dict[str, float]]]:
    """Return the expected calibration error (arXiv:1706.04599, eq. 3) of sigmoid(s_chosen - s_rejected), and its table.

    The confidence in the higher-scored text lies in [0.5, 1], cut into bins of equal width; each bin compares its mean
    confidence with the share of pairs whose higher-scored text is the chosen one. Ties count half.
    """
    bins: list[list[tuple[float, float]]] = [[] for _ in range(BINS)]
    for d in differences:
        confidence = 1 / (1 + math.exp(-min(abs(d), 700.0)))
        bins[min(int((confidence - 0.5) * 2 * BINS), BINS - 1)].append((confidence, 0.5 if d == 0 else float(d > 0)))
    table = []
    for number, entries in enumerate(bins):
        if entries:
            confidence = math.fsum(c for c, _ in entries) / len(entries)
            accuracy = math.fsum(a for _, a in entries) / len(entries)
            low = 0.5 + number / (2 * BINS)
            table.append({"from": low, "pairs": len(entries), "confidence": confidence, "accuracy": accuracy})
    ece = math.fsum(row["pairs"] * abs(row["confidence"] - row["accuracy"]) for row in table) / len(differences)
    return ece, table
