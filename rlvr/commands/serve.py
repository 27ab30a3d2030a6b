"""`rlvr serve MODEL`: vLLM servers that a training run pushes its weights to and samples from."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

from rlvr.config.settings import COUNT_OR_NONE, POSITIVE_SHARE, SECONDS, WORKERS, Bound
from rlvr.core.files.models import find_model
from rlvr.core.types import RunError
from rlvr.sampling.vllm.engine import require_vllm
from rlvr.training.supervision.signals import StopRequest

from .arguments import Positional, parse
from .console import find_program
from .machine import check_device

if TYPE_CHECKING:
    from rlvr.sampling.vllm.server import ServerProcess

PORT = Bound(1, 2**16 - 1)
EVERYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True)
class ServeArgs:
    """Start vLLM servers without weights: a training run with --sampler.url pushes its own. Ctrl-C ends them."""

    model: Positional[str]
    """Hub name or folder of the model that is trained: its config and tokenizer are read."""
    servers: Annotated[int, WORKERS] = 1
    """Number of servers."""
    tensor_parallel: Annotated[int, WORKERS] = 1
    """GPUs of each server: its weights are shared out among them. CUDA_VISIBLE_DEVICES says which there are."""
    host: str = "127.0.0.1"
    """Address to listen at. 0.0.0.0: all of this machine; whoever reaches a server can replace its weights."""
    port: Annotated[int, PORT] = 8000
    """Port of the first server; the others have the next ones."""
    device: str = "auto"
    """auto: cuda if available, else cpu."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision, as the trainer's --model.dtype. auto: bfloat16 on GPUs that support it."""
    transfer: Literal["auto", "nccl", "gloo"] = "auto"
    """How weights come: nccl between GPUs, gloo over TCP (on a CPU, or on the trainer's GPU). auto: nccl on GPUs."""
    gpu_memory_utilization: Annotated[float, POSITIVE_SHARE] = 0.9
    """Fraction of GPU memory for vLLM, weights included."""
    max_model_len: Annotated[int, COUNT_OR_NONE] = 0
    """Maximum tokens of prompt and completion together. 0: the model's own limit."""
    timeout: Annotated[float, SECONDS] = 1800.0
    """Seconds that the servers may take to start."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""
    trust_remote_code: bool = False
    """Allow Python code from the model's repository to run on this machine."""
    log_dir: Path | None = None
    """Folder for the servers' logs. None: they are deleted at the end."""


def main(argv: Sequence[str]) -> int:
    serve(parse(ServeArgs, argv, prog="rlvr serve"))
    return 0


def serve(args: ServeArgs) -> None:
    """Start servers, print their URLs and the flags to train with, and wait.

    Raises ValueError where they do not start, RunError once all have ended, Stopped where a signal ends it.
    """
    if args.port + args.servers - 1 > PORT.most:
        raise ValueError(f"--port {args.port}: {args.servers} servers need as many ports from there on")
    if args.model == "tiny":
        raise ValueError(
            "tiny is made anew by each run; serve a folder that has its config and tokenizer, such as RUN/start"
        )
    check_device(args.device)
    source = find_model(args.model, args.revision)
    if source.adapter is not None:
        raise ValueError(f"{args.model!r} is an adapter; serve its base model: the trainer pushes merged weights")
    require_vllm()
    if source.weights.is_gguf():
        from rlvr.model.load.gguf import find_converted

        args = replace(args, model=find_converted(args.model).weights.name)
    with StopRequest().handling_signals() as stop, ExitStack() as stack:
        stop.doing = "starting the servers"
        started = start(args, stack)
        urls = [f"http://{reachable_host(args.host)}:{args.port + i}" for i in range(args.servers)]
        print(f"{args.model} is served without weights at {' '.join(urls)}")
        print("next, in another shell, with the recipe's name (weights come from the run):")
        print(f"  {find_program()} train RECIPE --model.name {shlex.quote(args.model)} {flags(urls)}", flush=True)
        stop.doing = "serving"
        watch(started)


def start(args: ServeArgs, stack: ExitStack) -> list[ServerProcess]:
    """Return the servers once all answer; `stack` ends them."""
    import torch

    from rlvr.model.load.pretrained import pick_device, pick_dtype
    from rlvr.sampling.vllm.engine import server_options
    from rlvr.sampling.vllm.server import share_gpus, start_server, stop_all, visible_gpus

    device = pick_device(args.device)
    on_cpu = device.type != "cuda"
    if on_cpu and args.transfer == "nccl":
        raise ValueError(f"--transfer nccl needs GPUs, and the device is {device}; use gloo")
    gpus = [list[str]() for _ in range(args.servers)]
    if not on_cpu:
        gpus = share_gpus(visible_gpus(torch.cuda.device_count()), args.servers, args.tensor_parallel)
    options = server_options(
        dtype=str(pick_dtype(args.dtype, device)).removeprefix("torch."),
        on_cpu=on_cpu,
        gpu_memory_utilization=args.gpu_memory_utilization,
        max_model_len=args.max_model_len,
        tensor_parallel=args.tensor_parallel,
        trust_remote_code=args.trust_remote_code,
    )
    if args.revision is not None:
        options["revision"] = args.revision
    backend = "rlvr_gloo" if on_cpu or args.transfer == "gloo" else "rlvr_nccl"
    folder = args.log_dir or Path(stack.enter_context(TemporaryDirectory(prefix="rlvr-serve-")))
    folder.mkdir(parents=True, exist_ok=True)
    processes: list[ServerProcess] = []
    stack.callback(lambda: stop_all(processes))
    for i in range(args.servers):
        log = folder / f"server-{args.port + i}.log"
        processes.append(
            start_server(
                args.model,
                backend=backend,
                options=options,
                log=log,
                host=args.host,
                port=args.port + i,
                gpus=gpus[i],
                servers=args.servers,
            )
        )
    for process in processes:
        process.wait_until_up(args.timeout)
    return processes


def watch(processes: list[ServerProcess]) -> None:
    """Wait, and say when a server ends. Raises RunError once all have ended."""
    from rlvr.sampling.vllm.server import error_in

    running = list(processes)
    while running:
        for process in [process for process in running if process.process.poll() is not None]:
            running.remove(process)
            process.stop()
            code = process.process.returncode
            reason = f"killed by signal {-code}" if code < 0 else error_in(process.log.read_text(errors="replace"))
            print(f"the server {process.url} ended: {reason}; {len(running)} of {len(processes)} are left", flush=True)
        time.sleep(0.5)
    raise RunError("all servers have ended")


def flags(urls: Sequence[str]) -> str:
    """Return the flags with which a run samples from servers."""
    return f"--sampler vllm-server --sampler.url {' '.join(urls)}"


def reachable_host(host: str) -> str:
    """Return the name by which other machines reach a server that listens at an address."""
    return socket.gethostname() if host in EVERYWHERE else host
