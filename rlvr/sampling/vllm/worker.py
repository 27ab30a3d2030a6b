"""The engine's side of weight pushes: load tensors, read them back. Runs in the process that holds vLLM's model.

A server loads it by `--worker-extension-cls`, and calls the methods of `WorkerExtension` by name over /collective_rpc.
Its import makes the engines of receive.py known to vLLM, which bring a server its weights.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

# Names in a checkpoint of experts that vLLM holds in a module `routed_experts`: one expert's matrix, or all stacked.
EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.\w+\.weight")
STACKED = re.compile(r"(.+\.experts)\.(gate_up_proj|gate_up_proj_bias|down_proj|down_proj_bias)")
# gpt_oss's stacks by what vLLM calls them.
STREAMED = {"gate_up_proj": "w13_weight", "gate_up_proj_bias": "w13_bias", "down_proj": "w2_weight"}
STREAMED |= {"down_proj_bias": "w2_bias"}
PARTS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))  # gate, up, down
GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu, "gelu": gelu}
ALPHA, LIMIT = 1.702, 7.0  # of gpt_oss's gate, as transformers has them
TRIED = 16  # inputs by which an expert is compared
# Engines of receive.py by their names in vLLM's --weight-transfer-config.
ENGINES = {"rlvr_gloo": "GlooEngine", "rlvr_nccl": "NCCLEngine"}
ROWS_AT_ONCE = 256


def repack_experts(model: nn.Module) -> None:
    """Bring experts that were pushed into the layout of vLLM's CPU kernels, which vLLM does at the first load alone."""
    for module in model.modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        if kernel is not None and next(module.parameters()).device.type == "cpu":
            kernel.fused_experts.process_weights_after_loading(module)


def experts_of(model: nn.Module, names: Iterable[str]) -> dict[tuple[str, int | None], list[str]]:
    """Return the names of experts that can be compared, by path and number (None: a stack of all)."""
    modules = {path.removesuffix(".routed_experts") for path, _ in model.named_modules() if "routed_experts" in path}
    found: dict[tuple[str, int | None], list[str]] = {}
    for name in names:
        if (one := EXPERT.fullmatch(name)) and one[1] in modules:
            found.setdefault((one[1], int(one[2])), []).append(name)
        elif (stack := STACKED.fullmatch(name)) and stack[1] in modules:
            found.setdefault((stack[1], None), []).append(name)
    return found


def differing_experts(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the experts' tensors where the engine computes something else than they do."""
    differing: list[str] = []
    for (path, number), names in experts_of(model, weights).items():
        module = model.get_submodule(f"{path}.routed_experts")
        if number is None:
            same = _same_stack(module, {name.rpartition(".")[2]: weights[name] for name in names})
        else:
            same = _same_expert(module, number, {name.split(".")[-2]: weights[name] for name in names})
        if not same:
            differing += names
    return differing


def _same_expert(module: Any, number: int, weights: dict[str, Tensor]) -> bool:
    """Return whether an expert of the engine computes what its weights do, by the last parts of their names."""
    parts = next((parts for parts in PARTS if set(parts) == set(weights)), None)
    if parts is None or module.activation.value not in GATES:
        return False
    gate, up, down = (_as_held(weights[part], module) for part in parts)
    function = GATES[module.activation.value]
    return _computes(module, number, gate.shape[1], lambda x: (function(x @ gate.T) * (x @ up.T)) @ down.T)


def _same_stack(module: Any, weights: dict[str, Tensor]) -> bool:
    """Return whether all experts of the engine compute what gpt_oss's stacked weights do."""
    if weights.keys() != STREAMED.keys() or module.activation.value != "swigluoai":
        return False

    def computes(number: int) -> bool:
        inner, inner_bias, outer, outer_bias = (_as_held(weights[name][number], module) for name in STREAMED)

        def compute(x: Tensor) -> Tensor:
            both = x @ inner + inner_bias
            gate, up = both[:, ::2].clamp(max=LIMIT), both[:, 1::2].clamp(-LIMIT, LIMIT)
            return ((up + 1) * gate * torch.sigmoid(gate * ALPHA)) @ outer + outer_bias

        return _computes(module, number, len(inner), compute)

    return all(computes(number) for number in range(module.global_num_experts))


def _as_held(value: Tensor, module: Any) -> Tensor:
    """Return a weight rounded as the engine holds it, in float32."""
    return value.to(module.w13_weight.device, module.w13_weight.dtype).float()


def _computes(module: Any, number: int, width: int, compute: Callable[[Tensor], Tensor]) -> bool:
    """Return whether an expert of the engine gives the same outputs for random inputs (n, width) as `compute`.

    vLLM's kernels keep experts in layouts of their own, so that their weights cannot be read.
    """
    x = torch.randn(TRIED, width, generator=torch.Generator().manual_seed(0)).to(module.w13_weight)
    chosen = (torch.arange(module.top_k, device=x.device) + number) % module.global_num_experts
    shares = (chosen == number).float().expand(TRIED, -1).contiguous()
    ids = chosen.to(torch.int32).expand(TRIED, -1).contiguous()
    found = module.quant_method.apply(module, x, shares, ids, None, None).float()
    expected = compute(x.float())
    rounding = 1e-5 if x.dtype is torch.float32 else 2e-2
    return bool((found - expected).abs().max() <= rounding * expected.abs().max())


class WorkerExtension:
    """Methods that vLLM adds to its worker; `self` is the worker."""

    def describe_transfer(self) -> dict[str, Any]:
        """Return how weights come in: the engine's name, the weights' dtype, this worker's GPU ("" without one)."""
        config = self.vllm_config  # type: ignore[attr-defined]
        gpu = str(torch.cuda.get_device_properties(0).uuid) if torch.cuda.is_available() else ""
        dtype = str(config.model_config.dtype).removeprefix("torch.")
        return {"backend": config.weight_transfer_config.backend, "dtype": dtype, "gpu": gpu}

    def differing_weights(self, update_info: dict[str, Any]) -> list[str]:
        """Receive tensors; return the names of those whose values differ in the engine, or are missing there."""
        return self.weight_transfer_engine.differing(update_info)  # type: ignore[attr-defined]


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
    settle(model, sinks)


def prepare_weights(
    model: Any, weights: Iterable[tuple[str, Tensor]], sinks: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield weights as vLLM's model loads them in place; attention sinks are put into `sinks` instead.

    Models of vLLM copy sinks, and stacked experts, into a parameter themselves, which is a placeholder while weights
    are loaded in place. So the experts of gpt_oss come one by one.
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


def settle(model: Any, sinks: Mapping[str, Tensor]) -> None:
    """Complete a push after the model has loaded its weights."""
    repack_experts(model)
    with torch.inference_mode():
        for name, value in sinks.items():
            model.get_parameter(_rename(model, name)).copy_(value)


@torch.inference_mode()
def differing_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of `weights` (transformers' names) whose values differ in the engine, or are missing there.

    vLLM packs matrices, on CPUs into a layout that cannot be read; so a matrix is read back as its product with the
    identity, which is what the engine computes with. Matrices that vLLM concatenates (q, k and v) are split again.
    """
    effective: dict[str, Tensor] = {}
    experts = {name for names in experts_of(model, weights).values() for name in names}
    differing = differing_experts(model, weights)
    for name, expected in weights.items():
        if name in experts:
            continue
        path, start = _place(model, name, weights)
        if path is None:
            differing.append(name)
            continue
        if path not in effective:
            effective = {path: _effective(model, path)}  # one at a time: all together are a second model in memory
        value = effective[path][start : start + len(expected)]
        if value.shape != expected.shape or not _equals(value, expected):
            differing.append(name)
    return differing


def _rename(model: Any, name: str) -> str:
    """Return what the model's class in vLLM calls a tensor."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    return name if mapper is None else mapper.map_name(name) or name


def _place(model: Any, name: str, weights: Mapping[str, Tensor]) -> tuple[str | None, int]:
    """Return the engine's name for a tensor (None: it has none), and the row at which the tensor begins there."""
    before, _, _ = name.rpartition(".")
    siblings, _, last = before.rpartition(".")
    for own in (name, _rename(model, name)):
        if _has(model, own):
            return own, 0
        path, _, leaf = own.rpartition(".")
        parent = path.rpartition(".")[0]
        for packed, parts in getattr(model, "packed_modules_mapping", {}).items():
            if last in parts and _has(model, f"{parent}.{packed}.{leaf}"):
                earlier = parts[: parts.index(last)]
                return f"{parent}.{packed}.{leaf}", sum(len(weights[f"{siblings}.{part}.{leaf}"]) for part in earlier)
    return None, 0


def _has(model: nn.Module, name: str) -> bool:
    path, _, leaf = name.rpartition(".")
    try:
        return hasattr(model.get_submodule(path), leaf)
    except AttributeError:
        return False


def _effective(model: nn.Module, name: str) -> Tensor:
    """Return the values of a parameter that the engine computes with."""
    path, _, leaf = name.rpartition(".")
    module: Any = model.get_submodule(path)
    method = getattr(module, "quant_method", None)
    if leaf != "weight" or method is None:
        return module.get_parameter(leaf)
    if hasattr(module, "num_embeddings") and path.endswith(("embed_tokens", "embedding")):
        return module.weight
    return torch.cat([method.apply(module, rows).T for rows in _unit_rows(module)], dim=1)


def _unit_rows(module: Any) -> Iterator[Tensor]:
    """Yield the identity matrix of a layer's input size, some rows at a time."""
    sizes = (getattr(module, name, None) for name in ("input_size_per_partition", "input_size", "embedding_dim"))
    size = next(size for size in sizes if size)
    dtype, device = module.weight.dtype, module.weight.device
    for start in range(0, size, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, size - start)
        rows = torch.zeros(count, size, dtype=dtype, device=device)
        rows[torch.arange(count), start + torch.arange(count)] = 1
        yield rows


def _equals(value: Tensor, expected: Tensor) -> bool:
    """Return whether values are equal up to the rounding of a product with 1."""
    expected = expected.to(value.device, value.dtype).float()
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return bool(((value.float() - expected).abs() <= 1e-6 * max(scale, 1e-30)).all())
