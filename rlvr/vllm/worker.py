"""The engine's side of weight pushes: load tensors, read them back. Runs in the process that holds vLLM's model.

A server loads it by `--worker-extension-cls rlvr.vllm.worker.WorkerExtension` and calls its methods by name over
/collective_rpc.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

WEIGHTS_FILE = "model.safetensors"
ROWS_AT_ONCE = 256


class WorkerExtension:
    """Methods that vLLM adds to its worker; `self` is the worker."""

    def push_weights(self, folder: str) -> None:
        """Load the weights in a folder in place."""
        # As tensors: given the path, vLLM would keep its old packed copy of a tied head.
        self.model_runner.reload_weights(weights_iterator=list(_tensors(folder).items()))  # type: ignore[attr-defined]

    def differing_weights(self, folder: str) -> list[str]:
        """Return the names of the tensors in a folder whose values differ in the engine, or are missing there."""
        return differing_weights(self.model_runner.get_model(), _tensors(folder))  # type: ignore[attr-defined]


def _tensors(folder: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = load_file(Path(folder) / WEIGHTS_FILE)
    return weights


@torch.inference_mode()
def differing_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of `weights` (transformers' names) whose values differ in the engine, or are missing there.

    vLLM packs matrices, on CPUs into a layout that cannot be read; so a matrix is read back as its product with the
    identity, which is what the engine computes with. Matrices that vLLM concatenates (q, k and v) are split again.
    """
    effective: dict[str, Tensor] = {}
    differing = []
    for name, expected in weights.items():
        path, start = _place(model, name, weights)
        if path is None:
            differing.append(name)
            continue
        if path not in effective:
            effective = {path: _effective(model, path)}  # one at a time: all together are a second model in memory
        value = effective[path][start : start + len(expected)]
        if value.shape != expected.shape or not _equal(value, expected):
            differing.append(name)
    return differing


def _place(model: Any, name: str, weights: Mapping[str, Tensor]) -> tuple[str | None, int]:
    """Return the engine's name for a tensor (None: it has none), and the row at which the tensor begins there."""
    path, _, leaf = name.rpartition(".")
    if _has(model, name):
        return name, 0
    parent, _, last = path.rpartition(".")
    for packed, parts in getattr(model, "packed_modules_mapping", {}).items():
        if last in parts and _has(model, f"{parent}.{packed}.{leaf}"):
            before = parts[: parts.index(last)]
            return f"{parent}.{packed}.{leaf}", sum(len(weights[f"{parent}.{part}.{leaf}"]) for part in before)
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
    if hasattr(module, "num_embeddings") and path.endswith("embed_tokens"):
        return module.weight
    return torch.cat([method.apply(module, rows).T for rows in _unit_rows(module)], dim=1)


def _unit_rows(module: Any) -> Iterator[Tensor]:
    """Yield the identity matrix of a layer's input size, some rows at a time."""
    size = getattr(module, "input_size_per_partition", None) or module.embedding_dim
    dtype, device = module.weight.dtype, module.weight.device
    for start in range(0, size, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, size - start)
        rows = torch.zeros(count, size, dtype=dtype, device=device)
        rows[torch.arange(count), start + torch.arange(count)] = 1
        yield rows


def _equal(value: Tensor, expected: Tensor) -> bool:
    """Return whether values are equal up to the rounding of a product with 1."""
    expected = expected.to(value.device, value.dtype).float()
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return bool(((value.float() - expected).abs() <= 1e-6 * max(scale, 1e-30)).all())
