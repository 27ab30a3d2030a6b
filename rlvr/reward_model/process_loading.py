"""Process reward models made ready to score: a head on the states of tokens, or two tokens of a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

from rlvr.core.types import RunError
from rlvr.model.device import pick_device, pick_dtype
from rlvr.reward_model.loading import LocalBackend
from rlvr.reward_model.process import ProcessRewardModel
from rlvr.reward_model.scorer import Classifier, Parts, Scorer, load_parts, load_weights
from rlvr.reward_model.text import StepRenderer, one_token, token_limit

Form = Literal["head", "tokens"]
TAGS: dict[Form, str] = {"head": "<extra_0>", "tokens": "ки"}
# Qwen2.5-Math-PRM's own class: a head of two layers on Qwen2's trunk, which needs no code of the hub.
TWO_LAYERS = "Qwen2ForProcessRewardModel"
TOLERANCE = 1e-2  # of the difference of the answers' logits from the model's own, on a short text


@dataclass(frozen=True)
class LoadedProcessModel:
    """A process reward model that is ready to score."""

    renderer: StepRenderer
    backend: LocalBackend


def load_process_model(options: ProcessRewardModel) -> LoadedProcessModel:
    """Load the model. Raises RunError with one line where that fails."""
    try:
        parts = load_parts(options.model, revision=options.revision, trust_remote_code=options.trust_remote_code)
        form = form_of(options, parts)
        chat = "never" if options.chat == "auto" and form == "tokens" else options.chat
        renderer = StepRenderer(
            parts.tokenizer,
            tag=options.tag or TAGS[form],
            separator=options.separator,
            system_prompt=options.system_prompt,
            chat=chat,
            max_tokens=token_limit(parts.tokenizer, parts.config, options.max_tokens),
        )
        model, label = (load_head if form == "head" else load_answers)(options, parts)
    except ValueError as error:
        raise RunError(f"process_reward_model: {error}") from error
    tokenizer = parts.tokenizer
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    side = tokenizer.padding_side if options.padding == "auto" else options.padding
    scorer = Scorer(
        Classifier(model, pad_id=int(pad), padding_side=side),
        label=label,
        device=pick_device(options.device),
        batch_size=options.batch_size,
        offload=options.placement == "offload",
    )
    return LoadedProcessModel(renderer, LocalBackend(scorer))


def form_of(options: ProcessRewardModel, parts: Parts) -> Form:
    """Return the form of a model: as asked for, else by its architecture. Raises ValueError where that tells none."""
    if options.form != "auto":
        return options.form
    names = list(parts.config.architectures or [])
    if any(name == TWO_LAYERS or name.endswith("ForTokenClassification") for name in names):
        return "head"
    if any(name.endswith("ForCausalLM") for name in names):
        return "tokens"
    shown = ", ".join(names) or "no architecture"
    raise ValueError(
        f"model {options.model!r} is {shown}, and neither a classifier of tokens nor a language model: it does not "
        "score steps (reward_model scores whole texts)"
    )


def load_head(options: ProcessRewardModel, parts: Parts) -> tuple[Any, int]:
    """Return a classifier of tokens with its head as `score`, and the label that is scored."""
    kind = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING.get(type(parts.config), None)
    if kind is None:
        raise ValueError(f"model {options.model!r}: transformers has no classifier of tokens for its kind")
    labels = parts.config.num_labels
    if labels > 2:
        raise ValueError(f"model {options.model!r} has {labels} labels; expected two, wrong and right, or one score")
    if TWO_LAYERS in (parts.config.architectures or []):
        kind = with_two_layers(kind)
    model = loaded(options, parts, kind)
    if not isinstance(getattr(model, "score", None), nn.Module):
        raise ValueError(f"model {options.model!r} is no decoder with a head; expected a causal one")
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


def load_answers(options: ProcessRewardModel, parts: Parts) -> tuple[Any, int]:
    """Return a language model with the two answers' rows of its LM head as `score`, and the label of the good one.

    Raises ValueError for one whose logits are not those of its LM head.
    """
    ids = [
        one_token(parts.tokenizer, f" {text}", option)
        for option, text in (("good", options.good), ("bad", options.bad))
    ]
    model = loaded(options, parts, AutoModelForCausalLM)
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


def loaded(options: ProcessRewardModel, parts: Parts, kind: Any) -> Any:
    """Return a model of a class with its weights. Raises ValueError where some are missing."""
    target = pick_device(options.device)
    if target.type == "cpu":
        # torch's CPU flash attention is several times slower under the matmul setting of rlvr.model.device.
        parts.config._attn_implementation = "eager"
    dtype = pick_dtype(options.dtype, target)
    model, missing = load_weights(options.model, parts, dtype, trust_remote_code=options.trust_remote_code, kind=kind)
    if missing:
        raise ValueError(
            f"model {options.model!r} has no weights for {', '.join(missing)}: it was not trained for this"
        )
    return model.eval()
