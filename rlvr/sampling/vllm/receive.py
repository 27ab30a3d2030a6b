"""vLLM's end of a weight transfer: engines for its WeightTransferEngineFactory, which run in its workers.

`rlvr_nccl` is vLLM's own NCCL engine. `rlvr_gloo` takes tensors over TCP: neither of vLLM's engines runs without a GPU,
nor where trainer and server share one. Both load as a push within one process does (see rlvr.sampling.vllm.worker).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .transfer import address_towards, broadcast, join_group, open_store
from .worker import complete_push, prepare_weights

try:
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
except ImportError:  # read without vLLM by the API reference alone
    WeightTransferEngine = WeightTransferInitInfo = WeightTransferUpdateInfo = NCCLWeightTransferEngine = object

Weights = Iterable[tuple[str, Tensor]]


@dataclass(kw_only=True)
class GlooInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Where the group meets. timeout: seconds without progress after which a transfer fails."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    timeout: float


@dataclass
class GlooUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The tensors of one part of a push."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class Receiving:
    """The base of both engines: loads received tensors in place."""

    model: Any
    model_config: Any
    unfinished = False

    def start_weight_update(self) -> None:
        """Begin a push."""
        if self.unfinished:
            # Otherwise the parts of a push that broke off would be counted as parts of this one.
            finalize_layerwise_reload(self.model, self.model_config)
        self.sinks: dict[str, Tensor] = {}
        self.unfinished = True
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """End a push."""
        finalize_layerwise_reload(self.model, self.model_config)
        complete_push(self.model, self.sinks)
        self.unfinished = False

    def receive_weights(self, update_info: Any) -> None:
        """Receive the tensors of one part, and load them."""
        model, sinks = self.model, self.sinks
        self.take(update_info, lambda weights: model.load_weights(prepare_weights(model, weights, sinks)))

    def take(self, update_info: Any, consume: Callable[[Weights], Any]) -> None:
        """Receive tensors and hand them to `consume`, in one call or several."""
        raise NotImplementedError


class GlooEngine(Receiving, WeightTransferEngine):  # type: ignore[misc]
    """Tensors over TCP, each received when it is asked for."""

    init_info_cls, update_info_cls = GlooInit, GlooUpdate
    group: Any = None

    def init_transfer_engine(self, init_info: GlooInit) -> None:
        """Join the group."""
        parallel, info = self.parallel_config, init_info
        rank = info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        store = open_store(info.master_address, info.master_port, info.timeout, first=False)
        own = address_towards(info.master_address)
        self.group = join_group(store, rank, info.world_size, address=own, timeout=info.timeout)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive and load one part. The base class's method needs an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def take(self, update_info: GlooUpdate, consume: Callable[[Weights], Any]) -> None:
        """Receive tensors while they are consumed. If that fails, leave the group, so that the others notice."""
        try:
            consume(self._stream(update_info))
        except BaseException:
            self.shutdown()
            raise

    def _stream(self, update: GlooUpdate) -> Iterator[tuple[str, Tensor]]:
        for name, dtype, shape in zip(update.names, update.dtype_names, update.shapes, strict=True):
            value = torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")
            broadcast(self.group, value)
            yield name, value

    def shutdown(self) -> None:
        """Leave the group."""
        self.group = None


class NCCLEngine(Receiving, NCCLWeightTransferEngine):  # type: ignore[misc]
    """vLLM's NCCL engine."""

    def take(self, update_info: Any, consume: Callable[[Weights], Any]) -> None:
        """Receive tensors in packed buffers; vLLM's engine hands each to the model's `load_weights`."""
        model, self.model = self.model, Consumer(consume)
        try:
            NCCLWeightTransferEngine.receive_weights(self, update_info)
        finally:
            self.model = model


@dataclass(frozen=True)
class Consumer:
    """Takes the model's place: its `load_weights` is the given function."""

    load_weights: Callable[[Weights], Any]
