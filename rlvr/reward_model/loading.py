"""Reward models made ready to score: loaded into this process, or reached behind a vLLM server."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

from rlvr.core.http import JSONClient, ServerLost, UnexpectedResponse
from rlvr.core.types import RunError
from rlvr.model.load.pretrained import pick_device

from .learned import Learned, Scored
from .scorer import (
    Classifier,
    Parts,
    Scorer,
    find_label,
    load_classifier,
    load_parts,
    load_weights,
    pad_id,
    settings_file,
)
from .text import Encoded, Renderer, StepRenderer, find_token, token_limit

Form = Literal["head", "tokens"]
TAGS: dict[Form, str] = {"head": "<extra_0>", "tokens": "ки"}
# Qwen2.5-Math-PRM's own class: a head of two layers on Qwen2's trunk, which needs no code of the hub.
TWO_LAYERS = "Qwen2ForProcessRewardModel"
TOLERANCE = 1e-2  # of the difference of the answers' logits from the model's own, on a short text
SCHEMA = "vLLM's schema"


@dataclass(frozen=True)
class LoadedRewardModel:
    """A model that is ready to score. mean, std: a score is (log-odds - mean) / std."""

    renderer: Renderer
    backend: Scorer | Server
    mean: float = 0.0
    std: float = 1.0


def load_reward_model(
    options: Learned, server: Server | None, *, label: str | None, mean: float | None, std: float | None
) -> LoadedRewardModel:
    """Load the model, or reach the server. Raises RunError with one line where that fails."""
    try:
        parts = load_parts(options.model, revision=options.revision, trust_remote_code=options.trust_remote_code)
        number = find_label(parts.config.num_labels, parts.config.id2label, label, options.model)
        file = settings_file(parts.source)  # what `rlvr rm` recorded beside the model
        recorded: dict[str, Any] = json.loads(Path(file).read_text("utf-8")) if file else {}
        limit = token_limit(parts.tokenizer, parts.config, options.max_tokens or int(recorded.get("max_tokens", 0)))
        tokenizer = parts.tokenizer
        if server is None:
            classifier, tokenizer = load_classifier(
                options.model,
                device=options.device,
                dtype=options.dtype,
                revision=options.revision,
                trust_remote_code=options.trust_remote_code,
            )
            backend: Scorer | Server = open_scorer(options, classifier, number)
        else:
            served_limit = server.connect(number, named=label is not None)
            backend, limit = server, min((one for one in (limit, served_limit) if one), default=0)
        renderer = Renderer(
            tokenizer,
            system_prompt=recorded.get("system_prompt") if options.system_prompt is None else options.system_prompt,
            chat=recorded.get("chat", "auto") if options.chat == "auto" else options.chat,
            max_tokens=limit,
        )
    except (ValueError, ServerLost) as error:
        raise RunError(f"{options.NAME}: {error}") from error
    mean = float(recorded.get("mean", 0.0)) if mean is None else mean
    std = float(recorded.get("std", 1.0)) if std is None else std
    return LoadedRewardModel(renderer, backend, mean, std)


def open_scorer(options: Learned, classifier: Classifier, label: int) -> Scorer:
    """Return what scores with a classifier in this process."""
    offload = options.placement == "offload"
    device = pick_device(options.device)
    return Scorer(classifier, label=label, device=device, batch_size=options.batch_size, offload=offload)


class Server:
    """vLLM's pooling server, which scores `batch_size` texts a request through its route /classify.

    Scoring changes nothing there, so a request that failed is sent again, 1 + `retries` times in all. After that the
    remaining requests of a call are not sent, because they would wait for the same server.
    """

    def __init__(self, url: str, timeout: float, retries: int, batch_size: int) -> None:
        self.client = JSONClient(url, name="reward server", timeout=timeout, retries=retries)
        self.batch_size = batch_size
        self.model, self.label, self.named = "", 0, False

    def connect(self, label: int, *, named: bool) -> int:
        """Ask for the server's first model, and return how many tokens it reads (0: the server does not say).

        label: the one to score; named: the user chose it. Raises ServerLost or ValueError where the server does not
        answer as vLLM does.
        """

        def take(answer: Any) -> tuple[str, int]:
            model = answer["data"][0]
            return str(model["id"]), int(model.get("max_model_len") or 0)

        self.label, self.named = label, named
        self.model, limit = self.client.read("/v1/models", self.client.get("/v1/models"), take, SCHEMA)
        return limit

    def score(self, texts: Sequence[Encoded]) -> list[Scored]:
        """Return the log-odds of each text, or the failure that left it without."""
        scores: list[Scored] = []
        for start in range(0, len(texts), self.batch_size):
            try:
                logits = self._classify(texts[start : start + self.batch_size])
                scores += [(self._log_odds(row),) for row in logits]
            except (ServerLost, ValueError) as error:
                return scores + [str(error)] * (len(texts) - len(scores))
        return scores

    def _classify(self, texts: Sequence[Encoded]) -> list[list[float]]:
        """Return the logits of each text, which travels as its token ids."""

        def take(answer: Any) -> list[list[float]]:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            # Servers write NaN, which JSON does not have, as null.
            return [[math.nan if v is None else float(v) for v in row["probs"]] for row in rows]

        body = {"model": self.model, "input": [list(text.ids) for text in texts], "use_activation": False}
        found = self.client.read("/classify", self.client.post("/classify", body, idempotent=True), take, SCHEMA)
        if len(found) != len(texts):
            where = f"{self.client.url}/classify"
            raise UnexpectedResponse(f"the reward server {where} returned {len(found)} scores for {len(texts)} texts")
        return found

    def _log_odds(self, logits: Sequence[float]) -> float:
        if self.label >= len(logits):
            raise ValueError(f"the reward server returned {len(logits)} labels; label {self.label} was asked for")
        if len(logits) > 1 and not self.named:
            raise ValueError(f"the reward server's model has {len(logits)} labels; choose one, e.g. label=1")
        if len(logits) == 1 or not all(map(math.isfinite, logits)):
            return logits[self.label] if len(logits) == 1 else math.nan
        others = [z for i, z in enumerate(logits) if i != self.label]
        top = max(others)
        return logits[self.label] - top - math.log(math.fsum(math.exp(z - top) for z in others))


def load_process_model(
    options: Learned,
    *,
    form: Literal["auto", "head", "tokens"],
    tag: str | None,
    separator: str,
    answers: tuple[str, str],
) -> LoadedRewardModel:
    """Load a model that scores steps: with a head on the states of tokens, or by two tokens of a language model.

    answers: the tokens for a good and for a bad step. Raises RunError with one line where that fails.
    """
    try:
        parts = load_parts(options.model, revision=options.revision, trust_remote_code=options.trust_remote_code)
        kind = form_of(options.model, parts) if form == "auto" else form
        renderer = StepRenderer(
            parts.tokenizer,
            tag=tag or TAGS[kind],
            separator=separator,
            system_prompt=options.system_prompt,
            chat="never" if options.chat == "auto" and kind == "tokens" else options.chat,
            max_tokens=token_limit(parts.tokenizer, parts.config, options.max_tokens),
        )
        model, label = load_head(options, parts) if kind == "head" else load_answers(options, parts, answers)
    except ValueError as error:
        raise RunError(f"{options.NAME}: {error}") from error
    classifier = Classifier(model, pad_id=pad_id(parts.tokenizer))
    return LoadedRewardModel(renderer, open_scorer(options, classifier, label))


def form_of(model: str, parts: Parts) -> Form:
    """Return the form of a model by its architecture. Raises ValueError where that does not tell."""
    names = list(parts.config.architectures or [])
    if any(name == TWO_LAYERS or name.endswith("ForTokenClassification") for name in names):
        return "head"
    if any(name.endswith("ForCausalLM") for name in names):
        return "tokens"
    shown = ", ".join(names) or "no architecture"
    raise ValueError(
        f"model {model!r} is {shown}, and neither a classifier of tokens nor a language model: it does not score steps "
        "(reward_model scores whole texts)"
    )


def load_head(options: Learned, parts: Parts) -> tuple[Any, int]:
    """Return a classifier of tokens with its head as `score`, and the label that is scored."""
    name, labels = options.model, parts.config.num_labels
    kind = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING.get(type(parts.config), None)
    if kind is None:
        raise ValueError(f"model {name!r}: transformers has no classifier of tokens for its kind")
    if labels > 2:
        raise ValueError(f"model {name!r} has {labels} labels; expected two, wrong and right, or one score")
    if TWO_LAYERS in (parts.config.architectures or []):
        kind = with_two_layers(kind)
    model = load_step_model(options, parts, kind)
    if not isinstance(getattr(model, "score", None), nn.Module):
        raise ValueError(f"model {name!r} is no decoder with a head; expected a causal one")
    model.score.float()
    return model, labels - 1


def with_two_layers(kind: Any) -> Any:
    """Return the class of a classifier of tokens, with a head of two layers."""

    def __init__(self: Any, config: Any) -> None:
        kind.__init__(self, config)
        width = config.hidden_size
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, config.num_labels))
        self.post_init()

    return type(TWO_LAYERS, (kind,), {"__init__": __init__})


def load_answers(options: Learned, parts: Parts, answers: tuple[str, str]) -> tuple[Any, int]:
    """Return a language model with the two answers' rows of its LM head as `score`, and the label of the good one.

    Raises ValueError for a model whose logits are not those of its LM head.
    """
    ids = [find_token(parts.tokenizer, f" {text}", option) for option, text in zip(("good", "bad"), answers)]
    model = load_step_model(options, parts, AutoModelForCausalLM)
    head = model.get_output_embeddings()
    with torch.random.fork_rng(devices=[]):
        score = nn.Linear(head.weight.shape[1], 2, bias=getattr(head, "bias", None) is not None)
    with torch.no_grad():
        score.weight.copy_(head.weight[ids])
        if score.bias is not None:
            score.bias.copy_(head.bias[ids])
        tried = torch.tensor([ids])
        states = model.base_model(input_ids=tried, use_cache=False).last_hidden_state
        own = model(input_ids=tried, use_cache=False).logits[..., ids].float()
        found = score(states.float())
    if not torch.allclose(own[..., 0] - own[..., 1], found[..., 0] - found[..., 1], atol=TOLERANCE, rtol=TOLERANCE):
        raise ValueError(f"model {options.model!r} changes the logits of its LM head; its answers cannot be scored")
    model.score = score
    return model, 0


def load_step_model(options: Learned, parts: Parts, kind: Any) -> Any:
    """Return a model of a class with its weights. Raises ValueError where some are missing."""
    model, missing = load_weights(
        options.model, parts, options.dtype, options.device, trust_remote_code=options.trust_remote_code, kind=kind
    )
    if missing:
        lack = ", ".join(missing)
        raise ValueError(f"model {options.model!r} has no weights for {lack}: it was not trained for this")
    return model
