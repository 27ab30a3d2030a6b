"""The engine's side of weight pushes: load tensors in place. Runs in the process that holds vLLM's model.

A server loads it by `--worker-extension-cls`, and calls the methods of `WorkerExtension` by name over /collective_rpc.
Importing it registers the transfer engines of receive.py with vLLM.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

# Names in a checkpoint of stacked experts, which vLLM holds in a module `routed_experts`.
STACKED = re.compile(r"(.+\.experts)\.(gate_up_proj|gate_up_proj_bias|down_proj|down_proj_bias)")
# gpt_oss's stacks by what vLLM calls them.
STREAMED = {"gate_up_proj": "w13_weight", "gate_up_proj_bias": "w13_bias", "down_proj": "w2_weight"}
STREAMED |= {"down_proj_bias": "w2_bias"}
# Engines of receive.py by their names in vLLM's --weight-transfer-config.
ENGINES = {"rlvr_gloo": "GlooEngine", "rlvr_nccl": "NCCLEngine"}


def repack_experts(model: nn.Module) -> None:
    """Bring pushed experts into the layout of vLLM's CPU kernels: vLLM itself does this at the first load only."""
    for module in model.modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        if kernel is not None and next(module.parameters()).device.type == "cpu":
            kernel.fused_experts.process_weights_after_loading(module)


class WorkerExtension:
    """Methods that vLLM adds to its worker; `self` is the worker."""

    def describe_transfer(self) -> dict[str, Any]:
        """Return the transfer engine's name, the weights' dtype, and this worker's GPU ("" without one)."""
        config = self.vllm_config  # type: ignore[attr-defined]
        gpu = str(torch.cuda.get_device_properties(0).uuid) if torch.cuda.is_available() else ""
        dtype = str(config.model_config.dtype).removeprefix("torch.")
        return {"backend": config.weight_transfer_config.backend, "dtype": dtype, "gpu": gpu}


def register_engines() -> None:
    """Let vLLM find the engines of rlvr.sampling.vllm.receive by their names."""
    factory = import_module("vllm.distributed.weight_transfer.factory").WeightTransferEngineFactory
    for name, kind in ENGINES.items():
        if name not in factory._registry:
            factory.register_engine(name, "rlvr.sampling.vllm.receive", kind)


if "vllm" in sys.modules:  # a worker of vLLM's reads this module because of the WorkerExtension
    register_engines()


def reload(worker: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Load weights in place, each as it is asked for. worker: vLLM's."""
    model = worker.model_runner.get_model()
    sinks: dict[str, Tensor] = {}
    worker.model_runner.reload_weights(weights_iterator=prepare_weights(model, weights, sinks))
    complete_push(model, sinks)


def prepare_weights(
    model: Any, weights: Iterable[tuple[str, Tensor]], sinks: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield weights as vLLM's model loads them in place; attention sinks are put into `sinks` instead.

    vLLM's models copy sinks and stacked experts into a parameter by themselves, and while weights are loaded in place
    that parameter is a placeholder. So the experts of gpt_oss are yielded one by one.
    """
    streams = hasattr(getattr(model, "model", None), "_try_load_streamed_expert")
    for name, value in weights:
        if "sink" in name.rpartition(".")[2]:
            sinks[name] = value
        elif streams and (stack := STACKED.fullmatch(name)):
            for number, expert in enumerate(value):
                yield f"{stack[1]}.{number}.{STREAMED[stack[2]]}", expert
        else:
            yield name, value


def complete_push(model: Any, sinks: Mapping[str, Tensor]) -> None:
    """Complete a push after the model has loaded its weights."""
    repack_experts(model)
    with torch.inference_mode():
        for name, value in sinks.items():
            model.get_parameter(_rename(model, name)).copy_(value)


def _rename(model: Any, name: str) -> str:
    """Return what the model's class in vLLM calls a tensor."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    return name if mapper is None else mapper.map_name(name) or name
