"""Two checks that an engine samples from the trainer's weights. Both compare logprobs; no report is trusted.

`Proof`, after every push: engine and trainer score a fixed text, as they did after earlier pushes. An engine that
loaded nothing has not moved where the trainer has, and one that loaded a part has not moved as far.
`compare_continuations`, now and then: a greedy continuation, token by token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlvr.core.seeding import derive_seed
from rlvr.core.types import RunError
from rlvr.model.forward.passes import output_logits
from rlvr.model.load.policy import Policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.optim.sharding import within

SYNC_TOKENS = 16
# Largest difference of a logprob at equal weights. Measured on CPUs: 2e-5 in float32, 0.14 in bfloat16.
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.5}


class WeightsDiffer(RunError):
    """The engine does not sample from the trainer's weights."""


@dataclass(frozen=True, slots=True)
class SyncCheck:
    """One greedy continuation by the engine, compared with the trainer's.

    same: number of tokens before the trainer would choose another one. difference: the largest difference between the
    two logprobs of a token or, if larger, how much likelier the trainer finds its own choice at that place.
    """

    difference: float
    same: int
    tolerance: float

    @property
    def passes(self) -> bool:
        """Return whether both sample from the same weights, up to rounding."""
        return self.difference <= self.tolerance


def sync_prompt(policy: Policy, length: int) -> list[int]:
    """Return a fixed prompt without special tokens. Longer than a block of the KV cache, it detects a stale cache."""
    special = {*policy.tokenizer.all_special_ids, *policy.eos_ids}
    size = min(len(policy.tokenizer), policy.causal.get_input_embeddings().num_embeddings)
    return random.Random(derive_seed("proof")).choices([i for i in range(size) if i not in special], k=length)


def greedy(policy: Policy, prompt: list[int], count: int) -> list[int]:
    """Return up to `count` greedy tokens, fewer if one is an EOS. No KV cache is used: not every model has one.

    If the weights are sharded, every rank must call this with the same prompt.
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


TEXT_TOKENS = 128
# Root mean square difference between two implementations at equal weights: the least that is assumed. More is measured.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
VISIBLE, REFUSED = 3.0, 10.0  # times the rounding: a move of the trainer that shows, a difference that is refused
UNMOVED_SHARE = 0.25  # of the trainer's move: an engine that moved less has not moved
RECENT, MOST = 3, 32  # pushes that are remembered


@dataclass
class Push:
    """Logprobs (n) of the text after a push: the trainer's, and those of the engines by their names."""

    number: int
    own: Tensor
    engines: dict[str, Tensor] = field(default_factory=dict)


class Proof:
    """Compares engines with the trainer after each push.

    rounding: root mean square difference between engine and trainer at equal weights, measured after the first push.
    Engines start with random weights: should the first push fail, the sampler's greedy continuation shows it.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.rounding = ROUNDING.get(dtype, ROUNDING[torch.bfloat16])
        self.pushes: list[Push] = []
        self.seen = 0.0  # largest difference of an engine since the push

    def begin(self, number: int, own: Sequence[float]) -> None:
        """Take the trainer's logprobs (n) under the weights of push `number`, which engines are compared with."""
        if len(self.pushes) == 1:
            self.rounding = max(self.rounding, self.seen)
        self._forget()
        self.pushes.append(Push(number, torch.tensor(own, dtype=torch.float64)))
        self.seen = 0.0

    def measures(self) -> dict[str, float]:
        """Return metrics of the last push, none of the first: how far the trainer moved, how far the engines are off.

        All are root mean squares of differences of logprobs. A move below 3 times rounding is too small to show.
        """
        if self.first:
            return {}
        return {"push/moved": self.movement, "push/difference": self.seen, "push/rounding": self.rounding}

    @property
    def movement(self) -> float:
        """Return how far the last push moved the trainer's logprobs: a root mean square, 0 for the first."""
        return size(self.pushes[-1].own - self.pushes[-2].own) if len(self.pushes) > 1 else 0.0

    @property
    def first(self) -> bool:
        """Return whether there has been one push only: nothing is known of the rounding yet."""
        return len(self.pushes) < 2

    def judge(self, engine: str, logprobs: Sequence[float]) -> str:
        """Return why an engine with these logprobs (n) does not have the last push's weights; "" where it may."""
        last = self.pushes[-1]
        found = torch.tensor(logprobs, dtype=torch.float64)
        if not bool(last.own.isfinite().all()):
            return ""  # the trainer's weights are broken, and it says so itself
        if found.shape != last.own.shape:
            return f"it returned {len(found)} logprobs of a text of which {len(last.own)} were asked for"
        difference = size(found - last.own)
        known = any(engine in push.engines for push in self.pushes)
        reason = self._stale(engine, found) or self._partial(difference, known=known)
        if reason:
            return reason
        last.engines[engine] = found
        self.seen = max(self.seen, difference)
        return ""

    def _stale(self, engine: str, found: Tensor) -> str:
        """Return a line that names the push since which the trainer has moved and the engine has not; "" if none.

        An engine with the trainer's weights moves as far as the trainer, up to rounding.
        """
        own = self.pushes[-1].own
        for push in reversed(self.pushes[:-1]):
            if engine not in push.engines:
                continue
            expected, moved = size(own - push.own), size(found - push.engines[engine])
            if moved < UNMOVED_SHARE * expected and expected > VISIBLE * self.rounding:
                return (
                    f"its logprobs of a fixed text have moved by {moved:.2g} since push {push.number}, the "
                    f"trainer's by {expected:.2g}"
                )
        return ""

    def _partial(self, difference: float, *, known: bool) -> str:
        """Return a line on a difference that is neither rounding nor small beside the push's own move; "" if it is."""
        small = known and difference <= UNMOVED_SHARE * self.movement
        if self.first or small or difference <= REFUSED * self.rounding:
            return ""
        return (
            f"its logprobs of a fixed text differ from the trainer's by {difference:.2g}, and rounding by "
            f"{self.rounding:.2g}"
        )

    def _forget(self) -> None:
        """Forget pushes before the newest one from which the weights have moved visibly; keep the last RECENT."""
        if not self.pushes:
            return
        last = self.pushes[-1].own
        far = [i for i, push in enumerate(self.pushes) if size(last - push.own) > VISIBLE * self.rounding]
        start = min(max(far, default=0), max(len(self.pushes) - RECENT, 0))
        self.pushes = self.pushes[start:]
        if len(self.pushes) > MOST:
            self.pushes = [*self.pushes[:-RECENT:2], *self.pushes[-RECENT:]]


def proof_text(policy: Policy, longest: int) -> list[int]:
    """Return the text of the proof: fixed tokens, fewer than `longest`."""
    return sync_prompt(policy, max(2, min(TEXT_TOKENS, longest - 1)))


def own_logprobs(policy: Policy, text: Sequence[int]) -> list[float]:
    """Return the trainer's logprobs (len(text) - 1) of all tokens but the first.

    If the weights are sharded, every rank must call this.
    """
    row = torch.tensor([list(text)])
    mask = torch.ones_like(row, dtype=torch.bool)
    mask[:, 0] = False
    with torch.no_grad():
        logprobs: list[float] = token_logprobs(policy, row, mask)[0][0, 1:].tolist()
    return logprobs


def size(difference: Tensor) -> float:
    """Return the root mean square of differences (n)."""
    return float(difference.square().mean().sqrt())
