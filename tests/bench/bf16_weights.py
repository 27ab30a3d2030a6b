"""Weights stored in bfloat16: a float32 copy in the optimizer's state against stochastic rounding, and against none.

    OMP_WAIT_POLICY=passive python tests/bench/bf16_weights.py                       # three seeds
    OMP_WAIT_POLICY=passive python tests/bench/bf16_weights.py --seeds 8 --steps 1000

The demo's fine-tuning of the tiny model from nothing, with the computation in bfloat16 for all but the first way:
float32, float32 computed: the weights and the computation in float32.
float32: the weights in float32, autocast. The others are compared with it.
copy: weights in bfloat16, a float32 copy in the optimizer's state (`--model.weights bfloat16`): 16 bytes a weight.
stochastic: weights in bfloat16 that are rounded up or down at random, in proportion: 12 bytes a weight.
nearest: weights in bfloat16, rounded to the nearest: 12 bytes a weight.

Printed: the mean loss of the last 50 steps; then what a further 100 steps at a learning rate of 1e-6 do, from the
weights that the float32 way ended with, rounded to bfloat16: the share of the float32 way's movement that is made
along its direction, and the movement off that direction relative to it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from accelerate import Accelerator
from torch import Tensor

from rlvr.commands.task import collect_corpus
from rlvr.config import ModelConfig, OptimConfig, SFTConfig
from rlvr.core.registry import make_task
from rlvr.core.types import Task
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.optim.optimizer import MASTER, BucketedAdamW, Piece, flatten_local, make_optimizer
from rlvr.training.sft.sft import sft
from rlvr.training.sft.sft import sft as sft_module

TOKENS = 1024  # of a microbatch: several for each step, whose gradients are added up in the weights' dtype


class WithoutCopy(BucketedAdamW):
    """AdamW in float32 arithmetic that keeps no copy of weights: each update is rounded into them by `rounded`."""

    def __init__(self, weights: Iterable[Tensor], rounded: Callable[[Tensor], Tensor], **options: Any) -> None:
        super().__init__(weights, **options)
        self.rounded = rounded

    def start(self, weight: Tensor) -> dict[str, Tensor]:
        """The state without the copy."""
        return {name: tensor for name, tensor in super().start(weight).items() if name != MASTER}

    def update(self, bucket: Sequence[tuple[Tensor, slice]], group: Mapping[str, Any]) -> None:
        """Updates float32 copies that last for this bucket."""
        pieces = []
        for weight, part in bucket:
            moments = {
                name: flatten_local(tensor)[part] for name, tensor in self.state[weight].items() if name != "step"
            }
            gradient = flatten_local(weight.grad)[part].float()  # type: ignore[arg-type]
            pieces.append(
                Piece(flatten_local(weight.detach())[part].float(), gradient, moments, self.state[weight]["step"])
            )
        self.moments.update(pieces, group)
        for (weight, part), piece in zip(bucket, pieces, strict=True):
            flatten_local(weight.detach())[part].copy_(self.rounded(piece.values))


def at_random(values: Tensor) -> Tensor:
    """Float32 values as bfloat16, up or down with a probability that keeps their mean."""
    noise = torch.randint(0, 1 << 16, values.shape, dtype=torch.int32)
    return ((values.view(torch.int32) + noise) & -65536).view(torch.float32).bfloat16()


def to_nearest(values: Tensor) -> Tensor:
    """Float32 values as bfloat16."""
    return values.bfloat16()


WAYS: dict[str, tuple[str, str, Callable[[Tensor], Tensor] | None]] = {
    "float32, float32 computed": ("float32", "float32", None),
    "float32": ("float32", "bfloat16", None),
    "copy": ("bfloat16", "bfloat16", None),
    "stochastic": ("bfloat16", "bfloat16", at_random),
    "nearest": ("bfloat16", "bfloat16", to_nearest),
}


def make_policy(way: str, task: Task, seed: int) -> Policy:
    """The tiny model, its weights stored and computed with as the way has it."""
    stored, computed, _ = WAYS[way]
    settings = ModelConfig(weights=stored, dtype=computed, device="cpu")  # type: ignore[arg-type]
    return load_policy(settings, corpus=collect_corpus(task), seed=seed)


class Enough(Exception):
    """Ends a fine-tuning early, before its learning rate has fallen."""


def train(way: str, policy: Policy, task: Task, config: SFTConfig, steps: int, seed: int) -> tuple[list[float], Any]:
    """Fine-tune for some steps of the schedule; return the losses and the optimizer."""
    losses: list[float] = []
    made: list[Any] = []

    def optimizer_of(weights: Iterable[Tensor], optim: OptimConfig) -> Any:
        rounded = WAYS[way][2]
        options = {"lr": optim.lr, "betas": optim.betas, "weight_decay": optim.weight_decay}
        made.append(make_optimizer(weights, optim) if rounded is None else WithoutCopy(weights, rounded, **options))
        return made[-1]

    def on_step(step: int, loss: float) -> None:
        losses.append(loss)
        if step == steps:
            raise Enough

    torch.manual_seed(seed)
    with mock.patch.object(sft_module, "make_optimizer", optimizer_of), contextlib.suppress(Enough):
        alone, texts = Accelerator(cpu=True), task.demonstrations
        sft(policy, texts, config, alone, seed=seed, tokens_per_microbatch=TOKENS, on_step=on_step)
    return losses, made[0]


def values_of(policy: Policy, optimizer: Any) -> Tensor:
    """The weights as one vector: their float32 copies where there are."""
    held = [optimizer.state[weight].get(MASTER, weight.detach()) for weight in policy.parameters()]
    return torch.cat([value.float().reshape(-1) for value in held])


def distance_moved(way: str, start: Tensor, task: Task, seed: int, steps: int) -> Tensor:
    """How far the weights move from `start` in some steps at a learning rate of 1e-6."""
    policy = make_policy(way, task, seed)
    parts = start.split([weight.numel() for weight in policy.parameters()])
    with torch.no_grad():
        for weight, part in zip(policy.parameters(), parts, strict=True):
            weight.copy_(part.view_as(weight))
    config = SFTConfig(steps=10**6, batch_size=16, lr=1e-6, warmup_steps=0)
    _, optimizer = train(way, policy, task, config, steps, seed + 1000)
    return values_of(policy, optimizer) - start


def main() -> None:
    """Reads the command line, trains, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--further", type=int, default=100, help="steps at a learning rate of 1e-6")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    task = make_task("arithmetic")
    config = SFTConfig(steps=args.steps, batch_size=16, lr=1.5e-3)
    ends: dict[str, list[float]] = {way: [] for way in WAYS}
    along: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for seed in range(args.seeds):
        start = torch.empty(0)
        for way in WAYS:
            policy = make_policy(way, task, seed)
            losses, optimizer = train(way, policy, task, config, args.steps, seed)
            ends[way].append(statistics.mean(losses[-50:]))
            if way == "float32":
                start = values_of(policy, optimizer).bfloat16().float()
            print(f"seed {seed}  {way:26} loss {ends[way][-1]:.4f}", flush=True)
        base = distance_moved("float32", start, task, seed, args.further)
        for way in WAYS:
            way_moved = distance_moved(way, start, task, seed, args.further)
            share = float(way_moved @ base / (base @ base))
            off = float((way_moved - share * base).norm() / base.norm())
            along[way].append((share, off))
            print(f"seed {seed}  {way:26} along {share:.3f}, off {off:.3f}", flush=True)
    for way in WAYS:
        apart = statistics.mean(abs(a - b) for a, b in zip(ends[way], ends["float32"], strict=True))
        share, off = (statistics.mean(values) for values in zip(*along[way], strict=True))
        losses = ", ".join(f"{end:.4f}" for end in ends[way])
        print(f"{way:26} loss {losses}, {apart:.4f} from float32; at 1e-6 {share:.3f} along it, {off:.3f} off it")


if __name__ == "__main__":
    main()
