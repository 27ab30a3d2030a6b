"""Random tiny models of every family that transformers has as a causal LM, with windows shorter than the texts.

And how far training and sampling are from their plain forward.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rlvr.core.types import Completion, Sampling
from rlvr.model.load.policy import Policy
from rlvr.model.load.pretrained import switch_off_dropout
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.sampling.torch_sampler import TorchSampler
from tests.helpers.files import GOLDEN

PROMPT, NEW = 9, 31  # tokens of most prompts and of completions
_TABLE = json.loads((GOLDEN / "model_families.json").read_text())
SIZES: dict[str, Any] = _TABLE["sizes"]  # every family gets those that its config has
OPTIONS: dict[str, dict[str, Any]] = _TABLE["options"]  # further ones of a family; its text part's are in "text_config"
# Families that amplify rounding: with larger weights their own forward differs by more than 1e-4 on a rounded input.
CALM: dict[str, float] = _TABLE["calm"]
NOT_MADE = set(_TABLE["not_made"])  # for sizes that no config has, or libraries that are not installed
FAMILIES = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - NOT_MADE)
LARGEST = 20_000_000  # parameters


def tiny_family(family: str, **options: Any) -> Any:
    """Return the config of a tiny model."""
    default = AutoConfig.for_model(family)
    chosen = {name: value for name, value in SIZES.items() if name in vars(default)}
    # Both names of one setting would have to agree.
    chosen |= {
        name: SIZES[name] for name, own in (default.attribute_map or {}).items() if name in SIZES and own not in SIZES
    }
    own = {**OPTIONS.get(family, {}), **options}
    if family in CALM:
        own["initializer_range"] = CALM[family]
    for part in ("text_config", "decoder"):
        inner = getattr(default, part, None)
        if hasattr(inner, "model_type"):
            sizes = {name: value for name, value in SIZES.items() if name in vars(inner)}
            chosen[part] = {
                **sizes,
                "model_type": inner.model_type,
                **OPTIONS.get(inner.model_type, {}),
                **own.pop(part, {}),
            }
    return AutoConfig.for_model(family, **{**chosen, **own})


def make_models(family: str, **options: Any) -> tuple[Any, Any]:
    """Return the same random tiny model twice: as it is loaded, and with eager attention.

    Whatever transformers raises where a family cannot be made so is raised.
    """
    config = tiny_family(family, **options)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(copy.deepcopy(config)).parameters())
    if size > LARGEST:
        raise MemoryError(f"a tiny {family} has {size} parameters")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
        eager = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    for one in (model, eager):
        switch_off_dropout(one)
    return model, eager


def eager_log_pi(eager: Any, row: list[int]) -> Tensor:
    """log pi(row[t] | row[:t]) for t >= 1 by the eager forward of this row alone."""
    with torch.no_grad():
        everything = eager(input_ids=torch.tensor([row]), use_cache=False).logits[0, :-1].float().log_softmax(-1)
    return everything.gather(1, torch.tensor(row[1:])[:, None])[:, 0]


def make_rows() -> list[list[int]]:
    """Rows of three prompts, one of them with two completions; all but one pass the window."""
    generator = torch.Generator().manual_seed(0)
    a, b, c = (torch.randint(5, 40, (PROMPT + NEW,), generator=generator).tolist() for _ in range(3))
    return [a, a[:PROMPT] + b[PROMPT:30], b[:25], c[: PROMPT + 4]]


def batch_of(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Token ids and mask (B, T), True on what follows the prompts."""
    width = max(map(len, rows))
    tokens, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width).bool()
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
        mask[i, PROMPT : len(row)] = True
    return tokens, mask


def training_difference(policy: Policy, eager: Any) -> float:
    """The largest difference between token_logprobs of rows of several lengths and those of each row alone."""
    rows = make_rows()
    with torch.no_grad():
        found, _ = token_logprobs(policy, *batch_of(rows))
    return max(
        float((found[i, PROMPT : len(row)] - eager_log_pi(eager, row)[PROMPT - 1 :]).abs().max())
        for i, row in enumerate(rows)
    )


def drawn_rows(sampler: TorchSampler) -> list[tuple[list[int], Completion]]:
    """Prompts of two lengths, each with the completions that are drawn for it."""
    prompts = [row[: PROMPT + i // 2] for i, row in enumerate(make_rows())]
    drawn = sampler.generate(prompts, Sampling(max_new_tokens=NEW), [[1, 2, 3], [4], [5, 6], [7]])
    assert max(len(c.token_ids) for group in drawn for c in group) > 1
    return [(prompt, completion) for prompt, group in zip(prompts, drawn) for completion in group]


def sampling_difference(sampler: TorchSampler, eager: Any) -> float:
    """The largest difference between the sampler's logprobs of its completions and those of the whole row."""
    worst = 0.0
    for prompt, completion in drawn_rows(sampler):
        expected = eager_log_pi(eager, [*prompt, *completion.token_ids])[len(prompt) - 1 :]
        worst = max(worst, float((torch.tensor(completion.logprobs) - expected).abs().max()))
    return worst


def own_difference(sampler: TorchSampler, eager: Any) -> float:
    """How far transformers' own decoding with the model's cache is from the whole row, for the same completions.

    Gated recurrences that are computed in another order, before a router, are off by more than 1e-4.
    """
    worst = 0.0
    for prompt, completion in drawn_rows(sampler):
        row, cache, found = [*prompt, *completion.token_ids], {}, []
        with torch.no_grad():
            for end in range(len(prompt), len(row)):
                start = end - 1 if cache else 0
                made = eager(input_ids=torch.tensor([row[start:end]]), use_cache=True, **cache)
                cache = {key: value for key, value in made.items() if "cache" in key or key == "past_key_values"}
                found.append(float(made.logits[0, -1].float().log_softmax(-1)[row[end]]))
        worst = max(worst, float((torch.tensor(found) - eager_log_pi(eager, row)[len(prompt) - 1 :]).abs().max()))
    return worst
