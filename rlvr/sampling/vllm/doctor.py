"""Checks that vLLM and the trainer agree for a model: logprobs, pushes of weights and of adapters."""

from __future__ import annotations

import gc
import string
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from rlvr.config import ModelConfig, VLLMConfig
from rlvr.core.files.models import ADAPTER_CONFIG, is_adapter, read_object
from rlvr.core.types import Sampling
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.logprobs.scoring import token_logprobs

from .proof import TOLERANCE, WeightsDiffer, sync_prompt
from .sampler import VLLMSampler

LORA_RANK = 8
SAMPLES, TOKENS, TEMPERATURE = 8, 32, 0.7
# Noise added before a push, relative to each tensor's standard deviation: far more than an optimizer step changes.
NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table: what was checked, what was found, and whether the check passed."""

    name: str
    found: str
    holds: bool


def check_engine(model: ModelConfig, config: VLLMConfig | None = None) -> Iterator[Check]:
    """Start vLLM in this process with the model and yield one check after the other.

    The pushed weights are the model's with noise. Raises ValueError where the model cannot be loaded, or vLLM does not
    start.
    """
    config = replace(config or VLLMConfig(), sync_check_every=1)
    policy = _load(model, 0)
    with closing(VLLMSampler(policy, config)) as sampler:
        yield _check_logprobs(policy, sampler)
        yield _check("weights pushed", partial(_push, policy, sampler))
    del policy, sampler
    gc.collect()
    yield _check("adapter pushed", partial(_push_two_adapters, model, config))


def _load(model: ModelConfig, lora_rank: int) -> Policy:
    if lora_rank and is_adapter(model.name):  # an adapter is checked with its own rank and alpha
        recorded = read_object(Path(model.name).expanduser() / ADAPTER_CONFIG)
        model = replace(model, lora_alpha=recorded.get("lora_alpha", model.lora_alpha))
        lora_rank = recorded.get("r", lora_rank)
    return load_policy(replace(model, lora_rank=lora_rank), corpus=[string.printable])


def _check(name: str, measure: Callable[[], str]) -> Check:
    """Return the check that `measure` makes; weights that differ make it fail."""
    try:
        return Check(name, measure(), True)
    except WeightsDiffer as error:
        return Check(name, str(error), False)


def _check_logprobs(policy: Policy, sampler: VLLMSampler) -> Check:
    """Compare both sides' logprobs of sampled tokens at equal weights."""
    prompt = sync_prompt(policy, 16)
    group = sampler.generate([prompt], Sampling(TOKENS, TEMPERATURE), [list(range(SAMPLES))])[0]
    rows = torch.full((SAMPLES, len(prompt) + TOKENS), policy.pad_id, device=policy.device)
    mask = torch.zeros_like(rows, dtype=torch.bool)
    for row, completion in enumerate(group):
        end = len(prompt) + len(completion.token_ids)
        rows[row, :end] = torch.tensor([*prompt, *completion.token_ids])
        mask[row, len(prompt) : end] = True
    with torch.no_grad():
        ours = token_logprobs(policy, rows, mask, temperature=TEMPERATURE)[0][mask]
    theirs = torch.tensor([value for completion in group for value in completion.logprobs], device=ours.device)
    difference = (ours - theirs).abs()
    found = f"differ by {float(difference.mean()):.2g} on average, {float(difference.max()):.2g} at most"
    kind = str(policy.dtype).removeprefix("torch.")
    return Check(f"logprobs in {kind}", found, float(difference.max()) <= TOLERANCE[policy.dtype])


def _push(policy: Policy, sampler: VLLMSampler) -> str:
    """Add noise to the trained weights, push them and check them; return what was found."""
    with torch.no_grad():
        for weight in policy.parameters():
            spread = float(weight.float().std()) if weight.numel() > 1 else 0.0
            weight.add_(torch.randn_like(weight) * NOISE * max(spread, 0.01))
    sampler.load_weights(policy)
    check = sampler.check_sync()
    return f"greedy continuation equal, logprobs within {check.difference:.2g}"


def _push_two_adapters(model: ModelConfig, config: VLLMConfig) -> str:
    """Push two adapters, one after the other; return what was found."""
    policy = _load(model, LORA_RANK)
    with closing(VLLMSampler(policy, config)) as sampler:
        _push(policy, sampler)
        return "pushed twice: " + _push(policy, sampler)
