"""AdamW, its schedule, and one optimizer step.

Plain settings take torch's own AdamW. `BucketedAdamW` is for the others: weights in bfloat16, moments in 8 bits, state
in the CPU's memory. Its arithmetic is in float32 all the same, a bucket of weights at a time.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from rlvr.config import OptimConfig
from rlvr.config.model import EIGHT_BIT_EXTRA

from .sharding import full

# Elements that are updated at once: with their masters and moments less than half a GiB in float32.
BUCKET = 2**25
BLOCK = 256  # elements that share a scale of their 8-bit moments
SMALLEST = 4096  # elements of the smallest weight whose moments have 8 bits, as in bitsandbytes
MASTER = "master"
# Page-locked memory: bytes of a slab, unless a tensor is larger, and at a multiple of which a tensor begins.
SMALLEST_SLAB, LARGEST_SLAB, ALIGNED = 2**26, 2**32, 256


def make_optimizer(parameters: Iterable[Tensor], config: OptimConfig) -> torch.optim.Optimizer:
    """Return AdamW over the trainable parameters; its learning rate is set at each step.

    Weights stored in fewer than 32 bits are updated through a float32 copy in the optimizer's state, and from here on
    their gradients add up in float32. Raises ValueError as `check_optimizer` does.
    """
    weights = list(parameters)
    for weight in weights:
        weight.grad_dtype = torch.float32  # autograd casts what a pass adds before it is added
    if config.name == "adamw" and not config.offload and all(weight.dtype is torch.float32 for weight in weights):
        return torch.optim.AdamW(
            weights, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )
    for device in {weight.device for weight in weights}:
        check_optimizer(config, device)
    return BucketedAdamW(
        weights,
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        moments=Bits8() if config.name == "adamw8bit" else Float32(),
        slabs=Slabs() if config.offload else None,
    )


def check_optimizer(config: OptimConfig, device: torch.device) -> None:
    """Raise ValueError where an extra is not installed, or the state cannot be kept away from the device."""
    if config.name == "adamw8bit":
        bitsandbytes_functional()
    if config.offload and device.type != "cuda":
        raise ValueError(
            f"optim.offload keeps the optimizer's state in the CPU's memory, and the model is on {device}; leave it out"
        )


def learning_rate(step: int, config: OptimConfig, num_steps: int) -> float:
    """Return the learning rate of a step (from 0): linear warm-up, then the schedule down to min_lr_ratio.

    The decay ends at config.decay_steps, or at num_steps where that is 0.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    end = config.decay_steps or num_steps
    progress = min((step - config.warmup_steps) / max(end - config.warmup_steps, 1), 1.0)
    shape = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
    floor = 1.0 if config.schedule == "constant" else config.min_lr_ratio
    return config.lr * (floor + (1 - floor) * shape[config.schedule])


def optimizer_step(optimizer: torch.optim.Optimizer, *, lr: float, max_grad_norm: float) -> float:
    """Clip the gradient, step, clear. Return the gradient's norm before clipping.

    A gradient that is not finite is dropped, and its norm returned, so that one bad batch does not ruin the weights.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm, foreach=True)
    value = float(full(norm))
    if math.isfinite(value):
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return value


def page_locked(size: int) -> Tensor:
    """Return so many bytes of page-locked memory. Raises RuntimeError where torch finds no GPU."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class Slabs:
    """Memory for many tensors, cut out of large slabs. A slab is as large as all slabs before it together.

    torch rounds each page-locked allocation up to a power of two: for the optimizer's state of a 7B model, tensor by
    tensor, that is nearly twice the bytes. In slabs about a tenth is left over.

    make: returns a slab of so many bytes. slabs: each with the bytes of it that are used.
    """

    def __init__(self, make: Callable[[int], Tensor] = page_locked) -> None:
        self.make = make
        self.slabs: list[tuple[Tensor, int]] = []

    @property
    def total(self) -> int:
        """The bytes of all slabs."""
        return sum(len(slab) for slab, _ in self.slabs)

    def cut(self, like: Tensor) -> Tensor:
        """Return memory for a tensor of this dtype and shape, from the first slab that has room; its values are any."""
        size = like.numel() * like.element_size()
        taken = -(-size // ALIGNED) * ALIGNED
        number = next((i for i, (slab, used) in enumerate(self.slabs) if used + taken <= len(slab)), len(self.slabs))
        if number == len(self.slabs):
            wanted = max(taken, SMALLEST_SLAB, min(self.total, LARGEST_SLAB))
            self.slabs.append((self.make(1 << (wanted - 1).bit_length()), 0))
        slab, used = self.slabs[number]
        self.slabs[number] = slab, used + taken
        return slab[used : used + size].view(like.dtype).view(like.shape)

    def clear(self) -> None:
        """Let go of all slabs: their memory is free when the tensors are gone that were cut out of them."""
        self.slabs.clear()


def fetch(part: Tensor, device: torch.device) -> Tensor:
    """Return a part of the state on the device that updates it: the part itself where it lies there, else a copy."""
    return part.to(device, non_blocking=True)


@dataclass
class Piece:
    """A part of a weight on the device that updates it, all flat: float32 values and gradient, moments by name.

    step: that of the update, from 1.
    """

    values: Tensor
    gradient: Tensor
    moments: dict[str, Tensor]
    step: Tensor


class Float32:
    """Both moments in float32, updated by torch's fused AdamW: 8 bytes a parameter."""

    def start(self, weight: Tensor, device: torch.device) -> dict[str, Tensor]:
        """Return the moments of a weight before the first step, as named tensors on a device."""
        return {
            name: torch.zeros_like(weight, dtype=torch.float32, device=device) for name in ("exp_avg", "exp_avg_sq")
        }

    def elements(self, name: str) -> int:
        """Return how many elements of a weight one element of the named tensor belongs to."""
        return 1

    def update(self, pieces: Sequence[Piece], options: Mapping[str, Any]) -> None:
        """Update pieces and their moments in place. options: those of the parameter group."""
        beta1, beta2 = options["betas"]
        device = pieces[0].values.device
        adamw(
            [piece.values for piece in pieces],
            [piece.gradient for piece in pieces],
            [piece.moments["exp_avg"] for piece in pieces],
            [piece.moments["exp_avg_sq"] for piece in pieces],
            [],
            [(piece.step - 1).to(device) for piece in pieces],  # adamw counts up itself
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=options["lr"],
            weight_decay=options["weight_decay"],
            eps=options["eps"],
            maximize=False,
        )


class Bits8(Float32):
    """Both moments in 8 bits by blocks (arXiv:2110.02861), updated by bitsandbytes: 2 bytes a parameter.

    Weights of fewer than SMALLEST elements have them in float32. Raises ValueError where bitsandbytes is not installed.
    """

    def __init__(self) -> None:
        self.functional = bitsandbytes_functional()
        self.maps: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def start(self, weight: Tensor, device: torch.device) -> dict[str, Tensor]:
        if weight.numel() < SMALLEST:
            return super().start(weight, device)
        blocks = -(-weight.numel() // BLOCK)
        moments = {
            name: torch.zeros_like(weight, dtype=torch.uint8, device=device) for name in ("exp_avg", "exp_avg_sq")
        }
        scales = {f"{name}_scale": torch.zeros(blocks, device=device) for name in moments}
        return moments | scales

    def elements(self, name: str) -> int:
        return BLOCK if name.endswith("_scale") else 1

    def update(self, pieces: Sequence[Piece], options: Mapping[str, Any]) -> None:
        small = [piece for piece in pieces if "exp_avg_scale" not in piece.moments]
        if small:
            super().update(small, options)
        beta1, beta2 = options["betas"]
        for piece in pieces:
            if "exp_avg_scale" not in piece.moments:
                continue
            signed, unsigned = self.maps_on(piece.values.device)
            self.functional.optimizer_update_8bit_blockwise(
                "adam",
                piece.gradient,
                piece.values,
                piece.moments["exp_avg"],
                piece.moments["exp_avg_sq"],
                beta1,
                beta2,
                0.0,
                0.0,
                options["eps"],
                int(piece.step),
                options["lr"],
                signed,
                unsigned,
                piece.moments["exp_avg_scale"],
                piece.moments["exp_avg_sq_scale"],
                options["weight_decay"],
            )

    def maps_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the values that the codes of the first and the second moment stand for, (256,) each."""
        if device not in self.maps:
            create = self.functional.create_dynamic_map
            self.maps[device] = (create(signed=True).to(device), create(signed=False).to(device))
        return self.maps[device]


def bitsandbytes_functional() -> Any:
    """Return bitsandbytes.functional. Raises ValueError, naming the extra, where it cannot be imported."""
    log = logging.getLogger("bitsandbytes")
    level = log.level
    try:
        log.setLevel(logging.ERROR)  # it reports, as a warning, kernels for inference that are not needed here
        return importlib.import_module("bitsandbytes.functional")
    except ImportError as error:
        raise ValueError(EIGHT_BIT_EXTRA) from error
    finally:
        log.setLevel(level)


class BucketedAdamW(torch.optim.Optimizer):
    """AdamW that updates a bucket of the weights after the other, in float32.

    The state of a weight has `step` and its moments and, where the weight is stored in fewer than 32 bits, `master`:
    its value in float32, which the updates add up in; the weight is its rounding. Masters are made of the weights at
    the first step. `slabs`: page-locked memory of the CPU in which all of it lies in between, a bucket of it being on
    the GPU while it is updated; None: it is beside its weight. The same numbers come out wherever it lies.
    """

    def __init__(
        self,
        weights: Iterable[Tensor],
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        eps: float = 1e-8,
        moments: Float32 | None = None,
        slabs: Slabs | None = None,
        bucket: int = BUCKET,
    ) -> None:
        super().__init__(list(weights), {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": eps})
        self.moments, self.slabs, self.bucket = moments or Float32(), slabs, bucket

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                if not weight.is_contiguous():
                    weight.data = weight.data.contiguous()  # its parts are views
                if not self.state[weight]:
                    self.state[weight] = self.start(weight)
                self.state[weight]["step"] += 1
            for bucket in split_into_buckets(weights, self.bucket):
                self.update(bucket, group)
        if self.slabs is not None:
            torch.cuda.synchronize()  # copies and updates are in the order of the stream; nothing waits before

    def start(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the state of a weight before its first step."""
        device = self.home(weight)
        state = self.moments.start(weight, device)
        if weight.dtype is not torch.float32:
            state[MASTER] = weight.detach().to(device, torch.float32)
        return {"step": torch.zeros(()), **{name: self.put(tensor) for name, tensor in state.items()}}

    def home(self, weight: Tensor) -> torch.device:
        """Return the device on which the state of a weight lies."""
        return weight.device if self.slabs is None else torch.device("cpu")

    def put(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the state as it is kept."""
        return tensor if self.slabs is None else self.slabs.cut(tensor).copy_(tensor)

    def update(self, bucket: Sequence[tuple[Tensor, slice]], group: Mapping[str, Any]) -> None:
        """Update parts of weights, given as slices of their flat values."""
        pieces, fetched = [], []
        for weight, part in bucket:
            values, state = flatten_local(weight.detach())[part], self.state[weight]
            kept = {name: flatten_local(state[name])[self.share(name, part)] for name in state if name != "step"}
            here = {name: fetch(tensor, values.device) for name, tensor in kept.items()}
            master = here.pop(MASTER, values)
            gradient = flatten_local(cast(Tensor, weight.grad))[part].float()
            pieces.append(Piece(master, gradient, here, state["step"]))
            fetched.append((values, kept))
        self.moments.update(pieces, group)
        for piece, (values, kept) in zip(pieces, fetched, strict=True):
            for name, tensor in kept.items():
                updated = piece.values if name == MASTER else piece.moments[name]
                if updated is not tensor:
                    tensor.copy_(updated, non_blocking=True)
            if MASTER in kept:
                values.copy_(piece.values)

    def share(self, name: str, part: slice) -> slice:
        """Return the part of a named tensor of the state that belongs to a part of the weight."""
        each = self.moments.elements(name)
        return slice(part.start // each, -(-part.stop // each))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, bit for bit: torch's own method rounds a state to its weight's dtype."""
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})
        self.state.clear()
        if self.slabs is not None:
            self.slabs.clear()
        for number, values in state_dict["state"].items():
            weight = weights[number]
            alike = torch.empty(weight.shape, device="meta")
            expected = {"step": torch.zeros(()), **self.moments.start(alike, alike.device)}
            if weight.dtype is not torch.float32:
                expected[MASTER] = alike
            check_state(number, values, expected)
            home = self.home(weight)
            kept = {name: self.put(tensor.to(home)) for name, tensor in values.items() if name != "step"}
            self.state[weight] = {"step": values["step"].detach().cpu().clone(), **kept}


def check_state(number: int, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise ValueError where the state of a weight has not the tensors that are expected."""
    kinds = [{name: (tensor.dtype, tensor.shape) for name, tensor in state.items()} for state in (found, expected)]
    if kinds[0] != kinds[1]:
        names = sorted(name for name in kinds[0] | kinds[1] if kinds[0].get(name) != kinds[1].get(name))
        raise ValueError(
            f"the optimizer's state of weight {number} differs in {', '.join(names)}: it was saved with another "
            "optim.name, model.weights or model"
        )


def flatten_local(tensor: Tensor) -> Tensor:
    """Return the values (n,) of a tensor as a view; of a sharded one, those of this rank."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.view(-1) if local.is_contiguous() else local.reshape(-1)


def split_into_buckets(weights: Iterable[Tensor], size: int) -> Iterator[list[tuple[Tensor, slice]]]:
    """Yield buckets of at most `size` elements: parts of weights, as slices of their flat values.

    Parts of a weight begin at multiples of BLOCK.
    """
    bucket: list[tuple[Tensor, slice]] = []
    room = size
    for weight in weights:
        start, total = 0, flatten_local(weight.detach()).numel()
        while start < total:
            if bucket and room < min(total - start, BLOCK):
                yield bucket
                bucket, room = [], size
            taken = total - start if total - start <= room else max(BLOCK, room // BLOCK * BLOCK)
            stop = min(start + taken, total)
            bucket.append((weight, slice(start, stop)))
            room -= stop - start
            start = stop
    if bucket:
        yield bucket
