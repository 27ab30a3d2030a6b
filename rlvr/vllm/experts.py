"""A mixture's experts in vLLM's model: loaded one by one, brought into the kernels' layout, compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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


def one_by_one(model: Any, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights, the stacked experts of gpt_oss one by one.

    Of a stack vLLM's model makes a copy into its parameter, which is a placeholder while weights are loaded in place.
    """
    streams = hasattr(getattr(model, "model", None), "_try_load_streamed_expert")
    for name, value in weights:
        found = STACKED.fullmatch(name) if streams else None
        if found is None:
            yield name, value
            continue
        for number, expert in enumerate(value):
            yield f"{found[1]}.{number}.{STREAMED[found[2]]}", expert


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

    def same(number: int) -> bool:
        inner, inner_bias, outer, outer_bias = (_as_held(weights[name][number], module) for name in STREAMED)

        def compute(x: Tensor) -> Tensor:
            both = x @ inner + inner_bias
            gate, up = both[:, ::2].clamp(max=LIMIT), both[:, 1::2].clamp(-LIMIT, LIMIT)
            return ((up + 1) * gate * torch.sigmoid(gate * ALPHA)) @ outer + outer_bias

        return _computes(module, number, len(inner), compute)

    return all(same(number) for number in range(module.global_num_experts))


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
