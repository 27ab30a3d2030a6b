"""Load sequence classifiers, and score texts with them. A score does not depend on padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.utils import cached_file, logging

from rlvr.algo.batch import copy_to
from rlvr.core.files.models import SETTINGS, Source
from rlvr.model.load.gguf import find_converted
from rlvr.model.load.lora import load_adapter, merge_adapter
from rlvr.model.load.pretrained import load_errors_as_value_error, load_tokenizer, pick_device, pick_dtype

from .text import Encoded

KIND = "sequence classifier"


class Classifier:
    """A sequence classifier whose scores do not depend on padding.

    With a causal trunk the head `score` reads the hidden states at the positions that are asked for. (transformers
    would look for the last id other than the padding token's, which is wrong where the end token pads, and impossible
    for batches without a padding token.) Other architectures do their own masked pooling.
    """

    def __init__(self, model: Any, *, pad_id: int) -> None:
        self.model, self.pad_id = model, pad_id
        self.trunk: Any = model.base_model if hasattr(model, "score") else None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def logits(self, texts: Sequence[Encoded]) -> Tensor:
        """Return the head's outputs at each text's positions, in order: float32 (number of positions, labels)."""
        tokens, mask = self._pad(texts)
        if self.trunk is None:
            return self.model(input_ids=tokens, attention_mask=mask).logits.float()
        hidden = self.trunk(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
        rows = [row for row, text in enumerate(texts) for _ in text.positions]
        columns = [place for text in texts for place in text.positions]
        # In float32, because good and bad answers may differ by little.
        with torch.autocast(hidden.device.type, enabled=False):
            return self.model.score(hidden[rows, columns].float())

    def _pad(self, texts: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
        """Return tokens and mask (B, T), padded on the right, which moves no position."""
        width = max(len(text.ids) for text in texts)
        tokens = torch.full((len(texts), width), self.pad_id, dtype=torch.long)
        mask = torch.zeros((len(texts), width), dtype=torch.long)
        for row, text in enumerate(texts):
            tokens[row, : len(text.ids)] = torch.tensor(text.ids)
            mask[row, : len(text.ids)] = 1
        return copy_to(tokens, self.device), copy_to(mask, self.device)


class Scorer:
    """Scores texts in this process, in batches of similar length. With `offload` the weights wait in CPU memory."""

    def __init__(
        self, classifier: Classifier, *, label: int, device: torch.device, batch_size: int, offload: bool
    ) -> None:
        self.classifier = classifier
        self.label = label
        self.device = device
        self.batch_size = batch_size
        self.offload = offload
        if offload and device.type == "cuda":
            for tensor in self._tensors():
                tensor.data = tensor.data.pin_memory()  # copies from there are faster

    @torch.inference_mode()
    def score(self, texts: Sequence[Encoded]) -> list[tuple[float, ...]]:
        """Return the log-odds at each text's positions, in the order of the texts."""
        scores: list[tuple[float, ...]] = [()] * len(texts)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i].ids))
        with self._on_device():
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                batch = [texts[i] for i in chosen]
                values = iter(log_odds(self.classifier.logits(batch), self.label).tolist())
                for i, text in zip(chosen, batch):
                    scores[i] = tuple(next(values) for _ in text.positions)
        return scores

    def _tensors(self) -> list[Tensor]:
        return [*self.classifier.model.parameters(), *self.classifier.model.buffers()]

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        if not self.offload:
            self.classifier.model.to(self.device)
            yield
            return
        tensors = self._tensors()
        host = [tensor.data for tensor in tensors]
        try:
            for tensor in tensors:
                tensor.data = copy_to(tensor.data, self.device)
            yield
        finally:
            for tensor, value in zip(tensors, host):
                tensor.data = value  # scoring does not change it
            if self.device.type == "cuda":
                torch.cuda.empty_cache()


def log_odds(logits: Tensor, label: int) -> Tensor:
    """Return the log-odds (n,) of a label from logits (n, labels); with a single label, the logits themselves.

    With several: z_label - logsumexp of the others, whose sigmoid is the label's softmax probability.
    """
    if logits.shape[-1] == 1:
        return logits[:, 0]
    others = torch.cat([logits[:, :label], logits[:, label + 1 :]], dim=-1)
    return logits[:, label] - others.logsumexp(-1)


def find_label(num_labels: int, names: dict[int, str], label: str | None, name: str) -> int:
    """Return the index of the label to score, given by number or name; None: the model's only one.

    Raises ValueError for a model with several labels where none is named, and for a label that it does not have.
    """
    shown = ", ".join(f"{i}: {names.get(i, '?')}" for i in range(num_labels))
    if label is None:
        if num_labels != 1:
            raise ValueError(
                f"model {name!r} has {num_labels} labels ({shown}), and a reward is one number; name one with label=1"
            )
        return 0
    found = [i for i in range(num_labels) if label in (str(i), names.get(i))]
    if not found:
        raise ValueError(f"model {name!r} has no label {label!r}; its labels are {shown}")
    return found[0]


@dataclass(frozen=True)
class Parts:
    """A classifier without its weights. adapter_labels: outputs of the head that an adapter contains, if it does."""

    source: Source
    tokenizer: Any
    config: Any
    adapter_labels: int | None


def load_parts(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Parts:
    """Load tokenizer and config of a hub name or folder. An adapter has its base's, with its own labels.

    Raises ValueError where there is no such model.
    """
    source = find_converted(name, revision, kind=KIND)
    trust = {"trust_remote_code": trust_remote_code}
    with load_errors_as_value_error(name, KIND):
        tokenizer = load_tokenizer(source.tokenizer.name, **source.tokenizer.options(), **trust)
        config = AutoConfig.from_pretrained(source.weights.name, **source.weights.options(), **trust)
        labels = adapter_labels(source)
    if labels is not None:
        config.num_labels = labels
    return Parts(source, tokenizer, config, labels)


def adapter_labels(source: Source) -> int | None:
    """Return the number of outputs of the head that an adapter contains; None without an adapter or a head in it."""
    if source.adapter is None:
        return None
    from peft import load_peft_weights

    weights = load_peft_weights(source.adapter.name, device="cpu", **source.adapter.options())
    return next((len(value) for key, value in weights.items() if key.endswith(".score.weight")), None)


def load_classifier(
    name: str,
    *,
    device: str,
    dtype: Literal["auto", "float32", "bfloat16"],
    num_labels: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Classifier, Any]:
    """Load a classifier and its tokenizer from a hub name or folder, adapters merged, weights on the CPU.

    With `num_labels` a missing head is created, for example on a causal LM's trunk. Without it a missing head raises
    ValueError, as does a model that cannot be loaded. torch's global random state does not change.
    """
    parts = load_parts(name, revision=revision, trust_remote_code=trust_remote_code)
    if num_labels is not None:
        parts.config.num_labels = num_labels
    model, missing = load_weights(name, parts, dtype, device, trust_remote_code=trust_remote_code)
    if missing and num_labels is None:
        raise ValueError(
            f"model {name!r} has no weights for {', '.join(missing)}: it was not trained to score; train one with "
            "`rlvr rm`"
        )
    head = getattr(model, "score", None)
    if isinstance(head, nn.Module):
        head.float()
    return Classifier(model, pad_id=pad_id(parts.tokenizer)), parts.tokenizer


def pad_id(tokenizer: Any) -> int:
    """Return the id that fills a batch; attention masks it, so that any will do."""
    return 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)


def load_weights(
    name: str,
    parts: Parts,
    dtype: Literal["auto", "float32", "bfloat16"],
    device: str,
    *,
    trust_remote_code: bool,
    kind: Any = AutoModelForSequenceClassification,
) -> tuple[Any, list[str]]:
    """Load a model of a class, with an adapter merged into it; return it with the names that no file has, sorted.

    The weights stay on the CPU; `device` decides their dtype. Raises ValueError where they cannot be loaded.
    """
    source, target = parts.source, pick_device(device)
    if target.type == "cpu":
        # torch's CPU flash attention is several times slower under the matmul setting of rlvr.model.cpu.processor.
        parts.config._attn_implementation = "eager"
    with load_errors_as_value_error(name, KIND), quietly(), torch.random.fork_rng(devices=[]):
        model, report = kind.from_pretrained(
            source.weights.name,
            config=parts.config,
            dtype=torch.float32 if source.adapter else pick_dtype(dtype, target),
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
            **source.weights.model_options(),
        )
        if source.adapter:
            model = merge_adapter(load_adapter(model, source, trained=False)).to(pick_dtype(dtype, target))
    brings_head = parts.adapter_labels is not None
    return model.eval(), [] if brings_head else sorted(report["missing_keys"])


@contextmanager
def quietly() -> Iterator[None]:
    """Silence transformers' progress bars and reports of missing weights; the caller checks those itself."""
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()


def settings_file(source: Source) -> str | None:
    """Return the path of reward_model.json beside a model, in its folder or from the hub; None without one."""
    place = source.adapter or source.weights
    return cached_file(
        place.name,
        SETTINGS,
        **place.options(),
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
