"""Whether servers can be used together, and by this trainer: how weights come in, dtype, GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlvr.vllm.server import HOW_TO_START, Server
from rlvr.vllm.transfer import CHANNELS


def check_alike(servers: Sequence[Server], dtype: torch.dtype, device: torch.device) -> None:
    """Raise ValueError where servers get weights in several ways, in another dtype, or on the trainer's GPU."""
    first, computes = servers[0], str(dtype).removeprefix("torch.")
    for server in servers:
        if server.backend not in CHANNELS:
            raise ValueError(f"{server.name} gets weights by {server.backend}; {HOW_TO_START}")
        if server.backend != first.backend:
            raise ValueError(
                f"{first.name} gets weights by {first.backend}, {server.name} by {server.backend}; "
                "start all with the same --transfer"
            )
        if server.dtype != computes:
            raise ValueError(f"{server.name} computes in {server.dtype}, the trainer in {computes}; set --dtype there")
        if server.backend == "rlvr_nccl" and device.type != "cuda":
            raise ValueError(f"{server.name} gets weights by NCCL, and the trainer is on {device}; serve with "
                             "--transfer gloo")  # fmt: skip
        if server.backend == "rlvr_nccl" and own_gpu(device) in server.gpus:
            raise ValueError(f"{server.name} is on the trainer's GPU, where NCCL cannot send; serve it with "
                             "--transfer gloo")  # fmt: skip


def own_gpu(device: torch.device) -> str:
    """Return the id of a GPU; "" for another device."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
