"""vLLM as a server: one that is started here and restarted when it dies, or a running one by its URL.

Prompts and outputs travel as token ids (/inference/v1/generate), weights as a file in memory (/dev/shm) that the
server's worker loads; hence both sides run on one machine.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from rlvr.config import VLLMServerConfig
from rlvr.http import JSONClient, ServerLost
from rlvr.model.policy import Policy
from rlvr.types import RunError
from rlvr.vllm.engine import (
    MISSING,
    Interrupted,
    Output,
    Request,
    check_version,
    ignore_output,
    start_failure,
    start_options,
)
from rlvr.vllm.process import (
    REQUIRED_FLAGS,
    end_with_parent,
    error_in,
    free_port,
    server_command,
    server_environment,
)
from rlvr.vllm.sync import shared_folder
from rlvr.vllm.weights import engine_weights, parts, write_model, write_weights

SCHEMA = "vLLM's schema"
CONNECTIONS = 256
RESETS = 50  # attempts to reset the prefix cache, 0.1 s apart
T = TypeVar("T")


class ServerEngine:
    """A vLLM server on this machine; implements rlvr.vllm.engine.Engine.

    A server started here is restarted with the current weights when it dies or does not answer for `timeout` seconds,
    at most `max_restarts` times. Requests that it had not finished are sampled again; finished outputs are kept.
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
        # The server ends with the thread that started it (see end_with_parent): this one lasts as long as the engine.
        self._starter = self._stack.enter_context(ThreadPoolExecutor(1))
        self._stack.callback(self._stop)
        atexit.register(self.close)
        try:
            write_model(policy, engine_weights(policy), self.folder)
            if config.url is None:
                self._start()
            else:
                self.client = self._connect(config.url)
            version, self.max_model_len = self._check_server()
            check_version(version)
        except BaseException:
            self.close()
            raise

    def sample(
        self, requests: Sequence[Request], on_output: Callable[[int, Output], None] = ignore_output
    ) -> list[Output]:
        """Return the outputs in the order of the requests; see rlvr.vllm.engine.Engine."""
        outputs: dict[int, Output] = {}

        def sample_missing() -> None:
            missing = [index for index in range(len(requests)) if index not in outputs]
            indices = {self._pool.submit(self._sample_one, requests[index]): index for index in missing}
            try:
                for future in as_completed(indices):
                    index = indices[future]
                    outputs[index] = future.result()
                    on_output(index, outputs[index])
            finally:
                for future in indices:
                    future.cancel()

        self._with_restarts(sample_missing)
        return [outputs[index] for index in range(len(requests))]

    def _sample_one(self, request: Request) -> Output:
        path = "/inference/v1/generate"
        body = {"token_ids": list(request.prompt), "sampling_params": request.parameters(), "stream": False}
        answer = self.client.post(path, body, idempotent=True)  # the seed decides: a second time gives the same
        return self.client.read(path, answer, lambda found: read_choice(found["choices"][0]), SCHEMA)

    def interrupt(self) -> None:
        """End the sampling under way in another thread, and refuse to sample from then on."""
        self._interrupted.set()
        self.client.close()

    def load(self, policy: Policy) -> None:
        """Sample from the policy's weights, adapters merged, from now on."""
        self.push(engine_weights(policy))

    def push(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights in place and reset the prefix cache."""
        write_weights(weights, self.folder, self.dtype)

        def load() -> None:
            self._call_worker("push_weights", self.folder)
            self.reset_cache()

        self._with_restarts(load)

    def reset_cache(self) -> None:
        """Reset the prefix cache. The server refuses while it frees the blocks of the last request, so try again.

        Raises RunError where it keeps refusing.
        """
        for _ in range(RESETS):
            answer = self.client.post("/reset_prefix_cache", {}, idempotent=True)
            if self.client.read("/reset_prefix_cache", answer, lambda found: found["success"], SCHEMA):
                return
            time.sleep(0.1)
        raise RunError("vLLM did not reset its prefix cache: requests are still running")

    def differing(self, weights: Iterable[tuple[str, Tensor]]) -> list[str]:
        """Return the names of the tensors whose values differ in the engine, or are missing there."""
        names: list[str] = []
        with shared_folder() as folder:
            for part in parts(weights):
                write_weights(part.items(), folder, self.dtype)
                answer = self._call_worker("differing_weights", folder)
                names += self.client.read("/collective_rpc", answer, lambda found: list(found["results"][0]), SCHEMA)
        return names

    def sleep(self, level: int) -> None:
        """Raise ValueError: a server keeps its memory."""
        raise ValueError(f"sampler.sleep {level} needs the sampler vllm, in this process")

    def close(self) -> None:
        """End a server that was started here, with the processes that it started."""
        atexit.unregister(self.close)
        self._stack.close()

    def _connect(self, url: str) -> JSONClient:
        client = JSONClient(url, name="vLLM server", timeout=self.config.timeout)
        self._stack.callback(client.close)
        return client

    def _call_worker(self, method: str, folder: Path) -> Any:
        """Call a method of rlvr.vllm.worker.WorkerExtension, which reads weights from a folder."""
        return self.client.post("/collective_rpc", {"method": method, "args": [str(folder)]}, idempotent=True)

    def _check_server(self) -> tuple[str, int]:
        """Push the weights if the server was not started here, and return its version and max_model_len.

        Raises ValueError that says how the server must be started.
        """
        try:
            if self.process is None:
                self.client.get("/health")
                self._call_worker("push_weights", self.folder)
            version = self.client.read(
                "/version", self.client.get("/version"), lambda found: str(found["version"]), SCHEMA
            )
            models = self.client.get("/v1/models")
            length = self.client.read(
                "/v1/models", models, lambda found: int(found["data"][0]["max_model_len"]), SCHEMA
            )
            return version, length
        except (ServerLost, ValueError) as error:
            command = f"VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server ... {REQUIRED_FLAGS}"
            raise ValueError(f"{error}; the server must be started with {command}") from error

    def _with_restarts(self, action: Callable[[], T]) -> T:
        """Return what `action` returns; when the server is lost, restart it and call the action again."""
        while True:
            try:
                return action()
            except ServerLost as error:
                if self._interrupted.is_set():
                    raise Interrupted("sampling was interrupted") from error
                if self.process is None:
                    raise RunError(f"lost the server at sampler.url, which is not restarted: {error}") from error
                if self.deaths >= self.config.max_restarts:
                    raise RunError(f"the vLLM server was lost {self.deaths + 1} times; last: {error}") from error
                self.deaths += 1
                warnings.warn(f"the vLLM server is lost ({error}); restart {self.deaths}", RuntimeWarning, stacklevel=3)
                self.client.close()
                self._stop()
                self._start()

    def _start(self) -> None:
        """Start a server with the weights in the folder and wait until it answers.

        Raises ValueError with vLLM's reason where it ends, and where it does not answer within `timeout` seconds.
        """
        if importlib.util.find_spec("vllm") is None:
            raise ValueError(MISSING)
        port = free_port()
        self.client = self._connect(f"http://127.0.0.1:{port}")
        log = self.folder / "server.log"
        with log.open("wb") as output:
            self.process = self._starter.submit(
                subprocess.Popen,
                server_command(self.folder, port, self.options),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=server_environment(on_cpu="gpu_memory_utilization" not in self.options),
                start_new_session=True,  # Ctrl-C is for the trainer, which ends the server itself
                preexec_fn=end_with_parent,
            ).result()
        self._wait_until_up(self.process, log)

    def _wait_until_up(self, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + self.config.timeout
        while True:
            if self._interrupted.is_set():
                raise Interrupted("sampling was interrupted")
            try:
                self.client.get("/health", timeout=5.0)
                return
            except ServerLost as error:
                if process.poll() is not None:
                    raise ValueError(start_failure(error_in(log.read_text(errors="replace")))) from error
                if time.monotonic() > deadline:
                    raise ValueError(f"the vLLM server did not answer within {self.config.timeout:g} s") from error
            time.sleep(0.2)

    def _stop(self) -> None:
        """End the server's whole process group."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its engine process may have outlived it
            process.wait()
            for _ in range(100):
                os.killpg(process.pid, 0)
                time.sleep(0.1)


def read_choice(choice: dict[str, Any]) -> Output:
    """Return a choice of vLLM's response as an Output. Raises ServerLost for one that was cut off."""
    tokens = choice["token_ids"]
    logprobs = [at["logprob"] for at in choice["logprobs"]["content"]]
    if len(logprobs) != len(tokens):
        raise ServerLost(f"the vLLM server cut a request off: {len(tokens)} tokens with {len(logprobs)} logprobs")
    reason = choice["finish_reason"]
    if reason not in ("stop", "length"):
        raise ServerLost(f"the vLLM server ended a request with {reason!r}")
    return Output(tuple(tokens), tuple(logprobs), choice["stop_reason"] if reason == "stop" else None)
