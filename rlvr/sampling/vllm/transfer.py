"""Weight transfer: one broadcast reaches the workers of all servers, by vLLM's own routes.

`Transfer` is the trainer's end; receive.py is vLLM's. Tensors go by NCCL or over TCP. TCP needs neither a GPU nor vLLM
on the trainer's side; both ends call `open_store`, `join_group` and `broadcast`.

Collectives run on a daemon thread, and HTTP calls beside them have a time limit, so that nothing waits for a lost
server for ever.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import ProcessGroupGloo

from rlvr.core.http import ServerLost, ServerSilent, is_local
from rlvr.core.types import RunError
from rlvr.distributed import in_thread

from .engine import MISSING
from .server import Server, free_port
from .weights import parts

Group = Any  # ProcessGroupGloo; torch gives it no type


def open_store(address: str, port: int, timeout: float, *, first: bool) -> TCPStore:
    """Return the store where the group meets: opened by its first process (port 0: any free one), joined by others."""
    return TCPStore(
        address, port, is_master=first, timeout=timedelta(seconds=timeout), wait_for_workers=False, use_libuv=True
    )


def join_group(store: TCPStore, rank: int, size: int, *, address: str, timeout: float) -> Group:
    """Return the group of `size` processes once all are there. It is separate from torch.distributed's groups.

    address: of this process, as the others reach it. timeout: seconds without progress after which a transfer fails.
    Raises RuntimeError.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout)
    group = ProcessGroupGloo(PrefixStore("rlvr-weights", store), rank, size, options)
    broadcast(group, torch.zeros(1))  # connects, and fails here if a process is missing
    return group


def broadcast(group: Group, tensor: torch.Tensor) -> None:
    """Send a contiguous tensor on the CPU from the first process to all others, in place there.

    Raises RuntimeError if a process is gone, or the transfer makes no progress.
    """
    if tensor.numel():
        group.broadcast(tensor.reshape(-1).view(torch.uint8), 0).wait()  # as bytes: gloo does not know every dtype


def address_towards(host: str) -> str:
    """Return the address of this machine at which `host` reaches it. Raises OSError for an unknown host."""
    family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])


PART_BYTES = 2**28  # sent by one call of /update_weights; a larger decoder layer is sent whole
STALLED = 120.0  # seconds without progress after which a collective fails, before HTTP calls do
GRACE = 2.0  # seconds to wait for other servers that fail at the same time
SHORT = 10.0  # seconds for calls that only end something


class TransferBroken(Exception):
    """A push did not reach all servers. lost: the servers to give up, each with the reason."""

    def __init__(self, lost: dict[Server, str]) -> None:
        super().__init__("; ".join(lost.values()))
        self.lost = lost


class GlooChannel:
    """The first process of a group over TCP. The others are the servers' workers; all meet at `port`."""

    def __init__(self, address: str, size: int, device: torch.device, limit: float) -> None:
        self.address, self.size, self.limit = address, size, limit
        self.store: Any = open_store(address, 0, limit, first=True)
        self.port = self.store.port
        self.group: Any = None

    def init_info(self) -> dict[str, Any]:
        """Return what a server needs beside address, port, rank and size."""
        return {"timeout": self.limit}

    def join(self) -> None:
        """Wait until all are there."""
        self.group = join_group(self.store, 0, self.size, address=self.address, timeout=self.limit)

    def send(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        for _, value in weights:
            broadcast(self.group, value)

    def prepare(self, value: Tensor) -> Tensor:
        """Return the tensor on the device that it is sent from."""
        return value.cpu().contiguous()

    def close(self) -> None:
        """Leave the group, so that workers that wait for more notice it."""
        self.group = self.store = None


class NCCLChannel:
    """The same from this process's GPU to the workers' GPUs, by vLLM's own functions."""

    def __init__(self, address: str, size: int, device: torch.device, limit: float) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise ValueError(f"weights go to these servers by NCCL, and {MISSING}; or serve with --transfer gloo")
        self.address, self.size, self.device = address, size, device
        self.port = free_port(address)
        self.group: Any = None

    def init_info(self) -> dict[str, Any]:
        return {"packed": True}

    def join(self) -> None:
        torch.cuda.set_device(self.device)
        common = importlib.import_module("vllm.distributed.weight_transfer.nccl_common")
        where = {"master_address": self.address, "master_port": self.port, "world_size": self.size}
        self.group = common.trainer_init(where)

    def send(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        torch.cuda.set_device(self.device)
        packed = importlib.import_module("vllm.distributed.weight_transfer.packed_tensor")
        packed.packed_nccl_broadcast_producer(
            iterator=iter(weights),
            group=self.group,
            src=0,
            post_iter_func=lambda item: item[1],
            buffer_size_bytes=packed.DEFAULT_PACKED_BUFFER_SIZE_BYTES,
            num_buffers=packed.DEFAULT_PACKED_NUM_BUFFERS,
        )
        torch.cuda.current_stream().synchronize()

    def prepare(self, value: Tensor) -> Tensor:
        return value.to(self.device).contiguous()

    def close(self) -> None:
        self.group = None  # not destroyed: that may take as long as waiting for a lost server


CHANNELS: dict[str, type[GlooChannel | NCCLChannel]] = {"rlvr_gloo": GlooChannel, "rlvr_nccl": NCCLChannel}


class Transfer:
    """A group of this process (rank 0) and the workers of some servers, over which weights are sent to all at once.

    dtype: in which weights are sent. Raises TransferBroken if a server does not join.
    """

    def __init__(self, servers: Sequence[Server], dtype: torch.dtype, device: torch.device) -> None:
        self.servers, self.dtype = tuple(servers), dtype
        size = 1 + sum(server.workers for server in servers)
        address = meeting_address([server.url for server in servers])
        self.limit = min(STALLED, min(server.timeout for server in servers) / 2)
        self.channel = channel = CHANNELS[servers[0].backend](address, size, device, self.limit)
        shared = {"master_address": address, "master_port": channel.port, "world_size": size}
        first, bodies = 1, {}
        for server in servers:
            bodies[server] = {"init_info": {**shared, "rank_offset": first, **channel.init_info()}}
            first += server.workers
        self._call_all("/init_weight_transfer_engine", lambda server: bodies[server], channel.join)

    def push(self, weights: Iterable[tuple[str, Tensor]], version: str) -> None:
        """Load weights in place on all servers, and give them a version. Raises TransferBroken.

        Takes them from `weights` in this thread, in parts of whole layers, one after the other.
        """
        self._call_all("/start_weight_update", lambda server: {})
        for part in parts(weights, PART_BYTES):
            self._send(part)
            part.clear()  # or it would be held while the next one is made
        self._call_all("/finish_weight_update", lambda server: {"weight_version": version})

    def close(self) -> None:
        """Leave the group, and have the servers leave it; those that do not answer are left alone."""
        self.channel.close()
        leave(self.servers, "/shutdown_weight_transfer_engine")

    def _send(self, part: dict[str, Tensor]) -> None:
        """Send one part while all servers answer a call that receives it."""
        channel = self.channel
        ready = [(name, channel.prepare(value.detach().to(self.dtype))) for name, value in part.items()]
        info = {
            "names": [name for name, _ in ready],
            "dtype_names": [str(value.dtype).removeprefix("torch.") for _, value in ready],
            "shapes": [list(value.shape) for _, value in ready],
        }
        if ready and ready[0][1].is_cuda:
            torch.cuda.synchronize()  # the thread that sends has a stream of its own
        self._call_all("/update_weights", lambda server: {"update_info": info}, lambda: channel.send(ready))

    def _call_all(
        self, path: str, body: Callable[[Server], Any], collective: Callable[[], object] | None = None
    ) -> None:
        """Have all servers answer a call, while this process's part of a collective runs."""
        calls = {server: in_thread(partial(server.post, path, body(server))) for server in self.servers}
        own = [in_thread(collective)] if collective is not None else []
        limit = max(server.timeout for server in self.servers)
        done, left = wait([*calls.values(), *own], timeout=limit, return_when=FIRST_EXCEPTION)
        if left or any(future.exception() is not None for future in done):
            raise self._find_broken(path, calls, own)

    def _find_broken(self, path: str, calls: dict[Server, Future[Any]], own: list[Future[Any]]) -> TransferBroken:
        """Leave the group. Return the servers to give up, the first that apply of:

        those whose engine does not run; those that are silent even after the group was left; those that refused before
        it was left (afterwards the others fail too, since they miss a part); all.
        """
        wait(calls.values(), timeout=GRACE)
        failed = errors_of(calls)
        wait(own, timeout=self.limit + GRACE)
        reason = next((error for call in own if call.done() and (error := call.exception())), None)
        if reason is not None:
            reason.__traceback__ = None  # it holds the group
        self.channel.close()  # workers that wait for more stop
        wait(calls.values(), timeout=SHORT)
        later = errors_of(calls)
        silent = [s for s, call in calls.items() if not call.done() or isinstance(later.get(s), ServerSilent)]
        lost = {server: f"{failed.get(server) or why}" for server in self.servers if (why := server.find_fault())}
        if not lost:
            lost = {s: f"{s.name}{path} did not take the weights: {reason or later.get(s)}" for s in silent}
        if not lost:
            lost = {server: str(error) for server, error in failed.items()}
        if not lost:
            lost = {server: f"{server.name}{path} did not take the weights: {reason}" for server in self.servers}
        leave(
            [server for server in self.servers if server not in lost],
            "/finish_weight_update",  # refused where a part was refused, which ended the push
            "/shutdown_weight_transfer_engine",
        )
        return TransferBroken(lost)


def errors_of(calls: Mapping[Server, Future[Any]]) -> dict[Server, BaseException]:
    """Return the errors of the calls that have failed so far."""
    return {server: error for server, call in calls.items() if call.done() and (error := call.exception())}


def leave(servers: Sequence[Server], *paths: str) -> None:
    """Call what ends a push or the group. Errors are ignored: a broken server fails at the next push."""

    def end(server: Server) -> None:
        for path in paths:
            with suppress(ServerLost, ValueError):
                server.post(path, {}, timeout=SHORT)

    wait([in_thread(partial(end, server)) for server in servers], timeout=2 * SHORT)


def meeting_address(urls: Sequence[str]) -> str:
    """Return the address of this machine at which all servers reach it. Raises RunError for an unknown host."""
    hosts = [urlsplit(url).hostname or "localhost" for url in urls]
    far = next((host for host in hosts if not is_local(host)), None)
    if far is None:
        return "127.0.0.1"
    try:
        return address_towards(far)
    except OSError as error:
        raise RunError(f"the vLLM server's host {far} has no address: {error}") from error
