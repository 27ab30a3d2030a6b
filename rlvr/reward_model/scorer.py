"""Scores of a sequence-classification model, whatever the padding."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.utils import cached_file, logging

from rlvr.files.models import SETTINGS, Source, find_model
from rlvr.model.device import pick_device, pick_dtype
from rlvr.model.load_errors import load_errors_as_value_error
from rlvr.model.lora import load_adapter, merge_adapter
from rlvr.model.tokenizer import load_tokenizer
from rlvr.reward_model.text import Encoded

KIND = "sequence classifier"


class Classifier:
    """A sequence classifier whose scores do not depend on what its texts are padded with, or on which side.

    Where the model is a causal trunk with a linear head `score`, the head reads the hidden state of the last real
    token, found by the attention mask (transformers looks for the last id that is not the padding's, which goes wrong
    where padding and end token are one, and refuses a batch where there is no padding token). Other architectures pool
    in their own way, by the mask.
    """

    def __init__(self, model: Any, *, pad_id: int, padding_side: str = "right") -> None:
        self.model = model
        self.pad_id = pad_id
        self.trunk: Any = model.base_model if hasattr(model, "score") else None
        if self.trunk is not None:
            self.has_positions = "position_ids" in inspect.signature(self.trunk.forward).parameters
        # Left padding moves a text's tokens, which only position ids can undo.
        movable = self.trunk is not None and self.has_positions
        self.padding_side = padding_side if movable else "right"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    def logits(self, texts: Sequence[Encoded]) -> Tensor:
        """The head's outputs at each text's positions, in order: float32 (number of positions, labels)."""
        tokens, mask, starts = self._pad(texts)
        if self.trunk is None:
            return self.model(input_ids=tokens, attention_mask=mask).logits.float()
        places = {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)} if self.has_positions else {}
        hidden = self.trunk(input_ids=tokens, attention_mask=mask, use_cache=False, **places).last_hidden_state
        rows = [row for row, text in enumerate(texts) for _ in text.positions]
        columns = [starts[row] + place for row, text in enumerate(texts) for place in text.positions]
        # The head is computed in float32: scores of good and bad answers may differ by little.
        with torch.autocast(hidden.device.type, enabled=False):
            return self.model.score(hidden[rows, columns].float())

    def _pad(self, texts: Sequence[Encoded]) -> tuple[Tensor, Tensor, list[int]]:
        """Tokens and mask (B, T), and the column where each text starts."""
        width = max(len(text.ids) for text in texts)
        tokens = torch.full((len(texts), width), self.pad_id, dtype=torch.long)
        mask = torch.zeros((len(texts), width), dtype=torch.long)
        starts = [width - len(text.ids) if self.padding_side == "left" else 0 for text in texts]
        for row, (text, start) in enumerate(zip(texts, starts)):
            end = start + len(text.ids)
            tokens[row, start:end] = torch.tensor(text.ids)
            mask[row, start:end] = 1
        return tokens.to(self.device), mask.to(self.device), starts


class Scorer:
    """A reward model on this machine: log-odds of texts, in batches of similar length.

    With `offload` the weights lie in the CPU's memory between calls.
    """

    def __init__(
        self, classifier: Classifier, *, label: int, device: torch.device, batch_size: int, offload: bool
    ) -> None:
        self.classifier = classifier
        self.label = label
        self.device = device
        self.batch_size = batch_size
        self.offload = offload

    @torch.inference_mode()
    def score(self, texts: Sequence[Encoded]) -> list[tuple[float, ...]]:
        """The log-odds at each text's positions, in the order of the texts."""
        found: list[tuple[float, ...]] = [()] * len(texts)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i].ids))
        with self._on_device():
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                batch = [texts[i] for i in chosen]
                values = iter(log_odds(self.classifier.logits(batch), self.label).tolist())
                for i, text in zip(chosen, batch):
                    found[i] = tuple(next(values) for _ in text.positions)
        return found

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        model = self.classifier.model
        if self.classifier.device != self.device:
            model.to(self.device)
        try:
            yield
        finally:
            if self.offload:
                model.to("cpu")
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()


def log_odds(logits: Tensor, label: int) -> Tensor:
    """The log-odds of a label (n,) from logits (n, labels); a model with one label gives them as they are.

    Of several labels: z_l - log sum over the others of exp z, so that a sigmoid of it is the softmax's share.
    """
    if logits.shape[-1] == 1:
        return logits[:, 0]
    others = torch.cat([logits[:, :label], logits[:, label + 1 :]], dim=-1)
    return logits[:, label] - others.logsumexp(-1)


def find_label(num_labels: int, names: dict[int, str], label: str | None, name: str) -> int:
    """The label whose log-odds are the score, by its number or name. ValueError where a model has several and no choice
    was made, and for one that it does not have."""
    shown = ", ".join(f"{i}: {names.get(i, '?')}" for i in range(num_labels))
    if label is None:
        if num_labels != 1:
            raise ValueError(
                f"model {name!r} has {num_labels} labels ({shown}) and a reward is one number; name one with label=1"
            )
        return 0
    found = [i for i in range(num_labels) if label in (str(i), names.get(i))]
    if not found:
        raise ValueError(f"model {name!r} has no label {label!r}; its labels are {shown}")
    return found[0]


@dataclass(frozen=True)
class Parts:
    """What is known of a classifier before its weights are read."""

    source: Source
    tokenizer: Any
    config: Any


def load_parts(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Parts:
    """Tokenizer and config of a hub name or folder; of an adapter, its base's with the adapter's number of labels.

    ValueError where there is none.
    """
    source = find_model(name, revision, kind=KIND)
    trust = {"trust_remote_code": trust_remote_code}
    with load_errors_as_value_error(name, KIND):
        tokenizer = load_tokenizer(source.tokenizer.name, **source.tokenizer.options(), **trust)
        config = AutoConfig.from_pretrained(source.weights.name, **source.weights.options(), **trust)
        labels = adapter_labels(source)
    if labels is not None:
        config.num_labels = labels
    return Parts(source, tokenizer, config)


def adapter_labels(source: Source) -> int | None:
    """Outputs of the head that an adapter brings with it; None without an adapter, or a head in it."""
    if source.adapter is None:
        return None
    from peft import load_peft_weights

    held = load_peft_weights(source.adapter.name, device="cpu", **source.adapter.options())
    return next((len(value) for key, value in held.items() if key.endswith(".score.weight")), None)


def load_classifier(
    name: str,
    *,
    device: str,
    dtype: Literal["auto", "float32", "bfloat16"],
    padding_side: str | None = None,
    num_labels: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Classifier, Any]:
    """A classifier and its tokenizer from a hub name or folder; the weights stay on the CPU. An adapter is merged.

    With `num_labels` a missing head is made (a causal LM's trunk becomes the trunk); without it ValueError says that
    the model was never trained to score. Changes nothing in torch's global random state.
    """
    parts = load_parts(name, revision=revision, trust_remote_code=trust_remote_code)
    source, tokenizer, config = parts.source, parts.tokenizer, parts.config
    place = pick_device(device)
    held = pick_dtype(dtype, place)
    if place.type == "cpu":
        # torch's CPU flash attention is several times slower under the matmul setting of rlvr.model.device.
        config._attn_implementation = "eager"
    brings_head = adapter_labels(source) is not None
    if num_labels is not None:
        config.num_labels = num_labels
    with load_errors_as_value_error(name, KIND), quietly(), torch.random.fork_rng(devices=[]):
        model, found = AutoModelForSequenceClassification.from_pretrained(
            source.weights.name,
            config=config,
            dtype=torch.float32 if source.adapter else held,
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
            **source.weights.model_options(),
        )
        if source.adapter:
            model = merge_adapter(load_adapter(model, source, trained=False)).to(held)
    if found["missing_keys"] and num_labels is None and not brings_head:
        missing = ", ".join(sorted(found["missing_keys"]))
        raise ValueError(
            f"model {name!r} has no weights for {missing}: it was not trained to score; train one with `rlvr rm`"
        )
    head = getattr(model, "score", None)
    if isinstance(head, nn.Module):
        head.float()
    model.eval()
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    return Classifier(model, pad_id=int(pad), padding_side=padding_side or tokenizer.padding_side), tokenizer


@contextmanager
def quietly() -> Iterator[None]:
    """Inside, transformers shows no progress and no table of missing weights: whoever loads decides what they mean."""
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
    """The path of reward_model.json beside a model, in its folder or on the hub; None where there is none."""
    place = source.adapter or source.weights
    return cached_file(
        place.name,
        SETTINGS,
        **place.options(),
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
