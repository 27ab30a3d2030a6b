"""The servers that a run starts itself, on its machine: where they lie, on which GPUs, and their end."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack

import torch

from rlvr.config import VLLMServerConfig
from rlvr.model.load.policy import Policy
from rlvr.sampling.vllm.engine import start_options
from rlvr.sampling.vllm.proof import shared_folder
from rlvr.sampling.vllm.server import ServerProcess, share_gpus, start_server, stop_all, visible_gpus
from rlvr.sampling.vllm.weights import write_config


class Starter:
    """Starts `sampler.servers` servers of a policy's model without weights, replaces lost ones, and ends all."""

    def __init__(self, policy: Policy, config: VLLMServerConfig) -> None:
        self.config = config
        self.options = start_options(policy, config)
        self.gpus, self.backend = placed(policy.device, config)
        self.processes: dict[str, tuple[ServerProcess, list[str]]] = {}  # by URL, with its GPUs
        self._numbers = itertools.count()
        self._stack = ExitStack()
        self.folder = self._stack.enter_context(shared_folder())
        write_config(policy, self.folder)

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        stop_all([process for process, _ in self.processes.values()])
        self.processes.clear()
        self._stack.close()

    def start(self, check: Callable[[], None]) -> list[str]:
        """Start all servers, and return their URLs once they answer. `check` is called while it waits."""
        urls = [self._begin(gpus) for gpus in self.gpus]
        for url in urls:
            self.processes[url][0].wait_until_up(self.config.timeout, check)
        return urls

    def replace(self, check: Callable[[], None]) -> str:
        """Start a server on GPUs that none uses, and return its URL once it answers."""
        used = [gpus for _, gpus in self.processes.values()]
        url = self._begin(next((gpus for gpus in self.gpus if gpus not in used), self.gpus[0]))
        self.processes[url][0].wait_until_up(self.config.timeout, check)
        return url

    def end(self, url: str) -> None:
        """End a server, if it was started here and has not been ended."""
        process, _ = self.processes.pop(url, (None, []))
        if process is not None:
            process.stop()

    def _begin(self, gpus: list[str]) -> str:
        log = self.folder / f"server-{next(self._numbers)}.log"
        started = start_server(str(self.folder), backend=self.backend, options=self.options, log=log, gpus=gpus)
        self.processes[started.url] = (started, gpus)
        return started.url


def placed(device: torch.device, config: VLLMServerConfig) -> tuple[list[list[str]], str]:
    """Return the GPUs of each server, and how weights come to them.

    On a CPU none; on the trainer's GPU where it is the only one, which NCCL cannot send to; else on the other ones.
    Raises ValueError where there are too few.
    """
    if device.type != "cuda":
        return [[] for _ in range(config.servers)], "rlvr_gloo"
    names = visible_gpus(torch.cuda.device_count())
    others = [name for i, name in enumerate(names) if i != (device.index or 0)]
    if not others and config.servers == config.tensor_parallel == 1:
        return [names], "rlvr_gloo"
    return share_gpus(others, config.servers, config.tensor_parallel), "rlvr_nccl"
