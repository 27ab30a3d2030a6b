"""What holds between vLLM and the trainer for one model: logprobs, weight pushes, the tied head, adapters."""

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
from rlvr.files.models import ADAPTER_CONFIG, is_adapter, read_object
from rlvr.model.logprobs import token_logprobs
from rlvr.model.policy import Policy, load_policy
from rlvr.types import Sampling
from rlvr.vllm.sampler import VLLMSampler
from rlvr.vllm.sync import TOLERANCE, WeightsDiffer, engine_weights, proof_prompt

LORA_RANK = 8
SAMPLES, TOKENS, TEMPERATURE = 8, 32, 0.7
# Noise for a push, as a share of each tensor's own spread: far more than an optimizer step moves.
NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table: what was checked, what was found, and whether that is as it must be."""

    name: str
    found: str
    holds: bool


def check_engine(model: ModelConfig, config: VLLMConfig | None = None) -> Iterator[Check]:
    """Starts vLLM in this process with the model and yields what holds, check by check.

    The weights that are pushed are the model's own with noise. Raises ValueError where the model cannot be loaded or
    vLLM not be started.
    """
    config = replace(config or VLLMConfig(), sync_check_every=1)
    merged, applied = replace(config, lora="merge"), replace(config, lora="adapter")
    yield from _all_weights(_load(model, 0), merged)
    for name, way in (("adapter, merged", merged), ("adapter, applied by vLLM", applied)):
        gc.collect()
        yield _check(name, partial(_two_adapters, model, way))


def _all_weights(policy: Policy, config: VLLMConfig) -> Iterator[Check]:
    """The checks without an adapter."""
    with closing(VLLMSampler(policy, config)) as sampler:
        yield _logprobs(policy, sampler)
        yield _check("weights pushed", partial(_push, policy, sampler))
        names = sampler.engine.differing(engine_weights(policy))
        found = f"{len(names)} differ: {', '.join(names[:4])}" if names else "all equal to the trainer's"
        yield Check("tensors in the engine", found, not names)
        tied = policy.causal.get_output_embeddings().weight is policy.causal.get_input_embeddings().weight
        kind = "tied to the embedding" if tied else "apart from the embedding"
        yield Check("output head", f"{kind}, pushed", "lm_head.weight" not in names)


def _load(model: ModelConfig, lora_rank: int) -> Policy:
    if lora_rank and is_adapter(model.name):  # it is checked as it is, its rank and alpha are its own
        held = read_object(Path(model.name).expanduser() / ADAPTER_CONFIG)
        model = replace(model, lora_alpha=held.get("lora_alpha", model.lora_alpha))
        lora_rank = held.get("r", lora_rank)
    return load_policy(replace(model, lora_rank=lora_rank), corpus=[string.printable])


def _check(name: str, measure: Callable[[], str]) -> Check:
    """What `measure` says; a proof that fails is a finding, not an error."""
    try:
        return Check(name, measure(), True)
    except WeightsDiffer as error:
        return Check(name, str(error), False)


def _logprobs(policy: Policy, sampler: VLLMSampler) -> Check:
    """Logprobs of sampled tokens in both, at equal weights."""
    prompt = proof_prompt(policy, 16)
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
    """Noise on the trained weights, pushed and proved."""
    with torch.no_grad():
        for weight in policy.parameters():
            spread = float(weight.float().std()) if weight.numel() > 1 else 0.0
            weight.add_(torch.randn_like(weight) * NOISE * max(spread, 0.01))
    sampler.load_weights(policy)
    proof = sampler.prove()
    return f"greedy continuation equal, logprobs to {proof.difference:.2g}"


def _two_adapters(model: ModelConfig, config: VLLMConfig) -> str:
    """Two adapters, one after the other."""
    policy = _load(model, LORA_RANK)
    with closing(VLLMSampler(policy, config)) as sampler:
        _push(policy, sampler)
        return "pushed twice: " + _push(policy, sampler)
