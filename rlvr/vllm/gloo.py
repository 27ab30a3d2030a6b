"""A group of processes that tensors go through from the first to the others, over TCP: no GPU and no vLLM is needed.

It is beside torch.distributed's own groups: the trainer's processes have theirs, vLLM's workers have theirs.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import ProcessGroupGloo

Group = Any  # ProcessGroupGloo; torch gives it no type


def open_store(address: str, port: int, timeout: float, *, first: bool) -> TCPStore:
    """Return the store where the group meets: opened by its first process (port 0: any free one), joined by others."""
    return TCPStore(
        address, port, is_master=first, timeout=timedelta(seconds=timeout), wait_for_workers=False, use_libuv=True
    )


def join_group(store: TCPStore, rank: int, size: int, *, address: str, timeout: float) -> Group:
    """Return the group of `size` processes once all are there. address: of this process, as the others reach it.

    timeout: seconds after which a transfer that does not go on fails. Raises RuntimeError.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout)
    group = ProcessGroupGloo(PrefixStore("rlvr-weights", store), rank, size, options)
    broadcast(group, torch.zeros(1))  # connects: whoever is missing is missed here
    return group


def broadcast(group: Group, tensor: torch.Tensor) -> None:
    """Send a contiguous tensor on the CPU from the first process to all others, in place there.

    Raises RuntimeError where a process is gone, or the transfer does not go on.
    """
    if tensor.numel():
        group.broadcast(tensor.reshape(-1).view(torch.uint8), 0).wait()  # as bytes: gloo does not know every dtype


def address_towards(host: str) -> str:
    """Return the address of this machine under which a host reaches it. Raises OSError for a host that is unknown."""
    family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])


def free_port(address: str = "127.0.0.1") -> int:
    """Return a free port of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
    return port
