"""The engine's side of the weights: load them, read them back. Runs in the process that holds vLLM's model.

In a server it is the worker extension `--worker-extension-cls rlvr.vllm.worker.WorkerExtension`, whose methods are
called by name over /collective_rpc.
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
        """Loads the weights of a folder in place."""
        # Files of weights alone would leave a tied head as it was: it is packed apart from the embedding.
        self.model_runner.reload_weights(weights_iterator=list(_tensors(folder).items()))  # type: ignore[attr-defined]

    def differing_weights(self, folder: str) -> list[str]:
        """Names of the tensors whose values here are not those of the folder's file."""
        return differing_weights(self.model_runner.get_model(), _tensors(folder))  # type: ignore[attr-defined]


def _tensors(folder: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = load_file(Path(folder) / WEIGHTS_FILE)
    return weights


@torch.inference_mode()
def differing_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Names of `weights` (as transformers names them) whose values in the engine's model are others, or are missing.

    vLLM packs matrices, on CPUs into kernels that hide them; so a matrix is read back by multiplying the unit matrix
    with it: what counts is what the engine computes with. Matrices that vLLM joins (q, k and v) are told apart again.
    """
    effective: dict[str, Tensor] = {}
    found = []
    for name, expected in weights.items():
        path, start = _place(model, name, weights)
        if path is None:
            found.append(name)
            continue
        if path not in effective:
            effective = {path: _effective(model, path)}  # one at a time: together they would be a second model
        value = effective[path][start : start + len(expected)]
        if value.shape != expected.shape or not _equal(value, expected):
            found.append(name)
    return found


def _place(model: Any, name: str, weights: Mapping[str, Tensor]) -> tuple[str | None, int]:
    """The engine's name for a tensor, and the row at which it begins there."""
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
    """The values of a parameter that the engine computes with."""
    path, _, leaf = name.rpartition(".")
    module: Any = model.get_submodule(path)
    method = getattr(module, "quant_method", None)
    if leaf != "weight" or method is None:
        return module.get_parameter(leaf)
    if hasattr(module, "num_embeddings") and path.endswith("embed_tokens"):
        return module.weight
    return torch.cat([method.apply(module, rows).T for rows in _unit_rows(module)], dim=1)


def _unit_rows(module: Any) -> Iterator[Tensor]:
    """The unit matrix of a layer's input size, some rows at a time."""
    size = getattr(module, "input_size_per_partition", None) or module.embedding_dim
    dtype, device = module.weight.dtype, module.weight.device
    for start in range(0, size, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, size - start)
        rows = torch.zeros(count, size, dtype=dtype, device=device)
        rows[torch.arange(count), start + torch.arange(count)] = 1
        yield rows


def _equal(value: Tensor, expected: Tensor) -> bool:
    """Equal up to the rounding of a product with one."""
    expected = expected.to(value.device, value.dtype).float()
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return bool(((value.float() - expected).abs() <= 1e-6 * max(scale, 1e-30)).all())
