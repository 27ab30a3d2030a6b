"""Weights in shards: a rank holds 1/N of each weight, of its gradient and of its optimizer state (torch's FSDP2).

Each decoder layer is gathered while it computes. Embeddings, norms and LM head are gathered together for the whole of a
pass, so that the chunks of the LM head, and their recomputation, need no further gather: every pass of the trainer runs
`within` the model. All ranks must run the same number of passes; rlvr.algo.batch plans them. Shards are cast to the
dtype of the computation before they are gathered, and gradients to float32 before they are summed: a pass needs no
autocast, and shards of float32 weights are what an update adds to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ..forward.passes import decoder_layer, is_llama_like

T = TypeVar("T")


def check_shard(shard: int, processes: int) -> None:
    """Raise ValueError unless so many ranks can hold the model in `shard` parts."""
    if processes % shard:
        counts = [n for n in range(1, processes + 1) if processes % n == 0]
        known = " or ".join(map(str, counts)) if processes > 1 else "1, or start several processes with torchrun"
        one = "1 process" if processes == 1 else f"{processes} processes"
        raise ValueError(f"model.shard {shard} with {one}: expected {known}")


def make_mesh(shard: int, device: torch.device) -> DeviceMesh | None:
    """Return the mesh of all ranks; None where nothing is sharded.

    If `shard` is smaller than the world size, each group of `shard` ranks holds one full copy (HSDP). Raises ValueError
    where the number of ranks is no multiple of `shard`.
    """
    processes = dist.get_world_size() if dist.is_initialized() else 1
    check_shard(shard, processes)
    if shard == 1:
        return None
    if shard == processes:
        return init_device_mesh(device.type, (processes,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (processes // shard, shard), mesh_dim_names=("replicate", "shard"))


def is_sharded(model: Any) -> bool:
    """Return whether a model's weights are in shards."""
    return isinstance(model, FSDPModule)


def decoder_layers(causal: Any) -> list[nn.Module]:
    """Return the layers of a decoder: the entries of its largest list of modules."""
    lists = [module for module in causal.base_model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=lambda found: sum(weight.numel() for weight in found.parameters()), default=()))


def shard_model(model: Any, causal: Any, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    """Cut a model's weights into shards, in place; a rank keeps its own. `causal`: transformers' model within it.

    dtype: of the computation; a classifier's head computes in float32. The weights must be equal on all ranks, or on
    the meta device (see `allocate`).
    """
    layers = decoder_layers(causal)
    if is_llama_like(causal):
        for layer in layers:
            layer.packed_pass = MethodType(decoder_layer, layer)  # type: ignore[assignment]
    for layer in layers:
        shard_module(layer, mesh, dtype)
        if hasattr(layer, "packed_pass"):
            register_fsdp_forward_method(layer, "packed_pass")
    if hasattr(causal, "score"):
        shard_module(causal.score, mesh)
    model.pass_within = MethodType(run_pass, model)
    shard_module(model, mesh, dtype)
    register_fsdp_forward_method(model, "pass_within")


def run_pass(model: Any, call: Callable[[], T]) -> T:
    """Return call(). The gradients of the weights that are gathered for it add up in float32, over chunks of logits."""
    for weight in model.parameters():
        if weight.requires_grad and not isinstance(weight, DTensor):
            weight.grad_dtype = torch.float32
    return call()


def shard_module(module: nn.Module, mesh: DeviceMesh, dtype: torch.dtype = torch.float32) -> None:
    """Cut the weights of a module that are not in shards yet; they are gathered in a dtype. Gradients are summed over
    the ranks in float32, not averaged.

    The loss carries the whole minibatch's denominator. A plain sum is all that gloo knows, and on NCCL the
    pre-multiplied sum that a division needs zeroes bfloat16 (github.com/pytorch/pytorch/issues/190747).
    """
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    assert isinstance(module, FSDPModule)
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)


def within(model: Any, call: Callable[[], T]) -> T:
    """Return call(), for a sharded model with the weights outside of its layers gathered.

    The tensors of the result may be differentiated. Every rank must call this equally often.
    """
    if not is_sharded(model):
        return call()
    result: T = model.pass_within(call)
    if not torch.is_grad_enabled():
        model.reshard()  # after a backward pass FSDP does so
    return result


def full(tensor: Tensor) -> Tensor:
    """Gather a tensor in shards from all ranks, which must all call this; return any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def fill(tensor: Tensor, stored: Any) -> None:
    """Copy into a tensor, or into the shard of it that is here. stored: the whole, as a tensor or slice of a file."""
    if not isinstance(tensor, DTensor):
        tensor.copy_(stored if isinstance(stored, Tensor) else stored[...])
        return
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    part = tensor.to_local()
    if part.numel():
        part.copy_(stored[tuple(slice(first, first + size) for first, size in zip(offset, shape))])


def copy_without_weights(model: Any) -> Any:
    """Return a copy of a model whose weights are on the meta device: shapes without values. Buffers are copied."""
    empty = {
        id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, empty)


def allocate(model: Any, device: torch.device) -> None:
    """Give a sharded model memory in place of shards on the meta device, without setting it."""
    model._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)


def with_weights(model: Any, weights: Mapping[str, Tensor]) -> Any:
    """Return a copy of a model with these weights, by name, in place of its own; the copy holds them as they are."""
    given = {
        id(weight): nn.Parameter(weights[name], requires_grad=weight.requires_grad)
        for name, weight in model.named_parameters()
    }
    return copy.deepcopy(model, given)


@torch.no_grad()
def gather_weights(
    model: Any, *, keep: bool = True, device: str | None = None, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Return the whole weights of a sharded model by name, one gathered after the other; every rank must call this.

    device: to which each is moved. dtype: of the result, to which shards are cast; None: their own. With `keep` False
    nothing is kept: another rank wants them.
    """
    found = {}
    for name, weight in model.named_parameters():
        whole = full(weight.detach().to(dtype or weight.dtype))
        if keep:
            found[name] = whole if device is None else whole.to(device)
        del whole
    return found


def leads() -> bool:
    """Return whether this is the first rank."""
    return not dist.is_initialized() or dist.get_rank() == 0
