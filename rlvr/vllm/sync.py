"""The check that the engine samples from the trainer's weights, and folders in memory for engines to start from."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from rlvr.core.seeding import derive_seed
from rlvr.core.types import RunError
from rlvr.model.forward.passes import output_logits
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.optim.sharding import within
from rlvr.model.policy import Policy

MEMORY = Path("/dev/shm")
SYNC_TOKENS = 16
# Largest difference of a logprob at equal weights. Measured on CPUs: 2e-5 in float32, 0.14 in bfloat16.
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.5}


class WeightsDiffer(RunError):
    """The engine does not sample from the trainer's weights."""


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Create a folder in memory (/dev/shm, or on disk without it) and delete it at the end.

    Folders that killed processes left behind are deleted first.
    """
    delete_orphans(MEMORY)
    parent = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=f"rlvr-{process_space()}-{os.getpid()}-", dir=parent) as folder:
        yield Path(folder)


def process_space() -> str:
    """Return the id of this process's PID namespace: containers that share /dev/shm reuse each other's process ids."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:  # not Linux
        return "0"


def delete_orphans(parent: Path) -> None:
    """Delete the shared folders in `parent` whose process has ended."""
    for folder in parent.glob(f"rlvr-{process_space()}-*-*"):
        owner = int(folder.name.split("-")[2])
        if not process_lives(owner):
            shutil.rmtree(folder, ignore_errors=True)  # another user's stays


def process_lives(pid: int) -> bool:
    """Return whether a process has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@dataclass(frozen=True, slots=True)
class SyncCheck:
    """One greedy continuation by the engine, compared with the trainer's.

    difference: largest difference of the two logprobs of a token; at the first token where the trainer's choice is
    another, also how much likelier the trainer finds its own. same: tokens before that one.
    """

    difference: float
    same: int
    tolerance: float

    @property
    def passed(self) -> bool:
        """Return whether both sample from the same weights, up to rounding."""
        return self.difference <= self.tolerance


def sync_prompt(policy: Policy, length: int) -> list[int]:
    """Return a fixed prompt without special tokens. Longer than a block of the KV cache, it detects a stale cache."""
    special = {*policy.tokenizer.all_special_ids, *policy.eos_ids}
    size = min(len(policy.tokenizer), policy.causal.get_input_embeddings().num_embeddings)
    return random.Random(derive_seed("proof")).choices([i for i in range(size) if i not in special], k=length)


def greedy(policy: Policy, prompt: list[int], count: int) -> list[int]:
    """Return up to `count` greedy tokens, fewer if one is an EOS. No KV cache is used: not every model has one.

    Of weights in shards all processes must ask for the same continuation.
    """
    ids: list[int] = []

    def choose() -> int:
        row = torch.tensor([prompt + ids], device=policy.device)
        hidden = policy.causal.base_model(input_ids=row, use_cache=False).last_hidden_state[0, -1:]
        return int(output_logits(policy.causal, hidden).argmax())

    with torch.no_grad(), policy.computing():
        while len(ids) < count and not (ids and ids[-1] in policy.eos_ids):
            ids.append(within(policy.model, choose))
    return ids


def compare_continuations(policy: Policy, prompt: list[int], tokens: list[int], logprobs: list[float]) -> SyncCheck:
    """Compare the engine's greedy tokens (n) after `prompt` and their logprobs (n) with the trainer's."""
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


def shortened(names: Sequence[str]) -> str:
    """Return the first names, and how many there are."""
    return f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''} ({len(names)} tensors)"
