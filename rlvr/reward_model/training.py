"""Training a reward model on pairs, and measuring it on held-out ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rlvr.config import OptimConfig
from rlvr.config.reward_model import BaseModelConfig, RewardTrainConfig
from rlvr.model.device import pick_device, pick_dtype
from rlvr.model.health import GradientWatch, check_weights, count_not_finite, python_warning
from rlvr.model.lora import with_adapter
from rlvr.model.optim import learning_rate, make_optimizer, optimizer_step
from rlvr.model.policy import switch_off_dropout
from rlvr.reward_model.preferences import PreferencePair
from rlvr.reward_model.scorer import Classifier, Scorer, load_classifier
from rlvr.reward_model.text import Encoded, Renderer, token_limit
from rlvr.seeding import derive_seed
from rlvr.training.epochs import items_of_step
from rlvr.training.passk import clustered

BINS = 10
EncodedPair = tuple[Encoded, Encoded, float]


@dataclass
class RewardModelTrainer:
    """A model that is being trained to score: what transformers or peft made, the classifier inside, its renderer."""

    model: Any
    classifier: Classifier
    tokenizer: Any
    renderer: Renderer
    dtype: torch.dtype

    def encode(self, pair: PreferencePair) -> EncodedPair:
        """The two texts of a pair, and the margin."""
        chosen, rejected = (self.renderer.encode(pair.prompt, text) for text in (pair.chosen, pair.rejected))
        return chosen, rejected, pair.margin

    def scores(self, pairs: Sequence[EncodedPair]) -> Tensor:
        """Scores (n, 2) of n pairs: the better one's, the worse one's."""
        texts = [text for pair in pairs for text in pair[:2]]
        with torch.autocast(self.classifier.device.type, self.dtype, enabled=self.dtype is not torch.float32):
            return self.classifier.logits(texts).view(-1, 2)

    def save(self, folder: Any) -> None:
        """Writes the model, adapters merged, as transformers' AutoModelForSequenceClassification loads it."""
        model = self.model.merge_and_unload() if self.model is not self.classifier.model else self.model
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_learner(config: BaseModelConfig, name: str, *, seed: int) -> RewardModelTrainer:
    """The model to train, on its device. A new head is a function of the seed."""
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    # Frozen weights may be kept in the computation's type; in trained ones it would round small updates away.
    held: Literal["auto", "float32", "bfloat16"] = config.dtype if config.lora_rank else "float32"
    classifier, tokenizer = load_classifier(
        name,
        device=config.device,
        dtype=held,
        padding_side="right",
        num_labels=1,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )
    model = classifier.model
    if classifier.trunk is None:
        raise ValueError(f"model {name!r} becomes a {type(model).__name__}; expected a causal LM with a linear head")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "head"))
        size = model.score.weight.shape[1]
        # Scores start near 0 with a spread near 1 for hidden states of unit size, whatever the width.
        torch.nn.init.normal_(model.score.weight, std=size**-0.5)
    switch_off_dropout(model)
    set_padding(tokenizer, model)
    renderer = Renderer(
        tokenizer,
        system_prompt=config.system_prompt,
        chat=config.chat,
        max_tokens=token_limit(tokenizer, model.config, config.max_tokens),
    )
    whole = model
    if config.lora_rank:
        whole = with_adapter(
            model, config, seed=derive_seed(seed, "adapter"), task_type="SEQ_CLS", trained_whole=["score"]
        )
    whole.to(device)
    return RewardModelTrainer(whole, classifier, tokenizer, renderer, dtype)


def set_padding(tokenizer: Any, model: Any) -> None:
    """Gives tokenizer and config a padding token other than the end token, where the tokenizer has one to give.

    transformers' own forward pass takes the last token that is not padding for the end of the text; where the two are
    one token, that would be the token before.
    """
    if tokenizer.pad_token is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        spare = [tokenizer.unk_token, *sorted(tokenizer.get_added_vocab(), key=lambda token: "pad" not in token)]
        tokenizer.pad_token = next(
            (token for token in spare if token not in (None, tokenizer.eos_token, tokenizer.bos_token)),
            tokenizer.eos_token,
        )
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id


def bradley_terry(scores: Tensor, margins: Tensor) -> Tensor:
    """-log sigmoid(s_chosen - s_rejected - margin), summed over pairs (Bradley and Terry 1952; arXiv:2203.02155, eq. 1;
    with the margin of arXiv:2307.09288, eq. 2).

    scores: (n, 2), the better one's first; margins: (n,).
    """
    return -F.logsigmoid(scores[:, 0] - scores[:, 1] - margins).sum()


def train_reward_model(
    learner: RewardModelTrainer,
    pairs: Sequence[PreferencePair],
    config: RewardTrainConfig,
    optim: OptimConfig,
    *,
    seed: int,
    on_step: Callable[[dict[str, float]], None] | None = None,
) -> None:
    """`epochs` passes over the pairs by AdamW. `on_step` gets each step's numbers.

    loss: mean over the step's pairs; accuracy: share of them told apart before the step; margin: mean difference of
    scores. Raises NotFinite where gradients are not finite at several steps in a row, or the weights in the end.
    """
    hint = f"--optim.lr ({optim.lr:g}) and --model.dtype (float32 does not overflow where the others do)"
    gradients = GradientWatch(python_warning, hint)
    encoded = [learner.encode(pair) for pair in pairs]
    parameters = [weight for weight in learner.model.parameters() if weight.requires_grad]
    optimizer = make_optimizer(parameters, optim)
    num_steps = num_training_steps(len(encoded), config)
    learner.model.train()
    for step in range(num_steps):
        chosen = items_of_step(encoded, min(config.batch_size, len(encoded)), seed=seed, step=step)
        loss, right, difference = 0.0, 0, 0.0
        for micro in microbatches(chosen, optim.tokens_per_microbatch):
            scores = learner.scores(micro)
            margins = torch.tensor([margin for _, _, margin in micro], device=scores.device)
            part = bradley_terry(scores, margins) / len(chosen)
            part.backward()
            apart = (scores[:, 0] - scores[:, 1]).detach()
            loss, right, difference = (
                loss + float(part.detach()),
                right + int((apart > 0).sum()),
                difference + float(apart.sum()),
            )
        lr = learning_rate(step, optim, num_steps)
        norm = optimizer_step(optimizer, lr=lr, max_grad_norm=optim.max_grad_norm)
        if on_step:
            on_step(
                {
                    "step": step + 1,
                    "loss": loss,
                    "accuracy": right / len(chosen),
                    "margin": difference / len(chosen),
                    "grad_norm": norm,
                    "lr": lr,
                }
            )
        gradients.observe(step + 1, count_not_finite([norm]))
    check_weights(learner.model.named_parameters(), f"the training broke the reward model (look at {hint})")
    learner.model.eval()


def num_training_steps(num_pairs: int, config: RewardTrainConfig) -> int:
    """Steps of the whole training: every pair is seen at least `epochs` times."""
    return math.ceil(config.epochs * num_pairs / min(config.batch_size, num_pairs))


def microbatches(pairs: Sequence[EncodedPair], max_tokens: int) -> Iterator[list[EncodedPair]]:
    """The pairs in order, cut so that a part holds at most `max_tokens` tokens with padding (one pair at least)."""
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


def measure(learner: RewardModelTrainer, pairs: Sequence[PreferencePair], *, batch_size: int = 64) -> dict[str, Any]:
    """What a reward model is worth on held-out pairs.

    accuracy with a 95 % interval over prompts; the mean Bradley-Terry loss; ece and reliability (see `calibration`);
    mean and std of the scores of all distinct held-out completions.
    """
    places: dict[tuple[str, str], int] = {}
    texts: list[Encoded] = []
    for pair in pairs:
        for text in (pair.chosen, pair.rejected):
            if (pair.key, text) not in places:
                places[pair.key, text] = len(texts)
                texts.append(learner.renderer.encode(pair.prompt, text))
    scorer = Scorer(learner.classifier, label=0, device=learner.classifier.device, batch_size=batch_size, offload=False)
    with torch.autocast(learner.classifier.device.type, learner.dtype, enabled=learner.dtype is not torch.float32):
        scores = [values[0] for values in scorer.score(texts)]
    if not all(map(math.isfinite, scores)):
        raise ValueError("the trained model gives scores that are not finite; lower --optim.lr")
    apart = [scores[places[p.key, p.chosen]] - scores[places[p.key, p.rejected]] for p in pairs]
    accuracy, low, high = clustered_share([d > 0 for d in apart], [p.key for p in pairs])
    ece, reliability = calibration(apart)
    mean = math.fsum(scores) / len(scores)
    return {
        "pairs": len(pairs),
        "prompts": len({p.key for p in pairs}),
        "accuracy": accuracy,
        "accuracy_ci": [low, high],
        "loss": math.fsum(math.log1p(math.exp(-abs(d))) + max(-d, 0.0) for d in apart) / len(apart),
        "ece": ece,
        "reliability": reliability,
        "mean": mean,
        "std": math.sqrt(math.fsum((s - mean) ** 2 for s in scores) / len(scores)),
        "completions": len(scores),
    }


def clustered_share(
    hits: Sequence[bool], clusters: Sequence[str], confidence: float = 0.95
) -> tuple[float, float, float]:
    """Return the share of hits and its interval, clustered by prompt (rlvr.training.passk.clustered).

    The interval is [0, 1] with a single cluster.
    """
    groups: dict[str, list[bool]] = {}
    for hit, cluster in zip(hits, clusters, strict=True):
        groups.setdefault(cluster, []).append(hit)
    rows = list(groups.values())
    estimate = clustered([sum(row) / len(row) for row in rows], confidence, weights=[len(row) for row in rows])
    return estimate.mean, estimate.low, estimate.high


def calibration(differences: Sequence[float]) -> tuple[float, list[dict[str, float]]]:
    """Expected calibration error (arXiv:1706.04599, eq. 3) of sigmoid(s_chosen - s_rejected), and its table.

    The model's confidence in the one it prefers lies in [.5, 1], cut into bins of equal width; in each bin the mean
    confidence is held against the share in which the preferred one is the better. Ties count half.
    """
    bins: list[list[tuple[float, float]]] = [[] for _ in range(BINS)]
    for d in differences:
        confidence = 1 / (1 + math.exp(-min(abs(d), 700.0)))
        bins[min(int((confidence - 0.5) * 2 * BINS), BINS - 1)].append((confidence, 0.5 if d == 0 else float(d > 0)))
    table = []
    for number, held in enumerate(bins):
        if held:
            confidence = math.fsum(c for c, _ in held) / len(held)
            right = math.fsum(r for _, r in held) / len(held)
            low = 0.5 + number / (2 * BINS)
            table.append({"from": low, "pairs": len(held), "confidence": confidence, "accuracy": right})
    ece = math.fsum(row["pairs"] * abs(row["confidence"] - row["accuracy"]) for row in table) / len(differences)
    return ece, table
