"""The trainer's side of the weights: what the engine is given, and the proof that it samples from them."""

from __future__ import annotations

import copy
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlvr.model.lm_head import output_logits
from rlvr.model.logprobs import token_logprobs
from rlvr.model.policy import Policy
from rlvr.seeding import derive_seed
from rlvr.types import RunError
from rlvr.vllm.worker import WEIGHTS_FILE

MEMORY = Path("/dev/shm")
PROOF_TOKENS = 16
# Largest difference of a logprob at equal weights. Measured on CPUs: 2e-5 in float32, 0.14 in bfloat16.
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.5}


class WeightsDiffer(RunError):
    """The engine does not sample from the trainer's weights."""


def engine_weights(policy: Policy, *, merged: bool = True) -> dict[str, Tensor]:
    """The policy's weights as a checkpoint names them, a tied head under its own name too.

    Adapters are merged into them, or left out where `merged` is False. What has no adapter is the policy's own tensor,
    not a copy.
    """
    weights: dict[str, Tensor] = {}
    adapted = {name: module for name, module in policy.causal.named_modules() if hasattr(module, "get_delta_weight")}
    with torch.no_grad():
        for name, value in policy.causal.state_dict().items():
            if ".lora_" in name:
                continue
            name = name.replace(".base_layer.", ".")
            owner, _, leaf = name.rpartition(".")
            if merged and owner in adapted and leaf == "weight":
                value = value + sum(adapted[owner].get_delta_weight(a) for a in adapted[owner].active_adapters)
            weights[name] = value.detach()
    head, embedding = policy.causal.get_output_embeddings(), policy.causal.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        # Engines pack the head apart from the embedding, and leave it as it was if it is not sent.
        weights["lm_head.weight"] = embedding.weight.detach()
    return weights


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder in memory where there is one (/dev/shm), else on the disk; deleted at the end.

    Folders of processes that were killed before they could are deleted first.
    """
    delete_orphans(MEMORY)
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=f"rlvr-{process_space()}-{os.getpid()}-", dir=place) as folder:
        yield Path(folder)


def process_space() -> str:
    """What process ids are counted in: containers that share /dev/shm each count from 1."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:  # no Linux
        return "0"


def delete_orphans(place: Path) -> None:
    """Deletes the shared folders in `place` whose process is no more."""
    for folder in place.glob(f"rlvr-{process_space()}-*-*"):
        owner = int(folder.name.split("-")[2])
        if not process_lives(owner):
            shutil.rmtree(folder, ignore_errors=True)  # another user's stays


def process_lives(pid: int) -> bool:
    """Whether a process has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def write_weights(weights: dict[str, Tensor], folder: Path, dtype: torch.dtype) -> None:
    """The weights as one safetensors file in the type that the engine computes in."""
    held = {name: value.to("cpu", dtype).contiguous() for name, value in weights.items()}
    seen: set[int] = set()
    for name, value in held.items():
        if value.data_ptr() in seen:  # safetensors refuses tensors that share memory
            held[name] = value.clone()
        seen.add(value.data_ptr())
    save_file(held, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def write_model(policy: Policy, weights: dict[str, Tensor], folder: Path) -> None:
    """Weights, config and tokenizer, as vLLM loads a model."""
    config = copy.deepcopy(policy.causal.config)
    config.architectures = [type(policy.causal).__name__]
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    write_weights(weights, folder, policy.dtype)


@dataclass(frozen=True, slots=True)
class SyncCheck:
    """One greedy continuation in both engines.

    `difference` is the largest difference of a logprob of the engine's tokens; where the trainer would have taken
    another token, also how much likelier that one is to it. `same` counts the tokens before the first such place.
    """

    difference: float
    same: int
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether both sample from the same weights, as far as their rounding lets one see."""
        return self.difference <= self.tolerance


def proof_prompt(policy: Policy, length: int) -> list[int]:
    """A fixed prompt of ordinary tokens. It must span a block of the engine's cache, or a stale cache is not seen."""
    special = {*policy.tokenizer.all_special_ids, *policy.eos_ids}
    size = min(len(policy.tokenizer), policy.causal.get_input_embeddings().num_embeddings)
    return random.Random(derive_seed("proof")).choices([i for i in range(size) if i not in special], k=length)


def greedy(policy: Policy, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens one by one, up to `count` or an end: by whole forward passes, which every model allows."""
    ids: list[int] = []
    with torch.no_grad(), policy.computing():
        while len(ids) < count and not (ids and ids[-1] in policy.eos_ids):
            row = torch.tensor([prompt + ids], device=policy.device)
            hidden = policy.causal.base_model(input_ids=row, use_cache=False).last_hidden_state[0, -1:]
            ids.append(int(output_logits(policy.causal, hidden).argmax()))
    return ids


def compare(policy: Policy, prompt: list[int], tokens: list[int], logprobs: list[float]) -> SyncCheck:
    """The engine's greedy tokens (n) after `prompt` and their logprobs against the trainer's."""
    own = greedy(policy, prompt, len(tokens))
    rows = [prompt + tokens, prompt + own + [0] * (len(tokens) - len(own))]
    batch = torch.tensor(rows, device=policy.device)
    mask = torch.zeros_like(batch, dtype=torch.bool)
    mask[:, len(prompt) :] = True
    with torch.no_grad():
        theirs, ours = token_logprobs(policy, batch, mask)[0][:, len(prompt) :].tolist()
    difference = max(abs(a - b) for a, b in zip(logprobs, theirs))
    same = next((t for t, (a, b) in enumerate(zip(tokens, own)) if a != b), len(own))
    if same < len(own):
        difference = max(difference, ours[same] - theirs[same])
    return SyncCheck(difference, same, TOLERANCE[policy.dtype])
